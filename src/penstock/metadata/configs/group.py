"""Defines group configs: settings of one consumer, share or streams group that override the broker's properties.

Most group configs inherit their default from a broker property, and two other broker properties limit them, for example
`group.consumer.min.session.timeout.ms` and `group.consumer.max.session.timeout.ms`. The limits are checked when a
group's configs are altered. If a broker's limits change later, a value outside the new limits is replaced by the
nearest limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.metadata.configs.definition import (
    ConfigError,
    ConfigKey,
    ConfigType,
    ConfigValue,
    Matching,
    OneOf,
    Range,
    table,
)

if TYPE_CHECKING:
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage

_DURATION = re.compile(r"P(?=.)(?:\d+D)?(?:T(?=.)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d{1,9})?S)?)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """Accepts `earliest`, `latest`, or a duration back from now."""

    def check(self, name: str, value: ConfigValue) -> None:
        text = value if isinstance(value, str) else ""
        if text in ("earliest", "latest"):
            return
        if text.startswith("by_duration:") and _DURATION.fullmatch(text.removeprefix("by_duration:")):
            return
        why = "use earliest, latest, or by_duration: and a time back from now, such as by_duration:PT1H."
        raise ConfigError.invalid(name, value, remedy=why)


@dataclass(frozen=True, slots=True)
class Inheritance:
    """Names the broker properties that define a group config's default, its lower limit and its upper limit."""

    default: str | None = None
    low: str | None = None
    high: str | None = None


def _int(name: str, default: int, low: int, doc: str) -> ConfigKey:
    return ConfigKey(name, ConfigType.INT, str(default), doc, Range(low))


GROUP_CONFIGS: dict[str, ConfigKey] = table(
    [
        _int(
            "consumer.assignment.interval.ms",
            1000,
            0,
            "Shortest time between two assignments of the consumer group.",
        ),
        _int(
            "consumer.heartbeat.interval.ms",
            5000,
            1,
            "How often members of the consumer group send heartbeats.",
        ),
        _int(
            "consumer.session.timeout.ms",
            45000,
            1,
            "Time without a heartbeat after which a member is removed from the consumer group.",
        ),
        ConfigKey(
            "errors.deadletterqueue.copy.record.enable",
            ConfigType.BOOLEAN,
            "false",
            "KIP-1191: true copies key, value and headers of a record into its dead letter.",
            internal=True,  # not listed by Kafka 4.3; described where it is set
        ),
        ConfigKey(
            "errors.deadletterqueue.topic.name",
            ConfigType.STRING,
            "",
            "KIP-1191: topic for the records that the share group gives up; empty for none.",
            Matching(r"(?!__|\.\.?$)[a-zA-Z0-9._-]{0,249}", "give the name of a topic that is not internal."),
            internal=True,
        ),
        _int(
            "penstock.share.retry.backoff.max.ms",
            60000,
            0,
            "Penstock's own: upper limit of the back-off of the share group.",
        ),
        _int(
            "penstock.share.retry.backoff.ms",
            0,
            0,
            "Penstock's own: pause before a released record is delivered again; it doubles with each delivery.",
        ),
        _int(
            "share.assignment.interval.ms",
            1000,
            0,
            "Shortest time between two assignments of the share group.",
        ),
        ConfigKey(
            "share.auto.offset.reset",
            ConfigType.STRING,
            "latest",
            "Where the share group starts in a partition it has no offset for: earliest, latest, or by_duration:PT1H.",
            OffsetReset(),
        ),
        _int(
            "share.delivery.count.limit",
            5,
            2,
            "Deliveries of one record before the share group archives it.",
        ),
        _int(
            "share.heartbeat.interval.ms",
            5000,
            1,
            "How often members of the share group send heartbeats.",
        ),
        ConfigKey(
            "share.isolation.level",
            ConfigType.STRING,
            "read_uncommitted",
            "Whether the share group reads only committed records, or uncommitted ones too.",
            OneOf(("read_committed", "read_uncommitted")),
        ),
        _int(
            "share.partition.max.record.locks",
            2000,
            100,
            "Records of one partition that may be acquired at once.",
        ),
        _int(
            "share.record.lock.duration.ms",
            30000,
            1000,
            "How long a fetched record stays locked for its member.",
        ),
        ConfigKey(
            "share.renew.acknowledge.enable",
            ConfigType.BOOLEAN,
            "true",
            "Whether members of the share group may renew their lock on a record.",
        ),
        _int(
            "share.session.timeout.ms",
            45000,
            1,
            "Time without a heartbeat after which a member is removed from the share group.",
        ),
        _int("streams.assignment.interval.ms", 1000, 0, "Shortest time between two assignments of the streams group."),
        _int("streams.heartbeat.interval.ms", 5000, 1, "How often members of the streams group send heartbeats."),
        _int("streams.initial.rebalance.delay.ms", 3000, 0, "How long the first assignment waits for more members."),
        _int("streams.num.standby.replicas", 0, 0, "Standby copies of each task of the streams group."),
        _int(
            "streams.session.timeout.ms",
            45000,
            1,
            "Time without a heartbeat after which a member is removed from the streams group.",
        ),
    ]
)


