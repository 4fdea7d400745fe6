"""Tests that the timeouts of a group come from its own configs, and from the broker's properties without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeAlias

import pytest
from consumer_driver import REVOKE_MS, ConsumerDriver
from share_driver import ShareDriver, share_beat
from streams_driver import StreamsDriver, plain, topology

from penstock.groups.config import GroupConfig
from penstock.protocol.vocabulary import ResourceType

# The methods of `Properties` have the names of builtins.
_Int: TypeAlias = int
_Str: TypeAlias = str

KINDS = ("consumer", "share", "streams")
BROKER_SESSION_MS, OWN_SESSION_MS = 45_000, 50_000
BROKER_INTERVAL_MS, OWN_INTERVAL_MS = 1_000, 9_000
BROKER_HEARTBEAT_MS, OWN_HEARTBEAT_MS = 300, 400
BROKER = GroupConfig(
    consumer_session_timeout_ms=BROKER_SESSION_MS,
    share_session_timeout_ms=BROKER_SESSION_MS,
    streams_session_timeout_ms=BROKER_SESSION_MS,
    consumer_heartbeat_interval_ms=BROKER_HEARTBEAT_MS,
    share_heartbeat_interval_ms=BROKER_HEARTBEAT_MS,
    streams_heartbeat_interval_ms=BROKER_HEARTBEAT_MS,
    consumer_assignment_interval_ms=BROKER_INTERVAL_MS,
    share_assignment_interval_ms=BROKER_INTERVAL_MS,
    streams_assignment_interval_ms=BROKER_INTERVAL_MS,
    streams_initial_rebalance_delay_ms=0,
)


def driver_of(kind: str, own: dict[str, int]) -> ConsumerDriver:
    """Returns a coordinator with these configs of the group `own`; the group `other` has none."""
    drivers: dict[str, Callable[[GroupConfig], ConsumerDriver]] = {
        "consumer": ConsumerDriver,
        "share": ShareDriver,
        "streams": StreamsDriver,
    }
    driver = drivers[kind](BROKER)
    configs = {name: str(value) for name, value in own.items()}
    driver.shard.see(replace(driver.shard.image, configs={(ResourceType.GROUP, "own"): configs}))
    return driver


def beat(driver: ConsumerDriver, group: str, member: str, epoch: int) -> Any:
    """Sends a heartbeat that joins with epoch 0, and reports no partitions otherwise."""
    if isinstance(driver, ShareDriver):
        return share_beat(driver, member, epoch, group_id=group, subscribed_topic_names=None if epoch else ["t"])
    if isinstance(driver, StreamsDriver):
        empty: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
        more = {"topology": topology(), "process_id": member, "rebalance_timeout_ms": REVOKE_MS} if not epoch else {}
        return driver.stream_beat(member, epoch, group_id=group, **empty, **more)
    if epoch:
        return driver.beat(member, epoch, group_id=group)
    return driver.enter(member, group_id=group)


def epochs(driver: ConsumerDriver, group: str) -> tuple[int, int]:
    known: Any = driver.shard.groups[group]
    return known.epoch, known.assignment_epoch


@pytest.mark.parametrize("kind", KINDS)
def test_heartbeat_interval_is_the_groups_own(kind: str) -> None:
    driver = driver_of(kind, {f"{kind}.heartbeat.interval.ms": OWN_HEARTBEAT_MS})
    for group, expected in (("own", OWN_HEARTBEAT_MS), ("other", BROKER_HEARTBEAT_MS)):
        joined = beat(driver, group, "a", 0)
        assert joined.heartbeat_interval_ms == expected
        assert beat(driver, group, "a", joined.member_epoch).heartbeat_interval_ms == expected


@pytest.mark.parametrize("reloaded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_session_of_a_member_ends_after_its_groups_own_timeout(kind: str, reloaded: bool) -> None:
    driver = driver_of(kind, {f"{kind}.session.timeout.ms": OWN_SESSION_MS})
    for group in ("own", "other"):
        beat(driver, group, "a", 0)
    if reloaded:
        driver = driver.reload()
    present = []
    for step in (BROKER_SESSION_MS - 1, 1, OWN_SESSION_MS - BROKER_SESSION_MS - 1, 1):
        driver.advance(step)
        groups: Any = driver.shard.groups
        present.append([name for name in ("own", "other") if groups[name].members])
    assert present == [["own", "other"], ["own"], ["own"], []]


@pytest.mark.parametrize("kind", KINDS)
def test_next_assignment_is_made_after_the_groups_own_interval(kind: str) -> None:
    driver = driver_of(kind, {f"{kind}.assignment.interval.ms": OWN_INTERVAL_MS})
    for group, interval_ms in (("other", BROKER_INTERVAL_MS), ("own", OWN_INTERVAL_MS)):
        first = beat(driver, group, "a", 0)
        if isinstance(driver, ShareDriver):
            for asked in driver.asked:
                states = asked._replace(group_id=group)
                driver.run(lambda turn, states=states: _create(driver, turn, states.group_id, states.partitions))  # type: ignore[misc]
            driver.asked.clear()
            first = beat(driver, group, "a", first.member_epoch)
        driver.advance(1)
        beat(driver, group, "b", 0)
        for step, assigned in ((interval_ms - 2, False), (1, True)):
            driver.advance(step)
            beat(driver, group, "b", _member_epoch(driver, group, "b"))
            epoch, assignment_epoch = epochs(driver, group)
            assert (assignment_epoch == epoch) is assigned
            assert epoch > first.member_epoch


def _create(driver: ConsumerDriver, turn: Any, group: str, slots: Any) -> None:
    from penstock.groups import share_requests

    share_requests.states_initialized(driver.shard, turn, group, slots)


def _member_epoch(driver: ConsumerDriver, group: str, member: str) -> int:
    known: Any = driver.shard.groups[group]
    found: int = known.members[member].epoch
    return found


def test_streams_group_has_its_own_initial_delay_and_number_of_standby_tasks() -> None:
    driver = driver_of("streams", {"streams.initial.rebalance.delay.ms": 700, "streams.num.standby.replicas": 1})
    for group, delay_ms, standbys in (("own", 700, 1), ("other", 0, 0)):
        limits = driver.shard.streams_limits(group)
        assert (limits.initial_delay_ms, limits.standby_replicas) == (delay_ms, standbys)
        assert limits.assignment_configs == {"num.standby.replicas": str(standbys)}
        beat(driver, group, "a", 0)
        beat(driver, group, "a", 0)
        known: Any = driver.shard.groups[group]
        assert known.initial_delay.armed is bool(delay_ms)
    driver.advance(699)
    assert epochs(driver, "own") == (2, 1)
    driver.advance(1)
    assert epochs(driver, "own") == (2, 2)


class Properties:
    """Gives each property another value, and notes the names."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def _next(self, name: str) -> int:
        self.names.append(name)
        return len(self.names)

    def list(self, name: str, /) -> tuple[str, ...]:
        return (f"assignor {self._next(name)}",)

    def str(self, name: _Str, /) -> _Str:
        return f"POLICY {self._next(name)}"

    def int(self, name: _Str, /) -> _Int:
        return self._next(name)


