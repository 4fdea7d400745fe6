"""Metadata of the cluster: the quorum's driver, the metadata log, the active controller, this broker's registration.

`raft` and `metadata` decide; this package does their I/O. A metadata change is a record in the log that the quorum
commits; every node applies committed records to its image. Called by handlers and the composition root.
"""
