"""Group configs and client metrics subscriptions."""

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
from penstock.metadata.image import MetadataImage, ResourceType

SETTINGS = Settings()


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("consumer.session.timeout.ms", "100000", "less than or equal to group.consumer.max.session.timeout.ms"),
        ("consumer.heartbeat.interval.ms", "1", "greater than or equal to group.consumer.min.heartbeat.interval.ms"),
        ("share.record.lock.duration.ms", "1000", "greater than or equal to group.share.min.record.lock.duration.ms"),
        ("share.delivery.count.limit", "11", "less than or equal to group.share.max.delivery.count.limit"),
        (
            "share.partition.max.record.locks",
            "5000",
            "less than or equal to group.share.max.partition.max.record.locks",
        ),
        ("streams.num.standby.replicas", "3", "less than or equal to group.streams.max.standby.replicas"),
        ("streams.assignment.interval.ms", "20000", "less than or equal to group.streams.max.assignment.interval.ms"),
    ],
)
def test_a_group_keeps_to_the_brokers_limits(name: str, value: str, limit: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_group_configs({name: value}, SETTINGS)
    assert str(refused.value) == f"{name} must be {limit}"


@pytest.mark.parametrize("value", ["earliest", "latest", "by_duration:PT1H", "by_duration:P1DT2H3M4.5S"])
def test_where_a_share_group_starts(value: str) -> None:
    validate_group_configs({"share.auto.offset.reset": value}, SETTINGS)


@pytest.mark.parametrize("value", ["x", "by_duration:-PT1H", "by_duration:xx", "by_duration:P", "by_duration:PT"])
def test_where_a_share_group_can_not_start(value: str) -> None:
    with pytest.raises(ConfigError, match="by_duration:<PnDTnHnMn"):
        validate_group_configs({"share.auto.offset.reset": value}, SETTINGS)


def test_members_must_be_heard_of_within_their_session() -> None:
    settings = Settings(
        {"group.consumer.min.session.timeout.ms": "10", "group.consumer.min.heartbeat.interval.ms": "10"}
    )
    with pytest.raises(ConfigError, match="must be greater than consumer"):
        validate_group_configs({"consumer.session.timeout.ms": "20", "consumer.heartbeat.interval.ms": "20"}, settings)


def test_every_group_config_is_documented_valid_and_inherits_from_a_property_with_the_same_default() -> None:
    assert len(GROUP_CONFIGS) == 17
    for name, key in GROUP_CONFIGS.items():
        assert key.doc.endswith(".")
        assert key.default is not None
        key.parse(key.default)
        inherited = GROUP_INHERITANCE.get(name)
        if inherited is not None and inherited.default is not None:
            assert SETTINGS.get(inherited.default) == key.default_value()


def test_a_value_outside_of_limits_that_came_later_is_pulled_inside() -> None:
    image = MetadataImage(configs={(ResourceType.GROUP, "g"): {"consumer.session.timeout.ms": "50000"}})
    settings = Settings({"group.consumer.max.session.timeout.ms": "48000", "group.share.heartbeat.interval.ms": "6000"})
    configs = effective_group_configs(image, "g", settings)
    assert configs["consumer.session.timeout.ms"] == 48000
    assert configs["share.heartbeat.interval.ms"] == 6000
    assert configs["share.renew.acknowledge.enable"] is True
    assert effective_group_configs(image, "other", settings)["consumer.session.timeout.ms"] == 45000


@pytest.mark.parametrize("pattern", ["x", "client_id=a=b", "foo=b", "client_id=[", "client_id="])
def test_a_pattern_that_matches_nothing_sensible_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate_client_metrics("s", {"match": pattern})
    assert str(refused.value) == f"Illegal client matching pattern: {pattern}"
    assert not isinstance(refused.value, ClientMetricsRequestError)


def test_the_last_of_two_patterns_for_a_parameter_counts() -> None:
    assert parse_match(("client_id=a", " client_id = b.* ")).keys() == {"client_id"}
    assert parse_match(("client_id=a", " client_id = b.* "))["client_id"].fullmatch("bcd")


def test_a_subscription_has_defaults() -> None:
    subscription = Subscription.from_map("s", {"metrics": "a, b"})
    assert (subscription.metrics, subscription.interval_ms, subscription.match) == (("a", "b"), 300_000, {})
