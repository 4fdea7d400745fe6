"""Declares StreamsGroupMetadata, the records of type 17 in `__consumer_offsets`."""

from penstock.protocol.schema import Message, Struct, array, int32, int64, string


class StreamsGroupMetadataKey(Message, api_key=17, versions="0"):
    group_id: str = string()


class LastAssignmentConfig(Struct):
    key: str = string()
    value: str = string()


class StreamsGroupMetadataValue(Message, api_key=17, versions="0", flexible="0+"):
    epoch: int = int32()
    metadata_hash: int = int64()
    validated_topology_epoch: int = int32(default=-1, tag=0)
    last_assignment_configs: list[LastAssignmentConfig] | None = array(LastAssignmentConfig, nullable=True, tag=1)
