"""Declares UnregisterBrokerRecord, the records of type 1 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, int32, int64


class UnregisterBrokerRecord(Message, api_key=1, versions="0", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64()
