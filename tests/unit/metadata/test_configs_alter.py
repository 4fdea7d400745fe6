"""Tests the decisions on AlterConfigs and IncrementalAlterConfigs. Each refusal was first seen on Apache Kafka 4.3."""

from collections.abc import Mapping

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.settings import Settings
from penstock.metadata.controller import configs
from penstock.metadata.controller.configs import (
    alter_configs,
    incremental_alter_configs,
    own_refusal,
    refused_resources,
)
from penstock.metadata.decision import MAX_RECORDS_PER_REQUEST
from penstock.metadata.image import MetadataImage, TopicImage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_33_alter_configs as legacy
from penstock.protocol.messages import api_44_incremental_alter_configs as incremental
from penstock.protocol.vocabulary import ResourceType

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SETTINGS = Settings({"node.id": "1"})
Op = tuple[str, int, str | None]


def image_with(configs: dict[tuple[int, str], dict[str, str]] | None = None, **features: int) -> MetadataImage:
    topic = TopicImage("t", b"t" * 16, {})
    return MetadataImage(
        topics={"t": topic},
        topics_by_id={topic.topic_id: topic},
        configs=configs or {},
        features={name.replace("_", "."): level for name, level in features.items()},
    )


def change(
    image: MetadataImage, kind: int, name: str, *ops: Op, validate_only: bool = False
) -> tuple[str, str | None, MetadataImage]:
    """Returns the error's name and message, and the image after the change."""
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    incremental.AlterableConfig(name=config, config_operation=op, value=value)
                    for config, op, value in ops
                ],
            )
        ],
        validate_only=validate_only,
    )
    decision = incremental_alter_configs(image, request, SETTINGS, refused_resources(request.resources))
    [reply] = decision.reply.responses
    assert (reply.resource_type, reply.resource_name) == (kind, name)
    return ErrorCode(reply.error_code).name, reply.error_message, apply(image, decision.records)


def replace(
    image: MetadataImage, kind: int, name: str, *configs: tuple[str, str | None], validate_only: bool = False
) -> tuple[str, str | None, MetadataImage]:
    request = legacy.AlterConfigsRequest(
        resources=[
            legacy.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[legacy.AlterableConfig(name=config, value=value) for config, value in configs],
            )
        ],
        validate_only=validate_only,
    )
    decision = alter_configs(image, request, SETTINGS)
    [reply] = decision.reply.responses
    return ErrorCode(reply.error_code).name, reply.error_message, apply(image, decision.records)


def test_topic_config_can_be_set_and_changed_and_deleted() -> None:
    image = image_with()
    for value in ("100", "200"):
        code, message, image = change(image, TOPIC, "t", ("retention.ms", SET, value))
        assert (code, message) == ("NONE", None)
        assert image.topic_config("t") == {"retention.ms": value}
    _, _, image = change(image, TOPIC, "t", ("retention.ms", DELETE, None))
    assert image.topic_config("t") == {}


def test_an_unchanged_topic_config_writes_no_record() -> None:
    image = image_with({(TOPIC, "t"): {"retention.ms": "100"}})
    for op in (("retention.ms", SET, "100"), ("foo", DELETE, None), ("segment.ms", DELETE, None)):
        code, _, after = change(image, TOPIC, "t", op)
        assert code == "NONE"
        assert after.version == image.version or after.configs == image.configs


def test_broker_setting_is_written_even_if_unchanged_so_that_the_broker_reloads_it() -> None:
    image = image_with({(BROKER, "1"): {"max.connections": "5"}})
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=BROKER,
                resource_name="1",
                configs=[incremental.AlterableConfig(name="max.connections", config_operation=SET, value="5")],
            )
        ]
    )
    assert len(incremental_alter_configs(image, request, SETTINGS, {}).records) == 1


