"""Tests the rows of DescribeConfigs. Each case was first observed on Apache Kafka 4.3."""

import pytest

from penstock.metadata.configs.describe import (
    Described,
    created_topic_configs,
    describe_broker,
    describe_client_metrics,
    describe_cluster_defaults,
    describe_group,
    describe_topic,
)
from penstock.metadata.configs.settings import ConfigSource, Settings

TOPIC, DYNAMIC, CLUSTER, STATIC, DEFAULT, METRICS, GROUP = 1, 2, 3, 4, 5, 7, 8


def found(described: list[Described], name: str) -> tuple[str | None, int, list[tuple[str, str | None, int]]]:
    config = next(each for each in described if each.name == name)
    return config.value, config.source, [(each.name, each.value, each.source) for each in config.synonyms]


@pytest.fixture
def settings() -> Settings:
    return Settings(
        {
            "node.id": "1",
            "log.retention.hours": "24",
            "log.segment.bytes": "2097152",
            "ssl.key.password": "secret",
            "foo.bar": "baz",
        }
    )


def test_described_topic_configs_have_the_source_of_each_value(settings: Settings) -> None:
    shown = describe_topic({"cleanup.policy": "delete , compact"}, settings)
    assert found(shown, "segment.bytes") == (
        "2097152",
        STATIC,
        [("log.segment.bytes", "2097152", STATIC), ("log.segment.bytes", "1073741824", DEFAULT)],
    )
    assert found(shown, "cleanup.policy") == (
        "delete,compact",
        TOPIC,
        [("cleanup.policy", "delete,compact", TOPIC), ("log.cleanup.policy", "delete", DEFAULT)],
    )
    assert found(shown, "leader.replication.throttled.replicas") == ("", DEFAULT, [])
    assert found(shown, "flush.ms") == ("9223372036854775807", DEFAULT, [])


def test_log_retention_hours_of_the_file_is_described_as_default_retention_ms_of_topics(settings: Settings) -> None:
    assert found(describe_topic({}, settings), "retention.ms") == ("86400000", DEFAULT, [])
    settings.apply_dynamic({"log.retention.ms": "3600000"}, {})
    assert found(describe_topic({"retention.ms": " 5 "}, settings), "retention.ms") == (
        "5",
        TOPIC,
        [
            ("retention.ms", "5", TOPIC),
            ("log.retention.ms", "3600000", CLUSTER),
            ("log.retention.hours", "24", STATIC),
            ("log.retention.hours", "168", DEFAULT),
        ],
    )


def test_internal_configs_are_shown_only_if_they_are_set(settings: Settings) -> None:
    names = {each.name for each in describe_topic({}, settings)}
    assert "internal.segment.bytes" not in names
    shown = describe_topic({"internal.segment.bytes": "5"}, settings)
    assert found(shown, "internal.segment.bytes") == ("5", TOPIC, [("internal.segment.bytes", "5", TOPIC)])


def test_every_described_config_has_a_type_and_documentation(settings: Settings) -> None:
    for config in [*describe_topic({}, settings), *describe_group({}, settings), *describe_client_metrics({})]:
        assert config.type
        assert config.documentation
        assert not config.read_only
        assert not config.sensitive


def test_a_broker_shows_all_properties_and_hides_secrets(settings: Settings) -> None:
    shown = {each.name: each for each in describe_broker(settings)}
    assert len(shown) == 341
    assert (shown["log.retention.hours"].value, shown["log.retention.hours"].read_only) == ("24", True)
    assert (shown["log.retention.ms"].value, shown["log.retention.ms"].read_only) == (None, False)
    secret = shown["ssl.key.password"]
    assert (secret.value, secret.sensitive, secret.type) == (None, True, 9)
    assert [each.value for each in secret.synonyms] == [None]
    unknown = shown["foo.bar"]
    assert (unknown.value, unknown.sensitive, unknown.type, unknown.read_only) == (None, True, 0, True)
    assert unknown.source == STATIC
    assert "unstable.api.versions.enable" not in shown


def test_described_broker_config_lists_dynamic_values_before_static_values(settings: Settings) -> None:
    settings.apply_dynamic({"num.io.threads": "16", "leader.replication.throttled.rate": "7"}, {"num.io.threads": "4"})
    assert found(describe_broker(settings), "num.io.threads") == (
        "4",
        DYNAMIC,
        [("num.io.threads", "4", DYNAMIC), ("num.io.threads", "16", CLUSTER), ("num.io.threads", "8", DEFAULT)],
    )
    rate = found(describe_broker(settings), "leader.replication.throttled.rate")
    assert rate == ("7", CLUSTER, [("leader.replication.throttled.rate", "7", CLUSTER)])


def test_dynamic_config_equal_to_the_default_value_is_described_as_dynamic(settings: Settings) -> None:
    def source() -> ConfigSource:
        (found,) = [each for each in describe_broker(settings) if each.name == "log.cleaner.threads"]
        return found.source

    assert source() is ConfigSource.DEFAULT_CONFIG
    settings.apply_dynamic({}, {"log.cleaner.threads": "1"})
    assert source() is ConfigSource.DYNAMIC_BROKER_CONFIG
    assert describe_broker(settings) is describe_broker(settings)  # computed once, as it takes milliseconds
    settings.apply_dynamic({}, {})
    assert source() is ConfigSource.DEFAULT_CONFIG


def test_description_of_the_cluster_defaults_contains_only_cluster_wide_configs(settings: Settings) -> None:
    assert describe_cluster_defaults(settings) == []
    settings.apply_dynamic({"num.io.threads": "16", "foo.baz": "1"}, {"num.io.threads": "4"})
    shown = describe_cluster_defaults(settings)
    assert found(shown, "num.io.threads") == ("16", CLUSTER, [("num.io.threads", "16", CLUSTER)])
    assert found(shown, "foo.baz") == (None, CLUSTER, [("foo.baz", None, CLUSTER)])


def test_group_config_that_is_not_set_has_the_value_of_the_broker() -> None:
    settings = Settings({"group.consumer.heartbeat.interval.ms": "6000"})
    shown = describe_group(
        {"consumer.session.timeout.ms": "50000", "share.isolation.level": "read_committed"}, settings
    )
    assert len([each for each in shown if not each.name.startswith("penstock.")]) == 17
    assert found(shown, "consumer.session.timeout.ms") == (
        "50000",
        GROUP,
        [("consumer.session.timeout.ms", "50000", GROUP), ("group.consumer.session.timeout.ms", "45000", DEFAULT)],
    )
    assert found(shown, "consumer.heartbeat.interval.ms") == (
        "6000",
        STATIC,
        [
            ("group.consumer.heartbeat.interval.ms", "6000", STATIC),
            ("group.consumer.heartbeat.interval.ms", "5000", DEFAULT),
        ],
    )
    assert found(shown, "share.isolation.level") == (
        "read_committed",
        GROUP,
        [
            ("share.isolation.level", "read_committed", GROUP),
            ("share.isolation.level", "read_uncommitted", DEFAULT),
        ],
    )


def test_description_of_a_client_metrics_subscription_contains_the_defaults() -> None:
    shown = describe_client_metrics({"interval.ms": "1000"})
    assert found(shown, "interval.ms") == ("1000", METRICS, [("interval.ms", "1000", METRICS)])
    assert found(shown, "metrics") == ("", DEFAULT, [])


def test_response_of_create_topics_contains_the_configs_of_the_new_topic(settings: Settings) -> None:
    configs = {each.name: (each.value, each.config_source) for each in created_topic_configs({}, settings)}
    assert configs["segment.bytes"] == ("2097152", STATIC)
    assert len(configs) == 34
