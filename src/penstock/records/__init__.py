"""Reads, builds, validates, compresses and compacts record batches of format v2.

Pure: bytes in, bytes out; no clock, file or socket. A batch is its 61-byte header and an opaque payload; only look-up
by time, compaction and readers decode single records. No length, count or compressed size of a batch is trusted: bad
bytes raise a `KafkaError` and no other exception, and every decompression has a limit.

Called by `log` (append, recovery, compaction), `metadata`, the coordinators, `client` and the Spark reader.
"""
