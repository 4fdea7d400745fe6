"""Declares FenceBrokerRecord, the records of type 7 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, int32, int64


class FenceBrokerRecord(Message, api_key=7, versions="0", flexible="0+"):
    id: int = int32()
    epoch: int = int64()
