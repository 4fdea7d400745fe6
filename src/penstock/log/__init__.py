"""Partitions' logs in Kafka's files: segments, indexes, epochs, producer state, retention, compaction, recovery.

Only the event loop writes: appends happen in program order, so no log needs a lock. Record bytes are opaque here:
appending,
recovery and reading look at the 61-byte header and the CRC. Records below the recovery point are whole on disk; after a
crash those above it are verified, and the log is cut at the first torn batch. An offset once served never changes its
record.
Callers: broker (through `manager.LogManager` and `log.Log`). A directory whose disk fails goes offline alone.
"""
