"""Runs this node's part of the control plane: metadata quorum, metadata log, active controller, broker registration.

`raft` and `metadata` decide; this package does the disk and network I/O for them. A metadata change is a record in the
metadata log. The quorum commits the record, and every node applies committed records to its image. Called by handlers
and the composition root.
"""
