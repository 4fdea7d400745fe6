"""Declares ShareGroupMetadata, the records of type 11 in `__consumer_offsets`."""

from penstock.protocol.schema import Message, int32, int64, string


class ShareGroupMetadataKey(Message, api_key=11, versions="0"):
    group_id: str = string()


class ShareGroupMetadataValue(Message, api_key=11, versions="0", flexible="0+"):
    epoch: int = int32()
    metadata_hash: int = int64()