def _bounded(kind: str, rest: str) -> Inheritance:
    return Inheritance(f"group.{kind}.{rest}", f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}")


GROUP_INHERITANCE: dict[str, Inheritance] = {
    **{
        f"{kind}.{rest}": _bounded(kind, rest)
        for kind in ("consumer", "share", "streams")
        for rest in ("assignment.interval.ms", "heartbeat.interval.ms", "session.timeout.ms")
    },
    **{
        f"share.{rest}": _bounded("share", rest)
        for rest in ("delivery.count.limit", "partition.max.record.locks", "record.lock.duration.ms")
    },
    "streams.initial.rebalance.delay.ms": Inheritance("group.streams.initial.rebalance.delay.ms"),
    "streams.num.standby.replicas": Inheritance(
        "group.streams.num.standby.replicas", high="group.streams.max.standby.replicas"
    ),
}


def validate_group_configs(values: Mapping[str, str], settings: Settings) -> None:
    """Raises ConfigError for group configs that Kafka refuses."""
    for name in values:
        if name not in GROUP_CONFIGS:
            raise ConfigError(f"There is no group config '{name}': check its spelling.")
    for name, text in values.items():
        value = GROUP_CONFIGS[name].parse(text)
        limits = GROUP_INHERITANCE.get(name, Inheritance())
        if limits.low is not None and isinstance(value, int) and value < settings.int(limits.low):
            raise ConfigError(f"{name} can't be {value}: {limits.low} requires {settings.int(limits.low)} or more.")
        if limits.high is not None and isinstance(value, int) and value > settings.int(limits.high):
            raise ConfigError(f"{name} can't be {value}: {limits.high} requires {settings.int(limits.high)} or less.")
    for kind in ("consumer", "share", "streams"):
        timeout, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if timeout in values or interval in values:
            _check_heartbeat(values, settings, timeout, interval)


def _check_heartbeat(values: Mapping[str, str], settings: Settings, timeout: str, interval: str) -> None:
    session_ms = _int_of(timeout, values, settings)
    heartbeat_ms = _int_of(interval, values, settings)
    if session_ms <= heartbeat_ms:
        raise ConfigError(
            f"{timeout} is {session_ms} and {interval} is {heartbeat_ms}: set a timeout longer than the interval."
        )


def _int_of(name: str, values: Mapping[str, str], settings: Settings) -> int:
    value = GROUP_CONFIGS[name].parse(values[name]) if name in values else group_default(name, settings)
    assert isinstance(value, int)
    return value


def group_default(name: str, settings: Settings) -> ConfigValue:
    """Returns the value of a group config in a group that does not set it."""
    inherited = GROUP_INHERITANCE.get(name, Inheritance()).default
    return GROUP_CONFIGS[name].default_value() if inherited is None else settings.get(inherited)


def effective_group_configs(image: MetadataImage, group: str, settings: Settings) -> dict[str, ConfigValue]:
    """Returns the group configs in effect: the group's own values, limited to the broker's minimum and maximum, and
    inherited values for all other configs."""
    own = image.config(32, group)
    return {
        name: _within_limits(name, key.parse(own[name]), settings) if name in own else group_default(name, settings)
        for name, key in GROUP_CONFIGS.items()
    }


def _within_limits(name: str, value: ConfigValue, settings: Settings) -> ConfigValue:
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    limits = GROUP_INHERITANCE.get(name, Inheritance())
    if limits.low is not None:
        value = max(value, settings.int(limits.low))
    if limits.high is not None:
        value = min(value, settings.int(limits.high))
    return value
