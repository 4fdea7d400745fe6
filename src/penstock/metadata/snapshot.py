"""Converts an image to the records that build it: the content of a metadata snapshot.

`apply(EMPTY_IMAGE, records_of(image))` equals the image except for offset and epoch, which are in the snapshot's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.check import check
from penstock.metadata.framing import record_class
from penstock.metadata.image import KRAFT_VERSION, METADATA_VERSION, AclImage, BrokerImage, MetadataImage, TopicImage


def records_of(image: MetadataImage) -> Iterator[Any]:
    """Yields the records that build the image, each after the records that it refers to. The same image always gives
    the same records."""
    check(image.open_transaction is None, "a metadata snapshot is not taken inside a transaction")
    yield from _features(image)
    for broker_id in sorted(image.brokers):
        yield _broker(image.brokers[broker_id])
    for controller_id in sorted(image.controllers):
        yield _controller(image, controller_id)
    for name in sorted(image.topics):
        yield from _topic(image.topics[name])
    yield from _configs(image)
    yield from _client_quotas(image)
    if image.next_producer_id:
        yield record_class(15)(broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
    yield from _access(image)


def _features(image: MetadataImage) -> Iterator[Any]:
    feature_level = record_class(12)
    if METADATA_VERSION in image.features:
        yield feature_level(name=METADATA_VERSION, feature_level=image.features[METADATA_VERSION])
    for name in sorted(image.features):
        # The quorum's protocol version is in the snapshot's control batch, not among the records.
        if name not in (METADATA_VERSION, KRAFT_VERSION):
            yield feature_level(name=name, feature_level=image.features[name])


def _structs(record_key: int, *names: str) -> tuple[Any, ...]:
    """Returns the nested struct classes of a record's module, by name."""
    from sys import modules

    module = modules[record_class(record_key).__module__]
    return tuple(getattr(module, name) for name in names)


def _broker(broker: BrokerImage) -> Any:
    endpoint, feature = _structs(0, "BrokerEndpoint", "BrokerFeature")
    return record_class(0)(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            endpoint(name=name, host=one.host, port=one.port, security_protocol=one.security_protocol)
            for name, one in broker.endpoints.items()
        ],
        features=[
            feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in broker.features.items()
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
        cordoned_log_dirs=list(broker.cordoned_log_dirs) or None,
    )


def _controller(image: MetadataImage, controller_id: int) -> Any:
    controller = image.controllers[controller_id]
    endpoint, feature = _structs(27, "ControllerEndpoint", "ControllerFeature")
    return record_class(27)(
        controller_id=controller_id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=False,
        end_points=[
            endpoint(name=name, host=one.host, port=one.port, security_protocol=one.security_protocol)
            for name, one in controller.endpoints.items()
        ],
        features=[
            feature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in controller.features.items()
        ],
    )


def _topic(topic: TopicImage) -> Iterator[Any]:
    yield record_class(2)(name=topic.name, topic_id=topic.topic_id)
    partition_record = record_class(3)
    for index in sorted(topic.partitions):
        one = topic.partitions[index]
        yield partition_record(
            partition_id=index,
            topic_id=topic.topic_id,
            replicas=list(one.replicas),
            isr=list(one.isr),
            removing_replicas=list(one.removing_replicas),
            adding_replicas=list(one.adding_replicas),
            leader=one.leader,
            leader_recovery_state=one.leader_recovery_state,
            leader_epoch=one.leader_epoch,
            partition_epoch=one.partition_epoch,
            directories=list(one.directories),
            eligible_leader_replicas=list(one.elr) or None,
            last_known_elr=list(one.last_known_elr) or None,
        )


def _configs(image: MetadataImage) -> Iterator[Any]:
    config = record_class(4)
    for resource_type, resource_name in sorted(image.configs):
        for name, value in sorted(image.configs[resource_type, resource_name].items()):
            yield config(resource_type=resource_type, resource_name=resource_name, name=name, value=value)


def _client_quotas(image: MetadataImage) -> Iterator[Any]:
    if not image.client_quotas:
        return
    (entity_data,) = _structs(14, "EntityData")
    for entity in sorted(image.client_quotas, key=lambda parts: [(kind, name or "") for kind, name in parts]):
        for key, value in sorted(image.client_quotas[entity].items()):
            parts = [entity_data(entity_type=kind, entity_name=name) for kind, name in entity]
            yield record_class(14)(entity=parts, key=key, value=value, remove=False)


def acl_record(acl_id: bytes, acl: AclImage) -> Any:
    """Returns the AccessControlEntryRecord from which `apply` makes this ACL."""
    return record_class(18)(
        id=acl_id,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )


def _access(image: MetadataImage) -> Iterator[Any]:
    for acl_id in sorted(image.acls):
        yield acl_record(acl_id, image.acls[acl_id])
    for name, mechanism in sorted(image.scram_credentials):
        credential = image.scram_credentials[name, mechanism]
        yield record_class(11)(
            name=name,
            mechanism=mechanism,
            salt=credential.salt,
            stored_key=credential.stored_key,
            server_key=credential.server_key,
            iterations=credential.iterations,
        )
    for token_id in sorted(image.delegation_tokens):
        token = image.delegation_tokens[token_id]
        yield record_class(10)(
            owner=token.owner,
            requester=token.requester,
            renewers=list(token.renewers),
            issue_timestamp=token.issue_timestamp,
            max_timestamp=token.max_timestamp,
            expiration_timestamp=token.expiration_timestamp,
            token_id=token_id,
        )
