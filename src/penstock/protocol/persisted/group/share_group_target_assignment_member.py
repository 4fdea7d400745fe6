"""Declares ShareGroupTargetAssignmentMember, the records of type 13 in `__consumer_offsets`."""

from penstock.protocol.schema import Message, Struct, array, int32, string, uuid


class ShareGroupTargetAssignmentMemberKey(Message, api_key=13, versions="0"):
    group_id: str = string()
    member_id: str = string()


class TopicPartition(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class ShareGroupTargetAssignmentMemberValue(Message, api_key=13, versions="0", flexible="0+"):
    topic_partitions: list[TopicPartition] = array(TopicPartition)
