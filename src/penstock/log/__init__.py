"""Partitions' logs in Kafka's files: segments, indexes, epochs, producer state, retention, compaction, recovery.

One loop writes: every append happens in program order, so no log needs a lock. Record bytes are opaque here: appending,
recovery and reading look at the 61-byte header and the CRC. What is below the recovery point is on disk and whole; what
is above it is checked after a crash and cut where it is torn. An offset once served never changes its record.
Callers: broker (through `manager.LogManager` and `log.Log`). A directory whose disk fails goes offline alone.
"""
