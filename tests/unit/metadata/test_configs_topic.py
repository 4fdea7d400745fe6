"""Tests topic configs: their table, their typed values, and refused values."""

from dataclasses import fields

import pytest

from penstock.metadata.configs.definition import ConfigError, ConfigType
from penstock.metadata.configs.settings import Settings
from penstock.metadata.configs.topic import (
    TOPIC_CONFIGS,
    TOPIC_SYNONYMS,
    LogConfig,
    validate_topic_configs,
)
from penstock.metadata.image import MetadataImage
from penstock.protocol.vocabulary import ResourceType


def test_log_config_has_a_field_for_every_topic_config_with_its_default() -> None:
    typed = {each.name: getattr(LogConfig(), each.name) for each in fields(LogConfig)}
    table = {
        name.replace(".", "_"): key.default_value()
        for name, key in TOPIC_CONFIGS.items()
        if not name.startswith("internal.")
    }
    table["cleanup_policy"] = frozenset(table["cleanup_policy"])  # type: ignore[arg-type,assignment]
    assert typed == table


@pytest.mark.parametrize(
    ("name", "kind", "default"),
    [
        ("segment.bytes", ConfigType.INT, "1073741824"),
        ("retention.ms", ConfigType.LONG, "604800000"),
        ("max.message.bytes", ConfigType.INT, "1048588"),
        ("cleanup.policy", ConfigType.LIST, "delete"),
        ("compression.type", ConfigType.STRING, "producer"),
        ("message.timestamp.after.max.ms", ConfigType.LONG, "3600000"),
        ("min.cleanable.dirty.ratio", ConfigType.DOUBLE, "0.5"),
        ("penstock.acks.fsync", ConfigType.BOOLEAN, "false"),
    ],
)
def test_topic_configs_have_the_types_and_defaults_of_kafka_4_3(name: str, kind: ConfigType, default: str) -> None:
    assert (TOPIC_CONFIGS[name].type, TOPIC_CONFIGS[name].default) == (kind, default)


def test_every_config_is_documented_and_its_default_is_valid() -> None:
    for key in TOPIC_CONFIGS.values():
        assert key.doc.endswith("."), key.name
        if key.default is not None:
            key.parse(key.default)


def test_topic_config_strings_are_parsed_to_typed_fields() -> None:
    config = LogConfig.from_map(
        {
            "cleanup.policy": "compact , delete",
            "retention.ms": " -1 ",
            "min.cleanable.dirty.ratio": "0.1",
            "preallocate": "True",
            "leader.replication.throttled.replicas": "0:1,1:2",
            "from.a.newer.version": "whatever",
        }
    )
    assert config.cleanup_policy == {"compact", "delete"}
    assert (config.compact, config.delete) == (True, True)
    assert config.retention_ms == -1
    assert config.min_cleanable_dirty_ratio == 0.1
    assert config.preallocate is True
    assert config.leader_replication_throttled_replicas == ("0:1", "1:2")
    assert config.segment_bytes == LogConfig().segment_bytes


def test_internal_segment_bytes_overrides_segment_bytes() -> None:
    assert LogConfig.from_map({"internal.segment.bytes": "100", "segment.bytes": "2000000"}).segment_bytes == 100
    assert LogConfig.from_map({"segment.bytes": "2000000", "internal.segment.bytes": "100"}).segment_bytes == 100


@pytest.mark.parametrize(
    ("values", "before_ack"),
    [
        ({}, False),
        ({"flush.messages": "1"}, True),
        ({"flush.messages": "2"}, False),
        ({"penstock.acks.fsync": "true"}, True),
    ],
)
def test_flush_messages_1_and_acks_fsync_require_fsync_before_the_acknowledgement(
    values: dict[str, str], before_ack: bool
) -> None:
    assert LogConfig.from_map(values).fsync_before_ack is before_ack


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"foo": "x"}, "There is no topic config 'foo': check its spelling."),
        ({"message.format.version": "3.0"}, "There is no topic config 'message.format.version': check its spelling."),
        (
            {"segment.bytes": "5"},
            "segment.bytes can't be '5': give 1048576 or more.",
        ),
        (
            {"compression.gzip.level": "0"},
            "compression.gzip.level can't be '0': give 1 to 9, or -1.",
        ),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
            "min.compaction.lag.ms=10 is above max.compaction.lag.ms=5: lower the first or raise the second.",
        ),
        (
            {"leader.replication.throttled.replicas": "*,1:2"},
            "leader.replication.throttled.replicas can't be '[*, 1:2]': "
            "give * alone or partition:broker pairs, such as 0:1,1:2.",
        ),
    ],
)
def test_topic_configs_that_kafka_refuses_are_refused_with_a_message(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_topic_configs(values)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "values",
    [
        {"cleanup.policy": ""},
        {"cleanup.policy": "delete,delete"},
        {"retention.bytes": "-5"},
        {"leader.replication.throttled.replicas": "*"},
        {"compression.type": " gzip "},
        {"internal.segment.bytes": "5"},
    ],
)
def test_topic_configs_that_kafka_accepts_are_accepted(values: dict[str, str]) -> None:
    validate_topic_configs(values)


def test_topic_config_that_enables_remote_storage_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tiered storage"):
        validate_topic_configs({"remote.storage.enable": "true"})


def test_topic_inherits_configs_from_the_broker_and_may_override_them() -> None:
    settings = Settings({"log.retention.hours": "24", "log.segment.bytes": "2097152", "message.max.bytes": "5000"})
    image = MetadataImage(configs={(ResourceType.TOPIC, "t"): {"max.message.bytes": "7"}})
    config = settings.log_config(image, "t")
    assert (config.retention_ms, config.segment_bytes, config.max_message_bytes) == (86_400_000, 2_097_152, 7)
    assert settings.log_config(image, "other").max_message_bytes == 5000


def test_topics_without_configs_share_one_log_config_object() -> None:
    settings = Settings()
    image = MetadataImage()
    assert settings.log_config(image, "a") is settings.log_config(image, "b")


@pytest.mark.parametrize(
    ("static", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1"}, 60_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1", "log.retention.ms": "1"}, 1),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_most_precise_retention_property_overrides_the_other_retention_properties(
    static: dict[str, str], retention_ms: int
) -> None:
    assert Settings(static).log_defaults().retention_ms == retention_ms


def test_topic_config_and_the_broker_property_behind_it_have_the_same_default() -> None:
    defaults = Settings().topic_defaults()
    assert {name: TOPIC_CONFIGS[name].default for name in TOPIC_SYNONYMS} == defaults
