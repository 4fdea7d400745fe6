"""Declares the control record that is the first record of a snapshot."""

from penstock.protocol.schema import Message, int16, int64


class SnapshotHeaderRecord(Message, versions="0", flexible="0+"):
    version: int = int16()
    last_contained_log_timestamp: int = int64()