def test_append_starts_from_the_default_list_and_subtract_can_remove_the_last_item() -> None:
    image = image_with()
    for op, operand, value in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact,delete", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "zzz", "compact"),
        (SUBTRACT, "compact", ""),
    ):
        code, _, image = change(image, TOPIC, "t", ("cleanup.policy", op, operand))
        assert code == "NONE"
        assert image.topic_config("t") == {"cleanup.policy": value}


def test_all_config_changes_of_a_resource_are_refused_if_one_change_is_invalid() -> None:
    image = image_with()
    code, _, after = change(image, TOPIC, "t", ("max.message.bytes", SET, "1"), ("foo", SET, "5"))
    assert code == "INVALID_CONFIG"
    assert after.topic_config("t") == {}


def test_max_connections_per_ip_of_0_is_refused_without_overrides_for_single_hosts() -> None:
    limit = ("max.connections.per.ip", SET, "0")
    code, message, image = change(image_with(), BROKER, "", limit)
    assert (code, image.configs) == ("INVALID_REQUEST", {})
    assert "max.connections.per.ip.overrides" in str(message)
    code, _, _ = change(image_with(), BROKER, "", limit, ("max.connections.per.ip.overrides", SET, "127.0.0.1:100"))
    assert code == "NONE"


def test_validate_only_config_request_changes_no_config() -> None:
    image = image_with()
    assert change(image, TOPIC, "t", ("retention.ms", SET, "1"), validate_only=True)[2].configs == {}
    assert change(image, TOPIC, "t", ("retention.ms", SET, "x"), validate_only=True)[0] == "INVALID_CONFIG"
    assert replace(image, TOPIC, "t", ("retention.ms", "1"), validate_only=True)[2].configs == {}


