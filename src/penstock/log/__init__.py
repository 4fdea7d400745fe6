"""Keeps the logs of partitions in Kafka's files: segments, indexes, epochs, producer state, retention, compaction.

Only the event loop appends to a log, in program order, so no log needs a lock. This package does not decode records:
appending, recovery and reading use only the 61-byte header of each batch and its CRC. Records below the recovery point
are complete on disk. After a crash, the batches above it are verified, and the log is truncated at the first incomplete
batch. The record at an offset never changes once a client has read it. Called by `broker`, through `manager.LogManager`
and `log.Log`. If the disk of one log directory fails, only the logs of that directory go offline.
"""
