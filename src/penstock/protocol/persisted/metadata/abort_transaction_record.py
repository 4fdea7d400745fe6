"""Declares AbortTransactionRecord, the records of type 25 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, string


class AbortTransactionRecord(Message, api_key=25, versions="0", flexible="0+"):
    reason: str | None = string(nullable=True, default=None, tag=0)
