"""Tests the config and quota handlers with a metadata log that commits at once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from time import thread_time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.handlers import (
    api_32_describe_configs,
    api_33_alter_configs,
    api_44_incremental_alter_configs,
    api_48_describe_client_quotas,
    api_49_alter_client_quotas,
    api_50_describe_user_scram_credentials,
    api_74_list_config_resources,
    config_answers,
)
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.encoded_responses import Encoded
from penstock.metadata.apply import apply
from penstock.metadata.configs.settings import Settings
from penstock.metadata.decision import Decision
from penstock.metadata.image import BrokerImage, MetadataImage, ScramImage, TopicImage
from penstock.protocol.codec import decode, encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_33_alter_configs as legacy
from penstock.protocol.messages import api_44_incremental_alter_configs as incremental
from penstock.protocol.messages import api_48_describe_client_quotas as describe_quotas
from penstock.protocol.messages import api_49_alter_client_quotas as alter_quotas
from penstock.protocol.messages.api_32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from penstock.protocol.messages.api_50_describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from penstock.protocol.messages.api_74_list_config_resources import ListConfigResourcesRequest

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2


class MetadataInMemory:
    def __init__(self, image: MetadataImage) -> None:
        self.image = image

    async def submit(self, decide: Callable[[MetadataImage], Decision[Any]]) -> Any:
        decision = decide(self.image)
        self.image = apply(self.image, decision.records)
        return decision.reply


@pytest.fixture
def broker() -> Any:
    topic = TopicImage("t", b"t" * 16, {})
    image = MetadataImage(
        topics={"t": topic},
        topics_by_id={topic.topic_id: topic},
        brokers={1: BrokerImage(1, 1, bytes(16), {})},
    )
    return SimpleNamespace(node_id=1, settings=Settings({"node.id": "1"}), metadata=MetadataInMemory(image))


def context(version: int = 0) -> RequestContext:
    return RequestContext(32, version, 0, "c", cast(Any, None), 0)


def describe(
    broker: Any,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    include_synonyms: bool = False,
    include_documentation: bool = False,
) -> DescribeConfigsResult:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)],
        include_synonyms=include_synonyms,
        include_documentation=include_documentation,
    )
    response = api_32_describe_configs.handle(broker, context(4), request)
    assert isinstance(response, DescribeConfigsResponse)
    assert decode(DescribeConfigsResponse, 4, encode(response, 4)) == response
    [result] = response.results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def alter(
    broker: Any, kind: int, name: str, *ops: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[str, str | None]:
    configs = [incremental.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in ops]
    resource = incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    [reply] = asyncio.run(api_44_incremental_alter_configs.handle(broker, context(1), request)).responses
    return ErrorCode(reply.error_code).name, reply.error_message


def test_describe_configs_returns_an_altered_topic_config(broker: Any) -> None:
    assert alter(broker, TOPIC, "t", ("retention.ms", SET, "5")) == ("NONE", None)
    [config] = describe(broker, TOPIC, "t", ["retention.ms", "nonsense"], include_synonyms=True).configs
    assert (config.name, config.value, config.config_source, config.config_type) == ("retention.ms", "5", 1, 5)
    assert [(each.name, each.value, each.source) for each in config.synonyms] == [("retention.ms", "5", 1)]
    assert config.documentation is None


def test_describe_configs_returns_synonyms_and_documentation_on_request(broker: Any) -> None:
    [config] = describe(broker, TOPIC, "t", ["segment.bytes"]).configs
    assert config.synonyms == []
    [config] = describe(broker, TOPIC, "t", ["segment.bytes"], include_documentation=True).configs
    assert config.documentation


@pytest.mark.parametrize("keys", [None, []])
def test_describe_configs_with_an_empty_list_of_names_returns_all_configs(broker: Any, keys: list[str] | None) -> None:
    assert len(describe(broker, TOPIC, "t", keys).configs) == 34


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "nope", "UNKNOWN_TOPIC_OR_PARTITION", ""),
        (TOPIC, "", "INVALID_TOPIC_EXCEPTION", "No topic can have this name: a name needs at least one character."),
        (
            BROKER,
            "77",
            "INVALID_REQUEST",
            "This broker can't describe broker 77: ask that broker, or ask this broker for 1 or nothing.",
        ),
        (BROKER, "abc", "INVALID_REQUEST", "'abc' is not a broker id: give a number."),
        (LOGGER, "", "INVALID_REQUEST", "Loggers belong to a broker: give the broker's id."),
        (
            LOGGER,
            "77",
            "INVALID_REQUEST",
            "This broker can't describe broker 77: ask that broker, or ask this broker for 1.",
        ),
        (METRICS, "", "INVALID_REQUEST", "The subscription has no name: give a name."),
        (GROUP, "", "INVALID_REQUEST", "The group has no name: give a name."),
    ],
)
def test_describe_configs_refuses_an_invalid_resource(
    broker: Any, kind: int, name: str, code: str, message: str
) -> None:
    result = describe(broker, kind, name)
    assert (ErrorCode(result.error_code).name, result.error_message) == (code, message)
    assert result.configs == []


@pytest.mark.parametrize(("kind", "name"), [(BROKER, "1"), (BROKER, ""), (LOGGER, "1"), (METRICS, "s"), (GROUP, "g")])
def test_describe_configs_describes_brokers_loggers_client_metrics_and_groups(
    broker: Any, kind: int, name: str
) -> None:
    result = describe(broker, kind, name, include_synonyms=True, include_documentation=True)
    assert result.error_code == 0
    assert bool(result.configs) is (name != "")


def test_describe_configs_with_an_unknown_resource_type_is_refused_as_a_whole(broker: Any) -> None:
    resources = [DescribeConfigsResource(resource_type=kind, resource_name="t") for kind in (TOPIC, 99)]
    response = api_32_describe_configs.handle(broker, context(), DescribeConfigsRequest(resources=resources))
    assert isinstance(response, DescribeConfigsResponse)
    assert [result.error_code for result in response.results] == [42, 42]


def answered(broker: Any, version: int, request: DescribeConfigsRequest) -> DescribeConfigsResponse | Encoded:
    """Returns the response to a request that needs several event loop iterations."""

    async def wait() -> DescribeConfigsResponse | Encoded:
        answer = api_32_describe_configs.handle(broker, context(version), request)
        assert isinstance(answer, Awaitable)
        return await answer

    return asyncio.run(wait())


@pytest.mark.parametrize("version", [1, 2, 3, 4])
@pytest.mark.parametrize("extras", [False, True])
def test_describing_many_topics_returns_the_same_results_as_describing_each_alone(
    broker: Any, version: int, extras: bool
) -> None:
    names = [f"t{number}" for number in range(200)]
    broker.metadata.image = MetadataImage(
        topics={name: TopicImage(name, bytes(16), {}) for name in names},
        configs={(TOPIC, "t7"): {"retention.ms": "5"}},
    )
    resources = [DescribeConfigsResource(resource_type=TOPIC, resource_name=name) for name in [*names, "nope"]]
    resources.append(DescribeConfigsResource(resource_type=GROUP, resource_name="g"))
    for resource in resources:
        resource.configuration_keys = None
    resources[3].configuration_keys = ["retention.ms"]
    options = {"include_synonyms": extras, "include_documentation": extras and version >= 3}
    results = []
    for resource in resources:
        one = api_32_describe_configs.handle(
            broker, context(version), DescribeConfigsRequest(resources=[resource], **cast(Any, options))
        )
        assert isinstance(one, DescribeConfigsResponse)
        results += one.results
    expected = encode(DescribeConfigsResponse(results=results), version)
    for _ in range(2):
        many = answered(broker, version, DescribeConfigsRequest(resources=resources, **cast(Any, options)))
        assert isinstance(many, Encoded)
        assert many.body == expected


def test_describe_configs_drops_its_cached_topic_configs_when_a_broker_config_changes(broker: Any) -> None:
    assert len(describe(broker, TOPIC, "t").configs) == 34
    broker.settings.apply_dynamic({"message.max.bytes": "7"}, {})
    shown = {config.name: config.value for config in describe(broker, TOPIC, "t").configs}
    assert shown["max.message.bytes"] == "7"


def test_altered_broker_config_takes_effect_and_is_described_as_dynamic(broker: Any) -> None:
    assert alter(broker, BROKER, "1", ("max.connections", SET, "7"))[0] == "NONE"
    broker.settings.apply_image(broker.metadata.image)
    [config] = describe(broker, BROKER, "1", ["max.connections"]).configs
    assert (config.value, config.config_source, config.read_only) == ("7", 2, False)


def test_alter_configs_handler_replaces_all_configs_of_a_topic(broker: Any) -> None:
    alter(broker, TOPIC, "t", ("retention.ms", SET, "5"))
    resource = legacy.AlterConfigsResource(
        resource_type=TOPIC, resource_name="t", configs=[legacy.AlterableConfig(name="segment.ms", value="9")]
    )
    request = legacy.AlterConfigsRequest(resources=[resource])
    [reply] = asyncio.run(api_33_alter_configs.handle(broker, context(), request)).responses
    assert reply.error_code == 0
    assert broker.metadata.image.topic_config("t") == {"segment.ms": "9"}


# --- loggers --------------------------------------------------------------------------------------


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("penstock.test_of_levels")
    yield found
    found.setLevel(logging.NOTSET)


def level(broker: Any, name: str) -> str | None:
    [config] = describe(broker, LOGGER, "1", [name]).configs
    assert config.config_source == 6
    return config.value


def test_incremental_alter_configs_sets_and_deletes_log_levels(broker: Any, logger: logging.Logger) -> None:
    before = broker.metadata.image
    for name, number in (("DEBUG", 10), ("TRACE", 5), ("FATAL", 50), ("WARN", 30)):
        assert alter(broker, LOGGER, "1", (logger.name, SET, name)) == ("NONE", None)
        assert logger.level == number
        assert level(broker, logger.name) == name
    assert alter(broker, LOGGER, "1", (logger.name, DELETE, None)) == ("NONE", None)
    assert logger.level == logging.NOTSET
    assert broker.metadata.image.configs == before.configs


def test_incremental_alter_configs_with_validate_only_does_not_change_a_log_level(
    broker: Any, logger: logging.Logger
) -> None:
    assert alter(broker, LOGGER, "1", (logger.name, SET, "DEBUG"), validate_only=True) == ("NONE", None)
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize(
    ("node", "op", "code", "message"),
    [
        (
            "1",
            ("root", SET, "NOPE"),
            "INVALID_CONFIG",
            "Logger root can't be set to NOPE: use one of DEBUG, ERROR, FATAL, INFO, TRACE, WARN.",
        ),
        ("1", ("nologger", SET, "INFO"), "INVALID_CONFIG", "There is no logger nologger: check its name."),
        (
            "1",
            ("root", DELETE, None),
            "INVALID_REQUEST",
            "The level of the root logger can't be deleted: set another level.",
        ),
        (
            "1",
            ("root", APPEND, "INFO"),
            "INVALID_REQUEST",
            "APPEND can't be applied to a logger: use SET or DELETE.",
        ),
        (
            "77",
            ("root", SET, "INFO"),
            "INVALID_REQUEST",
            "Loggers of node 77 can't be altered through node 1: send the request to that node.",
        ),
        ("", ("root", SET, "INFO"), "INVALID_REQUEST", "'' is not a node id: give a number."),
    ],
)
def test_incremental_alter_configs_refuses_invalid_log_levels(
    broker: Any, node: str, op: tuple[str, int, str | None], code: str, message: str
) -> None:
    assert alter(broker, LOGGER, node, op) == (code, message)


# --- lists and quotas -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "kinds", "names"),
    [
        (0, [], [("s", METRICS)]),
        (1, [], [("g", GROUP), ("s", METRICS), ("1", LOGGER), ("1", BROKER), ("t", TOPIC)]),
        (1, [TOPIC], [("t", TOPIC)]),
        (1, [TOPIC, METRICS, TOPIC], [("t", TOPIC), ("s", METRICS)]),
        (1, [GROUP], [("g", GROUP)]),
    ],
)
def test_list_config_resources_returns_the_resources_that_have_configs(
    broker: Any, version: int, kinds: list[int], names: list[tuple[str, int]]
) -> None:
    alter(broker, METRICS, "s", ("metrics", SET, "*"))
    alter(broker, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))
    request = ListConfigResourcesRequest(resource_types=kinds)
    response = api_74_list_config_resources.handle(broker, context(version), request)
    assert response.error_code == 0
    assert [(each.resource_name, each.resource_type) for each in response.config_resources] == names


def test_list_config_resources_refuses_an_unknown_resource_type(broker: Any) -> None:
    request = ListConfigResourcesRequest(resource_types=[TOPIC, 99])
    response = api_74_list_config_resources.handle(broker, context(1), request)
    assert (response.error_code, response.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


def test_describe_client_quotas_returns_an_altered_quota(broker: Any) -> None:
    entry = alter_quotas.EntryData(
        entity=[alter_quotas.EntityData(entity_type="user", entity_name=None)],
        ops=[alter_quotas.OpData(key="producer_byte_rate", value=5.0)],
    )
    request = alter_quotas.AlterClientQuotasRequest(entries=[entry])
    [reply] = asyncio.run(api_49_alter_client_quotas.handle(broker, context(), request)).entries
    assert reply.error_code == 0
    shown = api_48_describe_client_quotas.handle(broker, context(), describe_quotas.DescribeClientQuotasRequest())
    assert isinstance(shown, describe_quotas.DescribeClientQuotasResponse)
    assert shown.entries is not None
    [quota] = shown.entries
    assert [(each.key, each.value) for each in quota.values] == [("producer_byte_rate", 5.0)]


def test_describe_client_quotas_with_an_invalid_filter_returns_null_entries(broker: Any) -> None:
    component = describe_quotas.ComponentData(entity_type="user", match_type=9)
    request = describe_quotas.DescribeClientQuotasRequest(components=[component])
    response = api_48_describe_client_quotas.handle(broker, context(), request)
    assert isinstance(response, describe_quotas.DescribeClientQuotasResponse)
    assert (response.error_code, response.entries) == (42, None)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (None, [("alice", 0, [(1, 4096), (2, 8192)])]),
        ([], [("alice", 0, [(1, 4096), (2, 8192)])]),
        (["alice"], [("alice", 0, [(1, 4096), (2, 8192)])]),
        (["bob", "alice"], [("bob", 91, []), ("alice", 0, [(1, 4096), (2, 8192)])]),
        (["alice", "alice"], [("alice", 92, [])]),
    ],
)
def test_describe_user_scram_credentials_does_not_return_the_keys(
    broker: Any, asked: list[str] | None, found: list[Any]
) -> None:
    broker.metadata.image = MetadataImage(
        scram_credentials={
            ("alice", 2): ScramImage(b"salt", b"stored", b"server", 8192),
            ("alice", 1): ScramImage(b"salt", b"stored", b"server", 4096),
        }
    )
    request = DescribeUserScramCredentialsRequest(
        users=None if asked is None else [UserName(name=name) for name in asked]
    )
    response = api_50_describe_user_scram_credentials.handle(broker, context(), request)
    assert [
        (each.user, each.error_code, [(info.mechanism, info.iterations) for info in each.credential_infos])
        for each in response.results
    ] == found


def resources(count: int, kind: int, name: str = "{}") -> list[DescribeConfigsResource]:
    return [
        DescribeConfigsResource(resource_type=kind, resource_name=name.format(number), configuration_keys=None)
        for number in range(count)
    ]


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("version", [1, 4])
def test_configs_of_a_resource_that_a_request_repeats_are_computed_once(
    broker: Any, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    config = api_32_describe_configs._config

    def counted(*args: Any) -> DescribeConfigsResourceResult:
        nonlocal made
        made += 1
        return config(*args)

    monkeypatch.setattr(api_32_describe_configs, "_config", counted)
    request = DescribeConfigsRequest(resources=resources(40, BROKER, "1"), include_synonyms=True)
    request.resources += resources(40, BROKER, "01")
    [one] = (
        cast(Any, api_32_describe_configs)
        .handle(
            broker, context(version), DescribeConfigsRequest(resources=resources(1, BROKER, "1"), include_synonyms=True)
        )
        .results
    )
    started = thread_time()
    answer = api_32_describe_configs.handle(broker, context(version), request)
    assert thread_time() - started < 0.1
    assert isinstance(answer, Encoded)
    results = decode(DescribeConfigsResponse, version, answer.body).results
    assert [result.resource_name for result in results] == ["1"] * 40 + ["01"] * 40
    assert all(len(result.configs) == len(one.configs) for result in results)
    assert made == len(one.configs)


def test_describe_configs_handles_a_bounded_number_of_configs_per_event_loop_iteration(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Describes groups, because every group name has all group configs."""
    made: list[int] = []
    config = api_32_describe_configs._config

    def counted(*args: Any) -> DescribeConfigsResourceResult:
        made[-1] += 1
        return config(*args)

    monkeypatch.setattr(api_32_describe_configs, "_config", counted)

    async def wait() -> Any:
        made.append(0)
        answer = api_32_describe_configs.handle(
            broker, context(4), DescribeConfigsRequest(resources=resources(1_000, GROUP, "g{}"))
        )
        assert isinstance(answer, Awaitable)
        asking = asyncio.ensure_future(answer)
        while not asking.done():
            made.append(0)
            await asyncio.sleep(0)
        return asking.result()

    body = asyncio.run(wait()).body
    results = decode(DescribeConfigsResponse, 4, body).results
    assert [result.resource_name for result in results] == [f"g{number}" for number in range(1_000)]
    assert sum(made) == sum(len(result.configs) for result in results) > 10_000
    assert max(made) <= 2_000


@pytest.mark.parametrize(("kind", "name"), [(BROKER, "1"), (GROUP, "g{}")])
@pytest.mark.parametrize("version", [1, 4])
def test_describe_configs_refuses_resources_that_would_make_the_response_too_large(
    broker: Any, kind: int, name: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_answers, "MAX_ANSWER_BYTES", 200_000)
    request = DescribeConfigsRequest(resources=resources(600, kind, name), include_synonyms=True)
    answer = answered(broker, version, request)
    assert isinstance(answer, Encoded)
    assert 100_000 < len(answer.body) < 200_000 + 600 * 80
    results = decode(DescribeConfigsResponse, version, answer.body).results
    assert [result.resource_name for result in results] == [name.format(number) for number in range(600)]
    codes = [ErrorCode(result.error_code) for result in results]
    fitting = codes.index(ErrorCode.POLICY_VIOLATION)
    assert fitting > 3
    assert codes == [ErrorCode.NONE] * fitting + [ErrorCode.POLICY_VIOLATION] * (600 - fitting)
    assert all(result.configs for result in results[:fitting])
    assert results[-1].error_message == "The response is too large: describe fewer resources at once."
