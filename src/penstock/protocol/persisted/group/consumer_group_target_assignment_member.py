"""Declares ConsumerGroupTargetAssignmentMember, the records of type 7 in `__consumer_offsets`."""

from penstock.protocol.schema import Message, Struct, array, int32, string, uuid


class ConsumerGroupTargetAssignmentMemberKey(Message, api_key=7, versions="0"):
    group_id: str = string()
    member_id: str = string()


class TopicPartition(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class ConsumerGroupTargetAssignmentMemberValue(Message, api_key=7, versions="0", flexible="0+"):
    topic_partitions: list[TopicPartition] = array(TopicPartition)