@pytest.mark.parametrize(
    ("kind", "name", "ops", "code", "message"),
    [
        (TOPIC, "t", [("foo", SET, "x")], "INVALID_CONFIG", "There is no topic config 'foo': check its spelling."),
        (
            TOPIC,
            "t",
            [("retention.ms", APPEND, "1")],
            "INVALID_CONFIG",
            "retention.ms takes no APPEND, because it is not a list config of a topic or broker: use SET.",
        ),
        (
            TOPIC,
            "t",
            [("foo", SUBTRACT, "1")],
            "INVALID_CONFIG",
            "foo takes no SUBTRACT, because it is not a list config of a topic or broker: use SET.",
        ),
        (
            TOPIC,
            "t",
            [("a", SET, None), ("b", APPEND, None)],
            "INVALID_REQUEST",
            "No value is given for a, b: give a value, or delete the config.",
        ),
        (
            TOPIC,
            "t",
            [("a", SET, "1"), ("a", SET, "2")],
            "INVALID_REQUEST",
            "The request contains a config key twice: give each key once.",
        ),
        (
            TOPIC,
            "t",
            [("retention.ms", 9, "1")],
            "INVALID_REQUEST",
            "9 is not an operation on retention.ms: use 0 (SET), 1 (DELETE), 2 (APPEND) or 3 (SUBTRACT).",
        ),
        (
            TOPIC,
            "nope",
            [("retention.ms", SET, "5")],
            "UNKNOWN_TOPIC_OR_PARTITION",
            "There is no topic 'nope': check the name.",
        ),
        (
            TOPIC,
            "",
            [("retention.ms", SET, "5")],
            "INVALID_REQUEST",
            "Topics have no shared configs to alter: name one topic.",
        ),
        (
            TOPIC,
            "..",
            [("retention.ms", SET, "5")],
            "INVALID_TOPIC_EXCEPTION",
            "No topic can have this name: '..' has a special meaning in file systems.",
        ),
        (99, "x", [("a", SET, "b")], "INVALID_REQUEST", "Resource type 99 has no configs to alter: check the type."),
        (
            BROKER,
            "77",
            [("max.connections", SET, "5")],
            "INVALID_REQUEST",
            "There is no broker 77: check the node id.",
        ),
        (
            BROKER,
            "abc",
            [("max.connections", SET, "5")],
            "INVALID_REQUEST",
            "'abc' is not a node id: give a number.",
        ),
        (
            BROKER,
            "1",
            [("node.id", SET, "5")],
            "INVALID_REQUEST",
            "A running broker can't change [node.id]: set them in its properties file and restart it.",
        ),
        (
            BROKER,
            "",
            [("compression.type", SET, "zip")],
            "INVALID_REQUEST",
            "compression.type can't be 'zip': use one of uncompressed, zstd, lz4, snappy, gzip, producer.",
        ),
        (
            BROKER,
            "1",
            [("message.max.bytes", APPEND, "2")],
            "INVALID_CONFIG",
            "Broker property message.max.bytes is not a list and takes no APPEND: use SET.",
        ),
        (
            BROKER,
            "1",
            [("nope.x", APPEND, "a")],
            "INVALID_CONFIG",
            "There is no broker property 'nope.x': check its spelling.",
        ),
        (
            METRICS,
            "s",
            [("interval.ms", SET, "5")],
            "INVALID_REQUEST",
            "interval.ms can't be '5': give a number from 100 to 3600000.",
        ),
        (
            METRICS,
            "s",
            [("interval.ms", SET, "x")],
            "INVALID_CONFIG",
            "interval.ms can't be 'x': write a whole number that fits INT.",
        ),
        (
            METRICS,
            "s",
            [("foo", SET, "5")],
            "INVALID_REQUEST",
            "There is no client metrics config 'foo': check its spelling.",
        ),
        (
            METRICS,
            "s",
            [("match", SET, "client_id=[")],
            "INVALID_CONFIG",
            "'client_id=[' is not a client match: The regular expression '[' is not valid: it ends too early at"
            " position 1.",
        ),
        (METRICS, "", [("interval.ms", SET, "1000")], "INVALID_REQUEST", "The subscription has no name: give a name."),
        (
            METRICS,
            "s",
            [("metrics", APPEND, "a")],
            "INVALID_CONFIG",
            "metrics takes no APPEND, because it is not a list config of a topic or broker: use SET.",
        ),
        (
            GROUP,
            "g",
            [("consumer.session.timeout.ms", SET, "5")],
            "INVALID_CONFIG",
            "consumer.session.timeout.ms can't be 5: group.consumer.min.session.timeout.ms requires 45000 or more.",
        ),
        (GROUP, "g", [("foo", SET, "5")], "INVALID_CONFIG", "There is no group config 'foo': check its spelling."),
        (
            GROUP,
            "",
            [("consumer.session.timeout.ms", SET, "50000")],
            "INVALID_REQUEST",
            "Groups have no shared configs to alter: name one group.",
        ),
    ],
)
def test_refused_config_change_gets_an_error_code_and_a_message(
    kind: int, name: str, ops: list[Op], code: str, message: str
) -> None:
    image = image_with()
    got, why, after = change(image, kind, name, *ops)
    assert (got, why) == (code, message)
    assert after.configs == {}


@pytest.mark.parametrize(
    ("kind", "name", "config", "value"),
    [
        (BROKER, "1", "max.connections", "5"),
        (BROKER, "", "log.retention.ms", "5"),
        (BROKER, "", "no.such.property", "x"),
        (METRICS, "s", "metrics", "*"),
        (GROUP, "g", "consumer.session.timeout.ms", "50000"),
        (TOPIC, "t", "penstock.acks.fsync", "true"),
    ],
)
def test_configs_of_every_resource_type_are_stored(kind: int, name: str, config: str, value: str) -> None:
    code, _, image = change(image_with(), kind, name, (config, SET, value))
    assert code == "NONE"
    assert image.config(kind, name) == {config: value}


def test_config_request_that_names_a_resource_twice_gets_an_error_for_both_entries() -> None:
    resource = incremental.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[])
    other = incremental.AlterConfigsResource(resource_type=GROUP, resource_name="t", configs=[])
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource, other, resource])
    decision = incremental_alter_configs(image_with(), request, SETTINGS, refused_resources(request.resources))
    assert [each.error_code for each in decision.reply.responses] == [42, 0, 42]


