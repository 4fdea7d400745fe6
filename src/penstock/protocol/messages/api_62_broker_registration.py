"""Declares the request and the response of BrokerRegistration: API key 62, versions 0 to 4."""

from penstock.protocol.schema import (
    FIRST_OWN_TAG,
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class Listener(Struct):
    name: str = string()
    host: str = string()
    port: int = uint16()
    security_protocol: int = int16()


class Feature(Struct):
    name: str = string()
    min_supported_version: int = int16()
    max_supported_version: int = int16()


class SyncedTopic(Struct):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32)


class BrokerRegistrationRequest(Message, api_key=62, versions="0-4", flexible="0+"):
    broker_id: int = int32()
    cluster_id: str = string()
    incarnation_id: bytes = uuid()
    listeners: list[Listener] = array(Listener)
    features: list[Feature] = array(Feature)
    rack: str | None = string(nullable=True)
    is_migrating_zk_broker: bool = boolean("1+")
    log_dirs: list[bytes] = array(uuid, "2+", ignorable=True)
    previous_broker_epoch: int = int64("3+", default=-1, ignorable=True)
    # Beyond Kafka: replicas that were only ever counted for what they had on disk.
    synced_topics: list[SyncedTopic] = array(SyncedTopic, tag=FIRST_OWN_TAG, tagged="0+", ignorable=True)
    # Beyond Kafka: the epoch of the registration that this one ends, as the controller named it in its answer.
    ended_broker_epoch: int = int64(tag=FIRST_OWN_TAG + 1, tagged="0+", default=-1, ignorable=True)


class BrokerRegistrationResponse(Message, api_key=62, versions="0-4", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    # Beyond Kafka: with BROKER_ID_NOT_REGISTERED, the epoch of the registration that the next request has to name.
    broker_epoch: int = int64(default=-1)
