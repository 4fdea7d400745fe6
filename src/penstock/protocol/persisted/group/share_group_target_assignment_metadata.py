"""Declares ShareGroupTargetAssignmentMetadata, the records of type 12 in `__consumer_offsets`."""

from penstock.protocol.schema import Message, int32, int64, string


class ShareGroupTargetAssignmentMetadataKey(Message, api_key=12, versions="0"):
    group_id: str = string()


class ShareGroupTargetAssignmentMetadataValue(Message, api_key=12, versions="0", flexible="0+"):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(ignorable=True, tag=0)
