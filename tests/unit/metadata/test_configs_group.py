"""Tests group configs and client metrics subscriptions."""

import pytest

from penstock.metadata.configs.client_metrics import (
    ClientMetricsRequestError,
    Subscription,
    parse_match,
    validate_client_metrics,
)
from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.group import (
    GROUP_CONFIGS,
    GROUP_INHERITANCE,
    effective_group_configs,
    validate_group_configs,
)
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import MetadataImage
from penstock.metadata.patterns import Work
from penstock.protocol.vocabulary import ResourceType

SETTINGS = Settings()


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("consumer.session.timeout.ms", "100000", "group.consumer.max.session.timeout.ms requires 60000 or less."),
        ("consumer.heartbeat.interval.ms", "1", "group.consumer.min.heartbeat.interval.ms requires 5000 or more."),
        ("share.record.lock.duration.ms", "1000", "group.share.min.record.lock.duration.ms requires 15000 or more."),
        ("share.delivery.count.limit", "11", "group.share.max.delivery.count.limit requires 10 or less."),
        (
            "share.partition.max.record.locks",
            "5000",
            "group.share.max.partition.max.record.locks requires 4000 or less.",
        ),
        ("streams.num.standby.replicas", "3", "group.streams.max.standby.replicas requires 2 or less."),
        ("streams.assignment.interval.ms", "20000", "group.streams.max.assignment.interval.ms requires 15000 or less."),
    ],
)
def test_group_configs_are_limited_by_broker_properties(name: str, value: str, limit: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_group_configs({name: value}, SETTINGS)
    assert str(refused.value) == f"{name} can't be {value}: {limit}"


@pytest.mark.parametrize("value", ["earliest", "latest", "by_duration:PT1H", "by_duration:P1DT2H3M4.5S"])
def test_valid_values_of_share_auto_offset_reset_are_accepted(value: str) -> None:
    validate_group_configs({"share.auto.offset.reset": value}, SETTINGS)


@pytest.mark.parametrize("value", ["x", "by_duration:-PT1H", "by_duration:xx", "by_duration:P", "by_duration:PT"])
def test_invalid_values_of_share_auto_offset_reset_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="such as by_duration:PT1H"):
        validate_group_configs({"share.auto.offset.reset": value}, SETTINGS)


def test_the_session_timeout_must_be_longer_than_the_heartbeat_interval() -> None:
    settings = Settings(
        {"group.consumer.min.session.timeout.ms": "10", "group.consumer.min.heartbeat.interval.ms": "10"}
    )
    with pytest.raises(ConfigError, match="set a timeout longer than the interval"):
        validate_group_configs({"consumer.session.timeout.ms": "20", "consumer.heartbeat.interval.ms": "20"}, settings)


def test_every_group_config_has_a_description_and_a_valid_default() -> None:
    assert sum(not key.internal and not name.startswith("penstock.") for name, key in GROUP_CONFIGS.items()) == 17
    for name, key in GROUP_CONFIGS.items():
        assert key.doc.endswith(".")
        assert key.default is not None
        key.parse(key.default)
        inherited = GROUP_INHERITANCE.get(name)
        if inherited is not None and inherited.default is not None:
            assert SETTINGS.get(inherited.default) == key.default_value()


def test_group_config_above_the_limit_of_the_broker_is_lowered_to_the_limit() -> None:
    image = MetadataImage(configs={(ResourceType.GROUP, "g"): {"consumer.session.timeout.ms": "50000"}})
    settings = Settings({"group.consumer.max.session.timeout.ms": "48000", "group.share.heartbeat.interval.ms": "6000"})
    configs = effective_group_configs(image, "g", settings)
    assert configs["consumer.session.timeout.ms"] == 48000
    assert configs["share.heartbeat.interval.ms"] == 6000
    assert configs["share.renew.acknowledge.enable"] is True
    assert effective_group_configs(image, "other", settings)["consumer.session.timeout.ms"] == 45000


@pytest.mark.parametrize("pattern", ["x", "client_id=a=b", "foo=b", "client_id=[", "client_id="])
def test_an_invalid_client_match_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_client_metrics("s", {"match": pattern}, Work())
    why = (
        "The regular expression '[' is not valid: it ends too early at position 1."
        if pattern == "client_id=["
        else "write a known parameter, = and a regular expression."
    )
    assert str(refused.value) == f"'{pattern}' is not a client match: {why}"
    assert not isinstance(refused.value, ClientMetricsRequestError)


def test_client_metrics_match_with_two_client_id_patterns_uses_the_second_pattern() -> None:
    assert parse_match(("client_id=a", " client_id = b.* "), Work()).keys() == {"client_id"}
    assert parse_match(("client_id=a", " client_id = b.* "), Work())["client_id"].matches("bcd")


def test_client_metrics_subscription_uses_defaults_for_interval_and_match() -> None:
    subscription = Subscription.from_map("s", {"metrics": "a, b"})
    assert (subscription.metrics, subscription.interval_ms, subscription.match) == (("a", "b"), 300_000, {})
