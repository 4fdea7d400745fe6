"""AlterConfigs and IncrementalAlterConfigs as decisions: every refusal was first seen on Apache Kafka 4.3."""

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.configs.settings import Settings
from penstock.metadata.controller.configs import alter_configs, incremental_alter_configs, refused_resources
from penstock.metadata.image import MetadataImage, ResourceType, TopicImage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_33_alter_configs as legacy
from penstock.protocol.messages import api_44_incremental_alter_configs as incremental

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
    """The error's name and message, and the image afterwards."""
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


def test_a_config_is_set_changed_and_deleted() -> None:
    image = image_with()
    for value in ("100", "200"):
        code, message, image = change(image, TOPIC, "t", ("retention.ms", SET, value))
        assert (code, message) == ("NONE", None)
        assert image.topic_config("t") == {"retention.ms": value}
    _, _, image = change(image, TOPIC, "t", ("retention.ms", DELETE, None))
    assert image.topic_config("t") == {}


def test_what_does_not_change_a_topic_writes_no_record() -> None:
    image = image_with({(TOPIC, "t"): {"retention.ms": "100"}})
    for op in (("retention.ms", SET, "100"), ("foo", DELETE, None), ("segment.ms", DELETE, None)):
        code, _, after = change(image, TOPIC, "t", op)
        assert code == "NONE"
        assert after.version == image.version or after.configs == image.configs


def test_a_brokers_setting_is_written_again_so_that_it_reloads() -> None:
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


def test_lists_grow_from_their_default_and_shrink_to_nothing() -> None:
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


def test_a_resource_changes_whole_or_not_at_all() -> None:
    image = image_with()
    code, _, after = change(image, TOPIC, "t", ("max.message.bytes", SET, "1"), ("foo", SET, "5"))
    assert code == "INVALID_CONFIG"
    assert after.topic_config("t") == {}


def test_validating_changes_nothing() -> None:
    image = image_with()
    assert change(image, TOPIC, "t", ("retention.ms", SET, "1"), validate_only=True)[2].configs == {}
    assert change(image, TOPIC, "t", ("retention.ms", SET, "x"), validate_only=True)[0] == "INVALID_CONFIG"
    assert replace(image, TOPIC, "t", ("retention.ms", "1"), validate_only=True)[2].configs == {}


