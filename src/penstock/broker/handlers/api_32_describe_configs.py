"""DescribeConfigs, versions 1 to 4: returns configs of topics, brokers, loggers, client metrics and groups.

- A value comes with its source, its synonyms in the order of lookup, and since version 3 with its type and
  documentation.
- A null or empty `configuration_keys` means all configs; names that don't exist are left out without an error.
- Sensitive values, and values of unknown properties, are null.
- A resource that can't be described has its own error; an unknown resource type refuses the whole request.
- A resource that is named twice is described twice. After 32 MiB of response, further resources get POLICY_VIOLATION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.handlers.config_answers import ConfigAnswer
from penstock.broker.handlers.loggers import logger_levels
from penstock.broker.requests.encoded_responses import Encoded
from penstock.broker.requests.steps import Steps, run_steps
from penstock.metadata.configs.describe import (
    Described,
    describe_broker,
    describe_client_metrics,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
)
from penstock.metadata.configs.settings import ConfigSource
from penstock.metadata.names import name_problem
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from penstock.protocol.vocabulary import ResourceType

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext
    from penstock.net.later import Later

RESOURCE_TYPES = frozenset(ResourceType)
#: Configs that are described and encoded in one step.
CONFIGS_PER_STEP = 8
#: Larger responses are assembled in a thread.
JOINED_AT_ONCE_BYTES = 4 << 20


def handle(
    broker: Broker, ctx: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse | Encoded | Later[DescribeConfigsResponse | Encoded]:
    return run_steps(_steps(broker, ctx, request))


def _steps(
    broker: Broker, ctx: RequestContext, request: DescribeConfigsRequest
) -> Steps[DescribeConfigsResponse | Encoded]:
    refusal = _refusal(request)
    answer = ConfigAnswer(ctx.api_version)
    for resource in request.resources:
        work = 0
        if answer.is_full:
            answer.refuse(resource)
        elif refusal is not None:
            answer.add(_refused(resource, refusal))
        else:
            work = _add(broker, request, resource, answer)
        for _ in range(1 + work // CONFIGS_PER_STEP):
            yield None
    whole = answer.finish()
    if isinstance(whole, DescribeConfigsResponse):
        return whole
    if answer.size <= JOINED_AT_ONCE_BYTES:
        return whole()
    encoded: Encoded = yield broker.logs.environment.disk.run(whole)
    return encoded


def _refusal(request: DescribeConfigsRequest) -> KafkaError | None:
    for resource in request.resources:
        if resource.resource_type not in RESOURCE_TYPES:
            return KafkaError(
                ErrorCode.INVALID_REQUEST, f"There is no config resource type {resource.resource_type}: check the type."
            )
    return None


def _add(
    broker: Broker, request: DescribeConfigsRequest, resource: DescribeConfigsResource, answer: ConfigAnswer
) -> int:
    """Adds a resource's configs, or its error, to the response. Returns the number of configs that it read."""
    try:
        described = _describe(broker, resource)
    except KafkaError as error:
        answer.add(_refused(resource, error))
        return 0
    options = request.include_synonyms, request.include_documentation
    shared = None
    if resource.configuration_keys:
        wanted = set(resource.configuration_keys)
        configs = [_config(config, *options) for config in described if config.name in wanted]
    else:
        shared = _shared(broker, described, options)
        configs = [_config(config, *options) for config in described] if shared is None else shared
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=configs
    )
    answer.add(result, is_shared=shared is not None)
    return len(described) if shared is None else 0


def _shared(
    broker: Broker, described: list[Described], options: tuple[bool, bool]
) -> list[DescribeConfigsResourceResult] | None:
    """Returns the cached configs of a topic without overrides, or of this broker; None for other resources."""
    derived = broker.settings.derived
    for name in ("topic", "broker"):
        if described is derived.get(name):
            key = f"{name} answer {options}"
            if key not in derived:
                derived[key] = [_config(config, *options) for config in described]
            found: list[DescribeConfigsResourceResult] = derived[key]
            return found
    return None


def _describe(broker: Broker, resource: DescribeConfigsResource) -> list[Described]:
    image, name = broker.metadata.image, resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            problem = name_problem(name)
            if problem is not None:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"No topic can have this name: {problem}")
            if name not in image.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
            return describe_topic(image.topic_config(name), broker.settings)
        case ResourceType.BROKER:
            if not name:
                return describe_cluster_defaults(broker.settings)
            _check_broker_id(name, broker.node_id, f"{broker.node_id} or nothing")
            return describe_broker(broker.settings)
        case ResourceType.BROKER_LOGGER:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Loggers belong to a broker: give the broker's id.")
            _check_broker_id(name, broker.node_id, str(broker.node_id))
            source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
            return [Described(logger, level, source, type=0) for logger, level in logger_levels().items()]
        case ResourceType.CLIENT_METRICS:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The subscription has no name: give a name.")
            return describe_client_metrics(image.config(ResourceType.CLIENT_METRICS, name))
        case _:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The group has no name: give a name.")
            return describe_group(image.config(ResourceType.GROUP, name), broker.settings)


def _check_broker_id(name: str, node_id: int, expected: str) -> None:
    try:
        asked = int(name)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"'{name}' is not a broker id: give a number.") from None
    if asked != node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"This broker can't describe broker {name}: ask that broker, or ask this broker for {expected}.",
        )


def _config(config: Described, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=config.name,
        value=config.value,
        read_only=config.read_only,
        config_source=config.source,
        is_sensitive=config.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in (config.synonyms if synonyms else ())
        ],
        config_type=config.type,
        documentation=config.documentation if documentation else None,
    )


def _refused(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error.code,
        error_message=error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