def test_each_setting_of_groups_is_read_from_its_own_property() -> None:
    properties = Properties()
    config = GroupConfig.from_settings(properties)
    expected = {
        "consumer_assignors": "group.consumer.assignors",
        "max_size": "group.max.size",
        "offset_metadata_max_bytes": "offset.metadata.max.bytes",
        "offsets_retention_ms": "offsets.retention.minutes",
        "share_initialize_retry_ms": "group.share.initialize.retry.interval.ms",
        "consumer_regex_refresh_interval_ms": "group.consumer.regex.refresh.interval.ms",
        "streams_standby_replicas": "group.streams.num.standby.replicas",
    }
    for field in fields(config):
        usual = ".".join(["group", *field.name.split("_")])
        number = properties.names.index(expected.get(field.name, usual)) + 1
        value = getattr(config, field.name)
        if field.name == "offsets_retention_ms":
            number *= 60_000
        assert value in (number, f"policy {number}", (f"assignor {number}",))
    assert len(properties.names) == len(fields(config))


def test_streams_group_waits_for_no_other_member_after_its_first_assignment() -> None:
    driver = driver_of("streams", {"streams.initial.rebalance.delay.ms": 700})
    assert isinstance(driver, StreamsDriver)
    beat(driver, "own", "a", 0)
    driver.advance(700)
    driver.advance(BROKER_INTERVAL_MS)
    driver.stream_beat(
        "b",
        0,
        group_id="own",
        topology=topology(plain()),
        process_id="b",
        rebalance_timeout_ms=REVOKE_MS,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )
    assert epochs(driver, "own") == (3, 3)
