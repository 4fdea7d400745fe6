"""Declares ConsumerGroupTargetAssignmentMetadata, the records of type 6 in `__consumer_offsets`."""

from penstock.protocol.schema import Message, int32, int64, string


class ConsumerGroupTargetAssignmentMetadataKey(Message, api_key=6, versions="0"):
    group_id: str = string()


class ConsumerGroupTargetAssignmentMetadataValue(Message, api_key=6, versions="0", flexible="0+"):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(ignorable=True, tag=0)
