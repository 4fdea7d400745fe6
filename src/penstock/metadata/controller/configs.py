"""Decides AlterConfigs and IncrementalAlterConfigs requests.

Either all changes of a resource are made or none; a refused resource does not affect the others. Settings of a broker
must follow the rules for dynamic configs. Configs of topics, groups and client metrics subscriptions must follow their
tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from penstock.metadata.configs.broker import broker_key
from penstock.metadata.configs.client_metrics import ClientMetricsRequestError, validate_client_metrics
from penstock.metadata.configs.definition import ConfigError, ConfigKey, ConfigType
from penstock.metadata.configs.dynamic import validate_dynamic_settings, validate_thread_pools
from penstock.metadata.configs.group import validate_group_configs
from penstock.metadata.configs.settings import CORDONED, Settings, check_cordoned, check_lockout
from penstock.metadata.configs.topic import TOPIC_CONFIGS, validate_topic_configs
from penstock.metadata.controller.eligible_leaders import clear_unsafe_eligible_leaders
from penstock.metadata.controller.partition_change import ELIGIBLE_LEADER_REPLICAS, Rules
from penstock.metadata.decision import MAX_RECORDS_PER_REQUEST, Decision
from penstock.metadata.image import MetadataImage
from penstock.metadata.names import name_problem
from penstock.metadata.patterns import Work
from penstock.protocol.errors import ErrorCode, KafkaError, without_frames
from penstock.protocol.messages import api_33_alter_configs as legacy
from penstock.protocol.messages import api_44_incremental_alter_configs as incremental
from penstock.protocol.persisted.metadata.config_record import ConfigRecord
from penstock.protocol.vocabulary import ConfigOperation, ResourceType

# Outcome of each resource: an error, or None for success.
Outcomes = dict[int, KafkaError | None]


ALTERABLE = frozenset(ResourceType)
_OF_LISTENER = "listener.name."


class _Config(Protocol):
    name: str
    value: str | None


class _Resource(Protocol):
    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[_Config]: ...


def refused_resources(resources: Sequence[_Resource]) -> Outcomes:
    """Returns the error of each malformed resource; the key is its position in the request. A resource is malformed if
    it is given twice, has a key twice, or sets a null value."""
    counts = Counter((each.resource_type, each.resource_name) for each in resources)
    outcomes: Outcomes = {}
    for index, resource in enumerate(resources):
        names = [config.name for config in resource.configs]
        nulls = [
            config.name
            for config in resource.configs
            if config.value is None
            and getattr(config, "config_operation", ConfigOperation.SET) != ConfigOperation.DELETE
        ]
        if resource.resource_type not in ALTERABLE:
            outcomes[index] = _invalid(
                f"Resource type {resource.resource_type} has no configs to alter: check the type."
            )
        elif counts[resource.resource_type, resource.resource_name] > 1:
            outcomes[index] = _invalid("The request contains the resource twice: give all its changes together.")
        elif len(set(names)) != len(names):
            outcomes[index] = _invalid("The request contains a config key twice: give each key once.")
        elif nulls:
            outcomes[index] = _invalid(f"No value is given for {', '.join(nulls)}: give a value, or delete the config.")
    return outcomes


def own_refusal(resource: incremental.AlterConfigsResource, settings: Settings) -> KafkaError | None:
    """Returns the error if the request sets configs of this broker that this broker can't use; otherwise None.

    Examples are directories in cordoned.log.dirs that the broker does not have, and certificates that can't be loaded.
    This broker makes the check, because no other node can read its files.
    """
    if resource.resource_type != ResourceType.BROKER or resource.resource_name != str(settings.node_id):
        return None
    own = dict(settings.dynamic_own())
    try:
        for config in resource.configs:
            if config.name == CORDONED and config.config_operation in (ConfigOperation.SET, ConfigOperation.APPEND):
                check_cordoned(config.value, settings.log_dirs)
            if config.config_operation == ConfigOperation.SET and config.value is not None:
                own[config.name] = config.value
            elif config.config_operation == ConfigOperation.DELETE:
                own.pop(config.name, None)
        if settings.check_own is not None and any(config.name.startswith(_OF_LISTENER) for config in resource.configs):
            settings.check_own(own)
    except ConfigError as error:
        return _invalid(str(error))
    return None


def incremental_alter_configs(
    image: MetadataImage,
    request: incremental.IncrementalAlterConfigsRequest,
    settings: Settings,
    settled: Mapping[int, KafkaError | None],
) -> Decision[incremental.IncrementalAlterConfigsResponse]:
    """Decides an IncrementalAlterConfigs request.

    `settled` has the outcomes of resources that need no decision here: they are already refused, or they are loggers,
    which are not metadata. The key is the position in the request.
    """
    outcomes: Outcomes = dict(settled)
    records: list[ConfigRecord] = []
    work = Work()
    for index, resource in enumerate(request.resources):
        if index in outcomes:
            continue
        try:
            wanted = _after_operations(image, resource)
            changed = [config.name for config in resource.configs]
            records += _alter(image, resource, wanted, changed, settings, work)
            outcomes[index] = None
        except KafkaError as error:
            outcomes[index] = without_frames(error)
    _limit(records, outcomes)
    replies = [
        incremental.AlterConfigsResourceResponse(
            error_code=_code(outcomes[index]),
            error_message=_message(outcomes[index]),
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for index, resource in enumerate(request.resources)
    ]
    response = incremental.IncrementalAlterConfigsResponse(responses=replies)
    return Decision(_to_commit(image, records, settings, request.validate_only), response)


def alter_configs(
    image: MetadataImage, request: legacy.AlterConfigsRequest, settings: Settings
) -> Decision[legacy.AlterConfigsResponse]:
    """Replaces all configs of each resource by the given configs (AlterConfigs)."""
    outcomes = refused_resources(request.resources)
    records: list[ConfigRecord] = []
    work = Work()
    for index, resource in enumerate(request.resources):
        if index in outcomes:
            continue
        try:
            wanted = {config.name: config.value for config in resource.configs if config.value is not None}
            dropped = [
                name for name in image.config(resource.resource_type, resource.resource_name) if name not in wanted
            ]
            records += _alter(image, resource, wanted, [*wanted, *dropped], settings, work)
            outcomes[index] = None
        except KafkaError as error:
            outcomes[index] = without_frames(error)
    _limit(records, outcomes)
    replies = [
        legacy.AlterConfigsResourceResponse(
            error_code=_code(outcomes[index]),
            error_message=_message(outcomes[index]),
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for index, resource in enumerate(request.resources)
    ]
    response = legacy.AlterConfigsResponse(responses=replies)
    return Decision(_to_commit(image, records, settings, request.validate_only), response)


def _to_commit(
    image: MetadataImage, changes: Sequence[ConfigRecord], settings: Settings, validate_only: bool
) -> Sequence[Any]:
    if validate_only:
        return []
    rules = Rules(settings.int("min.insync.replicas"), node_id=settings.node_id)
    return [*changes, *clear_unsafe_eligible_leaders(image, changes, rules)]


# --- one resource ---------------------------------------------------------------------------------


def _alter(
    image: MetadataImage,
    resource: _Resource,
    wanted: Mapping[str, str],
    changed: Sequence[str],
    settings: Settings,
    work: Work,
) -> list[ConfigRecord]:
    """Validates the new configs of a resource. Returns records for the configs that change."""
    kind, name = resource.resource_type, resource.resource_name
    try:
        _validate(image, kind, name, wanted, settings, work)
    except ClientMetricsRequestError as error:
        raise _invalid(str(error)) from None
    except ConfigError as error:
        code = ErrorCode.INVALID_REQUEST if kind == ResourceType.BROKER else ErrorCode.INVALID_CONFIG
        raise KafkaError(code, str(error)) from None
    if kind == ResourceType.BROKER:
        _protect_min_isr(image, name, wanted, changed)
    current = image.config(kind, name)
    return [
        ConfigRecord(resource_type=kind, resource_name=name, name=each, value=wanted.get(each))
        for each in changed
        # A broker's setting is written even if it is unchanged, because writing it makes the broker reload it.
        if kind == ResourceType.BROKER or current.get(each) != wanted.get(each)
    ]


def _validate(
    image: MetadataImage, kind: int, name: str, wanted: Mapping[str, str], settings: Settings, work: Work
) -> None:
    match kind:
        case ResourceType.TOPIC:
            if not name:
                raise _invalid("Topics have no shared configs to alter: name one topic.")
            problem = name_problem(name)
            if problem is not None:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"No topic can have this name: {problem}")
            validate_topic_configs(wanted)
            if name not in image.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}': check the name.")
        case ResourceType.BROKER:
            if name:
                check_node_id(name, image.brokers, settings.node_id)
            validate_dynamic_settings(wanted, per_broker=bool(name))
            validate_thread_pools(wanted, settings)
            overrides = "max.connections.per.ip.overrides"
            check_lockout(wanted.get("max.connections.per.ip"), wanted.get(overrides) or settings.raw(overrides))
            if name == str(settings.node_id):  # only the broker itself knows its directories
                check_cordoned(wanted.get(CORDONED), settings.log_dirs)
        case ResourceType.CLIENT_METRICS:
            validate_client_metrics(name, wanted, work)
        case ResourceType.GROUP:
            if not name:
                raise _invalid("Groups have no shared configs to alter: name one group.")
            validate_group_configs(wanted, settings)
        case _:
            raise _invalid(f"Resource type {kind} has no configs to alter: check the type.")


def check_node_id(name: str, brokers: Collection[int], node_id: int) -> None:
    """Raises KafkaError unless `name` is the id of a registered broker or of this node.

    The active controller decides on the configs of all brokers. Its own id (this node) is accepted too, because a node
    that is only a controller is not a registered broker.
    """
    try:
        number = int(name)
    except ValueError:
        raise _invalid(f"'{name}' is not a node id: give a number.") from None
    if number != node_id and number not in brokers:
        raise _invalid(f"There is no broker {name}: check the node id.")


def _protect_min_isr(image: MetadataImage, name: str, wanted: Mapping[str, str], changed: Sequence[str]) -> None:
    """Raises KafkaError for a change of min.insync.replicas per broker, and for a deletion of its cluster-wide value.

    Checks this only if eligible leader replicas are enabled: they need one value for the whole cluster.
    """
    config = "min.insync.replicas"
    if config not in changed or image.features.get(ELIGIBLE_LEADER_REPLICAS, 0) < 1:
        return
    if name:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"With eligible leader replicas, {config} can't be set per broker: set it cluster-wide.",
        )
    if config not in wanted:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"With eligible leader replicas, {config} can't be deleted: set another value.",
        )


# --- operations -----------------------------------------------------------------------------------


def _after_operations(image: MetadataImage, resource: incremental.AlterConfigsResource) -> dict[str, str]:
    """Returns the resource's configs after the operations of IncrementalAlterConfigs (set, delete,
    append, subtract)."""
    kind = resource.resource_type
    values = dict(image.config(kind, resource.resource_name))
    for config in resource.configs:
        try:
            operation = ConfigOperation(config.config_operation)
        except ValueError:
            raise _invalid(
                f"{config.config_operation} is not an operation on {config.name}: use 0 (SET), 1 (DELETE), 2 (APPEND) "
                "or 3 (SUBTRACT)."
            ) from None
        match operation:
            case ConfigOperation.SET:
                assert config.value is not None
                values[config.name] = config.value
            case ConfigOperation.DELETE:
                values.pop(config.name, None)
            case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                assert config.value is not None
                key = _list_key(kind, config.name, operation)
                values[config.name] = _combined(values.get(config.name, key.default), config.value, operation)
    return values


def _list_key(kind: int, name: str, operation: ConfigOperation) -> ConfigKey:
    """Returns the config for APPEND and SUBTRACT. Raises KafkaError unless it is a list config of a
    topic or a broker."""
    key = broker_key(name) if kind == ResourceType.BROKER else None
    if kind == ResourceType.BROKER and key is None:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"There is no broker property '{name}': check its spelling.")
    if kind == ResourceType.TOPIC:
        key = TOPIC_CONFIGS.get(name)
    if key is not None and key.type is ConfigType.LIST:
        return key
    if kind == ResourceType.BROKER:
        why = f"Broker property {name} is not a list and takes no {operation.name}: use SET."
    else:
        why = f"{name} takes no {operation.name}, because it is not a list config of a topic or broker: use SET."
    raise KafkaError(ErrorCode.INVALID_CONFIG, why)


def _combined(current: str | None, operand: str, operation: ConfigOperation) -> str:
    items = [item for item in (current or "").split(",") if item]
    for item in (part for part in operand.split(",") if part):
        if operation is ConfigOperation.APPEND and item not in items:
            items.append(item)
        elif operation is ConfigOperation.SUBTRACT and item in items:
            items.remove(item)
    return ",".join(items)


# --- replies --------------------------------------------------------------------------------------


def _limit(records: list[ConfigRecord], outcomes: Outcomes) -> None:
    if len(records) > MAX_RECORDS_PER_REQUEST:
        records.clear()
        for index, outcome in outcomes.items():
            if outcome is None:
                outcomes[index] = KafkaError(
                    ErrorCode.POLICY_VIOLATION, "Too many changes in one request: alter fewer resources at a time."
                )


def _code(outcome: KafkaError | None) -> ErrorCode:
    return ErrorCode.NONE if outcome is None else outcome.code


def _message(outcome: KafkaError | None) -> str | None:
    return None if outcome is None else outcome.message


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, why)
