"""Declares UnfenceBrokerRecord, the records of type 8 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, int32, int64


class UnfenceBrokerRecord(Message, api_key=8, versions="0", flexible="0+"):
    id: int = int32()
    epoch: int = int64()