@pytest.mark.parametrize(
    ("kind", "name", "ops", "code", "message"),
    [
        (TOPIC, "t", [("foo", SET, "x")], "INVALID_CONFIG", "Unknown topic config name: foo"),
        (
            TOPIC,
            "t",
            [("retention.ms", APPEND, "1")],
            "INVALID_CONFIG",
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (
            TOPIC,
            "t",
            [("foo", SUBTRACT, "1")],
            "INVALID_CONFIG",
            "Can't SUBTRACT to key foo because its type is not LIST.",
        ),
        (TOPIC, "t", [("a", SET, None), ("b", APPEND, None)], "INVALID_REQUEST", "Null value not supported for : a, b"),
        (TOPIC, "t", [("a", SET, "1"), ("a", SET, "2")], "INVALID_REQUEST", "Error due to duplicate config keys"),
        (TOPIC, "t", [("retention.ms", 9, "1")], "INVALID_REQUEST", "Unknown operations type 9"),
        (
            TOPIC,
            "nope",
            [("retention.ms", SET, "5")],
            "UNKNOWN_TOPIC_OR_PARTITION",
            "The topic 'nope' does not exist.",
        ),
        (TOPIC, "", [("retention.ms", SET, "5")], "INVALID_REQUEST", "Default topic resources are not allowed."),
        (
            TOPIC,
            "..",
            [("retention.ms", SET, "5")],
            "INVALID_TOPIC_EXCEPTION",
            "Topic name is invalid: '..' is not allowed",
        ),
        (99, "x", [("a", SET, "b")], "INVALID_REQUEST", "Unknown resource type 99"),
        (
            BROKER,
            "77",
            [("max.connections", SET, "5")],
            "INVALID_REQUEST",
            "Unexpected broker id, expected 1, but received 77",
        ),
        (
            BROKER,
            "abc",
            [("max.connections", SET, "5")],
            "INVALID_REQUEST",
            "Node id must be an integer, but it is: abc",
        ),
        (
            BROKER,
            "1",
            [("node.id", SET, "5")],
            "INVALID_REQUEST",
            "Cannot update these configs dynamically: [node.id]",
        ),
        (
            BROKER,
            "",
            [("compression.type", SET, "zip")],
            "INVALID_REQUEST",
            "Invalid value zip for configuration compression.type: "
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            BROKER,
            "1",
            [("message.max.bytes", APPEND, "2")],
            "INVALID_CONFIG",
            "Config value append is not allowed for config key: message.max.bytes",
        ),
        (BROKER, "1", [("nope.x", APPEND, "a")], "INVALID_CONFIG", "Unknown config name: nope.x"),
        (
            METRICS,
            "s",
            [("interval.ms", SET, "5")],
            "INVALID_REQUEST",
            "Invalid value 5 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        ),
        (
            METRICS,
            "s",
            [("interval.ms", SET, "x")],
            "INVALID_CONFIG",
            "Invalid value x for configuration interval.ms: Not a number of type INT",
        ),
        (METRICS, "s", [("foo", SET, "5")], "INVALID_REQUEST", "Unknown client metrics configuration: foo"),
        (
            METRICS,
            "s",
            [("match", SET, "client_id=[")],
            "INVALID_CONFIG",
            "Illegal client matching pattern: client_id=[",
        ),
        (METRICS, "", [("interval.ms", SET, "1000")], "INVALID_REQUEST", "Subscription name can't be empty"),
        (
            METRICS,
            "s",
            [("metrics", APPEND, "a")],
            "INVALID_CONFIG",
            "Can't APPEND to key metrics because its type is not LIST.",
        ),
        (
            GROUP,
            "g",
            [("consumer.session.timeout.ms", SET, "5")],
            "INVALID_CONFIG",
            "consumer.session.timeout.ms must be greater than or equal to group.consumer.min.session.timeout.ms",
        ),
        (GROUP, "g", [("foo", SET, "5")], "INVALID_CONFIG", "Unknown group config name: foo"),
        (
            GROUP,
            "",
            [("consumer.session.timeout.ms", SET, "50000")],
            "INVALID_REQUEST",
            "Default group resources are not allowed.",
        ),
    ],
)
def test_what_is_refused_is_refused_as_kafka_does(kind: int, name: str, ops: list[Op], code: str, message: str) -> None:
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
def test_every_kind_of_resource_keeps_what_it_is_given(kind: int, name: str, config: str, value: str) -> None:
    code, _, image = change(image_with(), kind, name, (config, SET, value))
    assert code == "NONE"
    assert image.config(kind, name) == {config: value}


def test_a_resource_given_twice_is_refused_twice() -> None:
    resource = incremental.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[])
    other = incremental.AlterConfigsResource(resource_type=GROUP, resource_name="t", configs=[])
    request = incremental.IncrementalAlterConfigsRequest(resources=[resource, other, resource])
    decision = incremental_alter_configs(image_with(), request, SETTINGS, refused_resources(request.resources))
    assert [each.error_code for each in decision.reply.responses] == [42, 0, 42]


def test_the_old_way_drops_what_is_not_given() -> None:
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
def test_the_old_way_refuses_the_same(kind: int, name: str, configs: list[tuple[str, str | None]], code: str) -> None:
    assert replace(image_with(), kind, name, *configs)[0] == code


def test_min_isr_stays_one_value_for_the_cluster_while_the_controller_relies_on_it() -> None:
    elr = image_with({(BROKER, ""): {"min.insync.replicas": "1"}}, eligible_leader_replicas_version=1)
    assert change(elr, BROKER, "1", ("min.insync.replicas", SET, "2"))[0] == "INVALID_CONFIG"
    assert change(elr, BROKER, "", ("min.insync.replicas", DELETE, None))[0] == "INVALID_CONFIG"
    assert change(elr, BROKER, "", ("min.insync.replicas", SET, "2"))[0] == "NONE"
    assert change(image_with(), BROKER, "1", ("min.insync.replicas", SET, "2"))[0] == "NONE"


def test_one_request_can_not_write_without_bound() -> None:
    request = incremental.IncrementalAlterConfigsRequest(
        resources=[
            incremental.AlterConfigsResource(
                resource_type=BROKER,
                resource_name="",
                configs=[
                    incremental.AlterableConfig(name=f"plugin.{number}", config_operation=SET, value="x")
                    for number in range(10_001)
                ],
            ),
            incremental.AlterConfigsResource(resource_type=99, resource_name="", configs=[]),
        ]
    )
    decision = incremental_alter_configs(image_with(), request, SETTINGS, {})
    assert decision.records == []
    codes = [ErrorCode(each.error_code).name for each in decision.reply.responses]
    assert codes == ["POLICY_VIOLATION", "INVALID_REQUEST"]


def test_resource_types_are_those_of_the_image() -> None:
    assert tuple(ResourceType) == (TOPIC, BROKER, LOGGER, METRICS, GROUP)