def test_patterns_beyond_the_work_limit_of_a_config_request_are_refused_with_invalid_config() -> None:
    match = incremental.AlterableConfig(name="match", config_operation=SET, value="client_id=" + "a" * 900)
    resources = [
        incremental.AlterConfigsResource(resource_type=METRICS, resource_name=f"s{number}", configs=[match])
        for number in range(100)
    ]
    request = incremental.IncrementalAlterConfigsRequest(resources=resources)
    decision = incremental_alter_configs(image_with(), request, SETTINGS, refused_resources(request.resources))
    codes = [ErrorCode(each.error_code) for each in decision.reply.responses]
    assert codes == [ErrorCode.NONE] * 3 + [ErrorCode.INVALID_CONFIG] * 97


def test_alter_configs_deletes_configs_that_are_not_given() -> None:
    image = image_with({(TOPIC, "t"): {"retention.ms": "1", "segment.ms": "2"}})
    code, _, image = replace(image, TOPIC, "t", ("retention.ms", "3"))
    assert code == "NONE"
    assert image.topic_config("t") == {"retention.ms": "3"}
    assert replace(image, TOPIC, "t")[2].topic_config("t") == {}


@pytest.mark.parametrize(
    ("kind", "name", "configs", "code"),
    [
        (TOPIC, "t", [("segment.bytes", None)], "INVALID_REQUEST"),
        (TOPIC, "t", [("a", "1"), ("a", "2")], "INVALID_REQUEST"),
        (TOPIC, "nope", [("retention.ms", "1")], "UNKNOWN_TOPIC_OR_PARTITION"),
        (TOPIC, "t", [("foo", "1")], "INVALID_CONFIG"),
        (BROKER, "1", [("node.id", "1")], "INVALID_REQUEST"),
        (LOGGER, "1", [("root", "INFO")], "INVALID_REQUEST"),
    ],
)
def test_alter_configs_refuses_invalid_changes_with_an_error_code(
    kind: int, name: str, configs: list[tuple[str, str | None]], code: str
) -> None:
    assert replace(image_with(), kind, name, *configs)[0] == code


def test_min_insync_replicas_of_one_broker_cannot_be_set_if_the_elr_feature_is_enabled() -> None:
    elr = image_with({(BROKER, ""): {"min.insync.replicas": "1"}}, eligible_leader_replicas_version=1)
    assert change(elr, BROKER, "1", ("min.insync.replicas", SET, "2"))[0] == "INVALID_CONFIG"
    assert change(elr, BROKER, "", ("min.insync.replicas", DELETE, None))[0] == "INVALID_CONFIG"
    assert change(elr, BROKER, "", ("min.insync.replicas", SET, "2"))[0] == "NONE"
    assert change(image_with(), BROKER, "1", ("min.insync.replicas", SET, "2"))[0] == "NONE"


@pytest.mark.parametrize(
    ("count", "code"), [(MAX_RECORDS_PER_REQUEST, "NONE"), (MAX_RECORDS_PER_REQUEST + 1, "POLICY_VIOLATION")]
)
def test_number_of_records_of_one_config_request_is_bounded(count: int, code: str) -> None:
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=BROKER,
                resource_name="",
                configs=[
                    incremental.AlterableConfig(name=f"plugin.{number}", config_operation=SET, value="x")
                    for number in range(count)
                ],
            ),
            incremental.AlterConfigsResource(resource_type=99, resource_name="", configs=[]),
        ]
    )
    decision = incremental_alter_configs(image_with(), request, SETTINGS, {})
    assert len(decision.records) == (count if code == "NONE" else 0)
    codes = [ErrorCode(each.error_code).name for each in decision.reply.responses]
    assert codes == [code, "INVALID_REQUEST"]


