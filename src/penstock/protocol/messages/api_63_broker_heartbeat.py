"""Declares the request and the response of BrokerHeartbeat: API key 63, versions 0 to 2."""

from penstock.protocol.schema import FIRST_OWN_TAG, Message, Struct, array, boolean, int16, int32, int64, uuid


class Suspicion(Struct):
    node_id: int = int32()
    topic_id: bytes = uuid()
    partition: int = int32()
    offset: int = int64()


class BrokerHeartbeatRequest(Message, api_key=63, versions="0-2", flexible="0+"):
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    current_metadata_offset: int = int64()
    want_fence: bool = boolean()
    want_shut_down: bool = boolean()
    offline_log_dirs: list[bytes] = array(uuid, "1+", tag=0)
    cordoned_log_dirs: list[bytes] | None = array(uuid, "2+", nullable=True, default=None, tag=1)
    # Beyond Kafka: replicas that the broker suspects of damage or lies, for the controller to examine.
    suspicions: list[Suspicion] = array(Suspicion, tag=FIRST_OWN_TAG, tagged="0+", ignorable=True)


class BrokerHeartbeatResponse(Message, api_key=63, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    is_caught_up: bool = boolean()
    is_fenced: bool = boolean(default=True)
    should_shut_down: bool = boolean()
