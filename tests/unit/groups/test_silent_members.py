"""Compares members that time out in one turn, after a pause of the coordinator, with members that time out apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import pytest
from consumer_driver import ConsumerDriver
from share_driver import ShareDriver
from streams_driver import EAGER, StreamsDriver, listed
from test_group_migration import metadata

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.config import GroupConfig
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.shard import TIMER_RETRY_MS
from penstock.groups.streams.group import StreamsGroup
from penstock.groups.turn import Turn
from penstock.protocol.persisted.group.group_metadata import GroupMetadataKey

R = TypeVar("R")

TOPICS = {"t": 2, "u": 3, "v": 1}
SESSION_MS = 45_000
LONGER_MS = 100_000
SILENCE_MS, PAUSE_MS = 40_000, 10_000
CONFIG = GroupConfig(
    initial_rebalance_delay_ms=0,
    consumer_assignment_interval_ms=0,
    consumer_session_timeout_ms=SESSION_MS,
    share_assignment_interval_ms=0,
    share_session_timeout_ms=SESSION_MS,
)


def recorded(driver: ConsumerDriver) -> tuple[Any, ...]:
    """Returns what the records of the group say, without its epochs."""
    group = driver.shard.groups["g"]
    if isinstance(group, ClassicGroup):
        return ("classic", sorted(group.members), group.state, group.members_bytes)
    shared: tuple[Any, ...] = (group.protocol_type, dict(group.members), group.target, group.metadata_hash)
    if isinstance(group, ConsumerGroup):
        return (*shared, group.regexes, group.owners)
    if isinstance(group, StreamsGroup):
        return (*shared, group.holders)
    return shared


def time_out(driver: ConsumerDriver, together: bool) -> None:
    """Lets the coordinator handle its timers late, after a pause, or each timer at its time."""
    if together:
        driver.now_ms += PAUSE_MS
        driver.run(driver.shard.on_timers)
        driver.advance(0)
    else:
        driver.advance(PAUSE_MS)
    assert driver.reload().shard.remembered() == driver.shard.remembered()


def consumers(random: Random) -> ConsumerDriver:
    """Returns a group whose members read topics by name or by pattern; some members have the classic protocol."""
    driver = ConsumerDriver(CONFIG, TOPICS)
    members = "abcd"[: random.randint(1, 4)]
    for member in members:
        fields: dict[str, Any] = {"subscribed_topic_names": random.sample(sorted(TOPICS), random.randint(1, 2))}
        if random.random() < 0.5:
            fields["subscribed_topic_regex"] = random.choice(("t.*", "u.*"))
        driver.enter(member, rebalance_timeout_ms=LONGER_MS, **fields)
        driver.advance(random.randrange(2))
    for _ in range(random.randrange(3)):
        driver.join(protocols=metadata(), session_ms=LONGER_MS, rebalance_ms=LONGER_MS)
    driver.advance(SILENCE_MS)
    for member in members:
        if random.random() < 0.4:
            driver.beat(member, driver.consumers.members[member].epoch)
    return driver


def sharers(random: Random) -> ShareDriver:
    driver = ShareDriver(CONFIG, TOPICS)
    members = "abcd"[: random.randint(2, 4)]
    for member in members:
        driver.come(member, *random.sample(sorted(TOPICS), random.randint(1, 2)))
        driver.create_states()
        driver.advance(random.randrange(2))
    driver.advance(SILENCE_MS)
    for member in members:
        if random.random() < 0.4:
            driver.share_beat(member, driver.group.members[member].epoch)
    return driver


def streamers(random: Random) -> StreamsDriver:
    driver = StreamsDriver(EAGER, TOPICS)
    members = "abcd"[: random.randint(2, 4)]
    for member in members:
        driver.come(member, rebalance_timeout_ms=LONGER_MS)
        driver.advance(random.randrange(2))
    driver.advance(SILENCE_MS)
    for member in members:
        if random.random() < 0.4:
            driver.stay(member)
    return driver


@pytest.mark.parametrize("make", [consumers, sharers, streamers])
def test_members_that_time_out_in_one_turn_leave_the_same_group_as_members_that_time_out_apart(
    make: Callable[[Random], ConsumerDriver],
) -> None:
    seen: set[str] = set()
    for seed in range(60):
        apart, together = make(Random(seed)), make(Random(seed))
        before = recorded(apart)
        time_out(apart, together=False)
        time_out(together, together=True)
        assert recorded(together) == recorded(apart)
        seen.add(str(recorded(apart)[0]))
    assert seen >= ({"classic", "consumer"} if make is consumers else {str(before[0])})


def test_downgraded_group_has_no_member_that_timed_out_in_the_same_turn() -> None:
    driver = ConsumerDriver(CONFIG, TOPICS)
    driver.enter("a", rebalance_timeout_ms=LONGER_MS)
    silent, living = (
        driver.join(protocols=metadata(), session_ms=session_ms, rebalance_ms=LONGER_MS).joined.member_id
        for session_ms in (SESSION_MS, LONGER_MS)
    )
    driver.advance(SILENCE_MS)
    time_out(driver, together=True)
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert set(group.members) == {living} != {silent}
    assert group.stored is not None
    assert [each.member_id for each in group.stored.members] == [living]


def test_streams_member_that_times_out_in_the_turn_of_the_first_assignment_gets_no_tasks() -> None:
    driver = StreamsDriver(replace(EAGER, streams_initial_rebalance_delay_ms=SESSION_MS + 1), TOPICS)
    driver.come("a", rebalance_timeout_ms=LONGER_MS)
    driver.come("b", rebalance_timeout_ms=LONGER_MS)
    driver.advance(SILENCE_MS)
    driver.stay("b")
    time_out(driver, together=True)
    assert set(driver.group.target) <= set(driver.group.members) == {"b"}
    assert listed(driver.stay("b").active_tasks) == {"0": [0, 1]}


class FullLogDriver(ConsumerDriver):
    """Has a log that refuses the record of a classic group, as if it were too large."""

    refuses = True

    def run(self, decide: Callable[[Turn], R]) -> R:
        def noting(turn: Turn) -> R:
            result = decide(turn)
            self.refuse_records = self.refuses and any(
                isinstance(key, GroupMetadataKey) and value is not None for key, value in turn.records
            )
            return result

        return super().run(noting)


def test_group_that_cannot_be_downgraded_keeps_no_other_group_from_removing_its_silent_members() -> None:
    driver = FullLogDriver(CONFIG, TOPICS)
    for group in "gho":
        driver.enter("a", group_id=group, rebalance_timeout_ms=LONGER_MS)
    living = {
        group: driver.join(group=group, protocols=metadata(), session_ms=LONGER_MS, rebalance_ms=LONGER_MS)
        for group in "gh"
    }
    driver.advance(SILENCE_MS)
    driver.commit({("t", 0): 1}, group="p", topic_id=driver.shard.topic_id("t"))
    driver.advance(SESSION_MS - SILENCE_MS - 1)
    driver.see({"u": 3})  # the topic t is deleted
    driver.now_ms += 1
    driver.run(driver.shard.on_timers)
    driver.advance(2 * TIMER_RETRY_MS)
    groups = driver.shard.groups
    assert isinstance(groups["o"], ConsumerGroup)
    assert not groups["o"].members
    assert driver.fetch(("t", 0), group="p") == {("t", 0): -1}
    for group, waiting in living.items():
        assert isinstance(groups[group], ConsumerGroup)
        driver.heartbeat(waiting.joined.member_id, 1, group=group)
    driver.refuses = False
    driver.advance(2 * TIMER_RETRY_MS)
    for group, waiting in living.items():
        downgraded = driver.shard.groups[group]
        assert isinstance(downgraded, ClassicGroup)
        assert set(downgraded.members) == {waiting.joined.member_id}
