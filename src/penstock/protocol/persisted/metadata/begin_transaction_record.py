"""Declares BeginTransactionRecord, the records of type 23 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, string


class BeginTransactionRecord(Message, api_key=23, versions="0", flexible="0+"):
    name: str | None = string(nullable=True, default=None, tag=0)
