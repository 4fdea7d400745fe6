"""Record batches, format v2: read, build, validate, compress and compact them.

Pure: bytes in, bytes out; no clock, file or socket. A batch is its 61-byte header and an opaque payload; only look-up
by time, compaction and readers look at single records. Nothing here trusts a length, a count or a compressed size:
every refusal is a `KafkaError`, never another exception, and every decompression has a limit.
Called by `log` (append, recovery, compaction), `metadata`, the coordinators, `client` and the Spark reader.
"""
