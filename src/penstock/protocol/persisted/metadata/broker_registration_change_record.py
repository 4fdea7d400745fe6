"""Declares BrokerRegistrationChangeRecord, the records of type 17 in `__cluster_metadata`."""

from penstock.protocol.schema import Message, array, int8, int32, int64, uuid


class BrokerRegistrationChangeRecord(Message, api_key=17, versions="0-3", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64()
    fenced: int = int8(tag=0)
    in_controlled_shutdown: int = int8("1+", tag=1)
    log_dirs: list[bytes] = array(uuid, "2+", tag=2)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "3+", nullable=True, default=None, tag=3)
