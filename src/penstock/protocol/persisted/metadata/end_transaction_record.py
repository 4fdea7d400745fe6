"""Declares EndTransactionRecord, the records of type 24 in `__cluster_metadata`."""

from penstock.protocol.schema import Message


class EndTransactionRecord(Message, api_key=24, versions="0", flexible="0+"):
    pass