def test_number_of_records_of_one_alter_configs_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configs, "MAX_RECORDS_PER_REQUEST", 1)
    assert replace(image_with(), BROKER, "", ("plugin.a", "x"))[0] == "NONE"
    code, _, image = replace(image_with(), BROKER, "", ("plugin.a", "x"), ("plugin.b", "x"))
    assert (code, image.configs) == ("POLICY_VIOLATION", {})


def test_append_and_subtract_operations_apply_every_item_of_the_given_list() -> None:
    _, _, image = change(image_with(), TOPIC, "t", ("cleanup.policy", SET, "delete"))
    _, _, image = change(image, TOPIC, "t", ("cleanup.policy", SUBTRACT, "compact,delete"))
    assert image.configs[TOPIC, "t"]["cleanup.policy"] == ""
    _, _, image = change(image, TOPIC, "t", ("cleanup.policy", APPEND, "delete,compact"))
    assert image.configs[TOPIC, "t"]["cleanup.policy"] == "delete,compact"


# --- configs of this broker that only this broker can check ----------------------------------------


def refused(settings: Settings, *ops: Op, name: str = "1", kind: int = BROKER) -> str | None:
    """Returns the reason why broker 1 can't use these changes of a resource; None if it can."""
    configs = [incremental.AlterableConfig(name=config, config_operation=op, value=value) for config, op, value in ops]
    resource = incremental.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    refusal = own_refusal(resource, settings)
    return refusal.message if refusal is not None else None


def test_broker_cordons_only_its_own_directories() -> None:
    settings = Settings({"node.id": "1", "log.dirs": "/a,/b"})
    elsewhere = ("cordoned.log.dirs", SET, "/elsewhere")
    assert "/elsewhere is not one of log.dirs" in str(refused(settings, elsewhere))
    assert refused(settings, ("num.io.threads", SET, "3"), elsewhere)
    assert refused(settings, ("cordoned.log.dirs", APPEND, "/elsewhere"))
    assert refused(settings, ("cordoned.log.dirs", SET, "/a,/b")) is None
    assert refused(settings, ("cordoned.log.dirs", SUBTRACT, "/elsewhere")) is None
    assert refused(settings, ("cordoned.log.dirs", DELETE, "/elsewhere")) is None
    assert refused(settings, ("log.cleaner.threads", SET, "/elsewhere")) is None
    assert refused(settings, elsewhere, name="2") is None
    assert refused(settings, elsewhere, kind=TOPIC) is None


def test_broker_checks_changed_listener_configs_together_with_unchanged_listener_configs() -> None:
    seen: list[dict[str, str]] = []

    def check_own(own: Mapping[str, str]) -> None:
        seen.append(dict(own))
        if own.get("listener.name.a.ssl.keystore.location") == "/bad":
            raise ConfigError("the key store can't be read: check the path")

    settings = Settings({"node.id": "1"})
    location, kept = "listener.name.a.ssl.keystore.location", "listener.name.a.ssl.keystore.type"
    assert refused(settings, (location, SET, "/bad")) is None
    settings.apply_dynamic({}, {location: "/old", kept: "PEM"})
    settings.check_own = check_own
    assert refused(settings, ("num.io.threads", SET, "3")) is None
    assert seen == []
    assert refused(settings, (location, SET, "/new")) is None
    assert refused(settings, (location, DELETE, "/ignored")) is None
    assert refused(settings, (location, SET, None)) is None
    assert "can't be read" in str(refused(settings, ("num.io.threads", SET, "3"), (location, SET, "/bad")))
    assert seen == [
        {location: "/new", kept: "PEM"},
        {kept: "PEM"},
        {location: "/old", kept: "PEM"},
        {location: "/bad", kept: "PEM", "num.io.threads": "3"},
    ]


def test_protocol_and_metadata_image_use_the_same_numbers_for_resource_types() -> None:
    assert tuple(ResourceType) == (TOPIC, BROKER, LOGGER, METRICS, GROUP)
