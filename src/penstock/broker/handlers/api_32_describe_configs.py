"""DescribeConfigs, versions 1 to 4: topics, this broker, the cluster's defaults, loggers, client metrics and groups.

- A value comes with its source, its synonyms in the order in which they count, and from version 3 on with its type and
  documentation.
- `configuration_keys` null or empty means all; names that don't exist are left out without an error.
- Sensitive values, and values of properties nobody knows, are null.
- A resource that can't be described has its own error; an unknown resource type refuses the whole request.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.broker.config_answers import MANY, encode_many
from penstock.broker.encoded import Encoded
from penstock.broker.large_requests import SMALL_ELEMENTS
from penstock.broker.loggers import logger_levels
from penstock.broker.steps import Steps, run_steps
from penstock.metadata.configs.describe import (
    Described,
    describe_broker,
    describe_client_metrics,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
)
from penstock.metadata.configs.settings import ConfigSource
from penstock.metadata.image import ResourceType
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

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

RESOURCE_TYPES = frozenset(ResourceType)


def handle(
    broker: Broker, ctx: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse | Encoded | Awaitable[DescribeConfigsResponse | Encoded]:
    return run_steps(_steps(broker, ctx, request))


def _steps(
    broker: Broker, ctx: RequestContext, request: DescribeConfigsRequest
) -> Steps[DescribeConfigsResponse | Encoded]:
    unknown = [resource.resource_type for resource in request.resources if resource.resource_type not in RESOURCE_TYPES]
    if unknown:
        refusal = KafkaError(ErrorCode.INVALID_REQUEST, f"There is no config resource type {unknown[0]}.")
        return DescribeConfigsResponse(results=[_refused(resource, refusal) for resource in request.resources])
    results = []
    for resource in request.resources:
        results.append(_result(broker, request, resource))
        yield None
    derived = broker.settings.derived
    kept = derived.get(f"answer {_options(request)}")
    if len(results) < MANY or kept is None:
        return DescribeConfigsResponse(results=results)
    if len(results) <= SMALL_ELEMENTS:
        return encode_many(results, kept[1], ctx.api_version, derived)
    disk = broker.logs.environment.disk
    encoded: Encoded = yield disk.run(encode_many, results, kept[1], ctx.api_version, derived)
    return encoded


def _options(request: DescribeConfigsRequest) -> tuple[bool, bool]:
    return request.include_synonyms, request.include_documentation


def _result(
    broker: Broker, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    try:
        described = _describe(broker, resource)
    except KafkaError as error:
        return _refused(resource, error)
    options = _options(request)
    if resource.configuration_keys:
        wanted = set(resource.configuration_keys)
        configs = [_config(config, *options) for config in described if config.name in wanted]
    else:
        configs = _configs(broker, described, options)
    return DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name, configs=configs
    )


def _configs(
    broker: Broker, described: list[Described], options: tuple[bool, bool]
) -> list[DescribeConfigsResourceResult]:
    """In the answer's form; what topics without configs of their own share is put into it once."""
    kept = broker.settings.derived.get(f"answer {options}")
    if kept is not None and kept[0] is described:
        found: list[DescribeConfigsResourceResult] = kept[1]
        return found
    found = [_config(config, *options) for config in described]
    if described is broker.settings.derived.get("topic"):
        broker.settings.derived[f"answer {options}"] = (described, found)
    return found


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
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Loggers are those of one broker: give its id.")
            _check_broker_id(name, broker.node_id, str(broker.node_id))
            source = ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG
            return [Described(logger, level, source, type=0) for logger, level in logger_levels().items()]
        case ResourceType.CLIENT_METRICS:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The subscription has no name: give it one.")
            return describe_client_metrics(image.config(ResourceType.CLIENT_METRICS, name))
        case _:
            if not name:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The group has no name: give it one.")
            return describe_group(image.config(ResourceType.GROUP, name), broker.settings)


def _check_broker_id(name: str, node_id: int, expected: str) -> None:
    try:
        asked = int(name)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"'{name}' is no broker id: give a number.") from None
    if asked != node_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"This broker can't describe broker {name}: give {expected} here, or ask that broker.",
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
