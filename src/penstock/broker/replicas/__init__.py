"""Contains the replicas on this node: partitions with their logs, replica fetchers, ISR changes, log directories.

Every append to a partition happens here, on the node's event loop. The rules of replication that need no I/O are in
`penstock.replication`. Called by handlers, coordinators and the composition root.
"""
