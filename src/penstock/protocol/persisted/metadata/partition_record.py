"""Declares PartitionRecord, the records of type 3 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, array, int8, int32, uuid


class PartitionRecord(Message, api_key=3, versions="0-2", flexible="0+"):
    partition_id: int = int32(default=-1)
    topic_id: bytes = uuid()
    replicas: list[int] = array(int32)
    isr: list[int] = array(int32)
    removing_replicas: list[int] = array(int32)
    adding_replicas: list[int] = array(int32)
    leader: int = int32(default=-1)
    leader_recovery_state: int = int8(tag=0)
    leader_epoch: int = int32(default=-1)
    partition_epoch: int = int32(default=-1)
    directories: list[bytes] = array(uuid, "1+")
    eligible_leader_replicas: list[int] | None = array(int32, "2+", nullable=True, default=None, tag=1)
    last_known_elr: list[int] | None = array(int32, "2+", nullable=True, default=None, tag=2)
