"""Declares NoOpRecord, the records of type 20 in `__cluster_metadata`."""

from penstock.protocol.schema import Message


class NoOpRecord(Message, api_key=20, versions="0", flexible="0+"):
    pass
