"""The replicas on this node: partitions with their logs, fetchers that follow leaders, ISR changes, directories.

Every append to a partition happens here, on the node's event loop, in program order. Rules of replication without I/O
are in `penstock.replication`. Called by handlers, coordinators and the composition root.
"""
