"""Declares ProducerIdsRecord, the records of type 15 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, int32, int64


class ProducerIdsRecord(Message, api_key=15, versions="0", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    next_producer_id: int = int64()
