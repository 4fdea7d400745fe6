"""Declares ShareUpdate, the records of type 1 in `__share_group_state`."""

from penstock.protocol.schema import Message, Struct, array, int8, int16, int32, int64, string, uuid


class ShareUpdateKey(Message, api_key=1, versions="0"):
    group_id: str = string()
    topic_id: bytes = uuid()
    partition: int = int32()


class StateBatch(Struct):
    first_offset: int = int64()
    last_offset: int = int64()
    delivery_state: int = int8()
    delivery_count: int = int16()


class ShareUpdateValue(Message, api_key=1, versions="0", flexible="0+"):
    snapshot_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32(default=-1, tag=0)
    state_batches: list[StateBatch] = array(StateBatch)
