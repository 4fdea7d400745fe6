"""Declares ConsumerGroupMetadata, the records of type 3 in `__consumer_offsets`."""

from penstock.protocol.schema import Message, int32, int64, string


class ConsumerGroupMetadataKey(Message, api_key=3, versions="0"):
    group_id: str = string()


class ConsumerGroupMetadataValue(Message, api_key=3, versions="0", flexible="0+"):
    epoch: int = int32()
    metadata_hash: int = int64(tag=0)
