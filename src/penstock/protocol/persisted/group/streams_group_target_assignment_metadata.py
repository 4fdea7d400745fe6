"""Declares StreamsGroupTargetAssignmentMetadata, the records of type 20 in `__consumer_offsets`."""

from penstock.protocol.schema import Message, int32, int64, string


class StreamsGroupTargetAssignmentMetadataKey(Message, api_key=20, versions="0"):
    group_id: str = string()


class StreamsGroupTargetAssignmentMetadataValue(Message, api_key=20, versions="0", flexible="0+"):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(ignorable=True, tag=0)
