"""Tests rules of classic groups that show only with records of another broker, late commits, or a later leader."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from group_driver import REBALANCE_MS, SESSION_MS, Driver
from test_classic_static import static_group
from test_group_edges import transactional
from test_group_offsets import delete_offsets, expire, subscription

from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.config import GroupConfig
from penstock.groups.journal import decode_record, encode_record
from penstock.groups.turn import JournalRecord
from penstock.protocol.errors import ErrorCode
from penstock.protocol.persisted.group.group_metadata import GroupMetadataValue

DAY_MS = 24 * 60 * 60 * 1000
LONG_MS = 100_000
T0, U0 = ("t", 0), ("u", 0)


def classic(driver: Driver) -> ClassicGroup:
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    return group


def test_leader_that_rejoins_stays_leader_although_an_older_member_rejoins_first() -> None:
    driver = Driver()
    join = partial(driver.join, session_ms=LONG_MS, version=5)
    older = join(instance="a").joined.member_id
    waiting = join(instance="b")
    join(older, instance="a")
    leader = waiting.joined.member_id
    join(leader, instance="b", protocols=(("range", b"other"),))
    driver.advance(REBALANCE_MS)  # the first member does not rejoin in time; as a static member it stays
    assert classic(driver).leader == leader
    generation = classic(driver).generation
    driver.sync(leader, generation, {older: b"A", leader: b"B"}, instance="b")
    driver.sync(older, generation, instance="a")
    first = join(older, instance="a", protocols=(("range", b"new"),))
    second = join(leader, instance="b")
    assert first.joined.generation_id == second.joined.generation_id == generation + 1
    assert first.joined.leader == second.joined.leader == leader
    assert (len(first.joined.members), len(second.joined.members)) == (0, 2)


@pytest.mark.parametrize("leader", [None, "ghost"])
@pytest.mark.parametrize("protocol", [None, "range"])
def test_group_whose_record_has_no_known_leader_elects_one_in_the_next_generation(
    leader: str | None, protocol: str | None
) -> None:
    driver = Driver()
    ids = driver.stable(2, protocols=subscription("t"))
    record = decode_record(*driver.journal[-1])
    assert record is not None
    assert isinstance(record.value, GroupMetadataValue)
    record.value.leader, record.value.protocol = leader, protocol
    other = Driver()
    other.replay([*driver.journal[:-1], encode_record(JournalRecord(record.key, record.value))])
    other.run(other.shard.loaded)
    assert list(classic(other).members) == ids
    if protocol is None:
        other.leave(ids[0])
        other.advance(SESSION_MS + REBALANCE_MS)
        assert classic(other).state is State.EMPTY
        return
    waiting = [other.join(member, protocols=subscription("u")) for member in reversed(ids)]
    assert {each.joined.leader for each in waiting} == {ids[0]}


def test_offsets_of_a_group_that_became_empty_are_kept_for_the_whole_retention_after_a_load() -> None:
    driver = Driver()
    first, _ = driver.stable(2, session_ms=LONG_MS)
    driver.commit({T0: 1}, member_id=first, generation=2)
    driver.leave(first)
    driver.advance(REBALANCE_MS)  # the other member does not rejoin
    assert classic(driver).state is State.EMPTY
    driver = driver.reload()
    driver.now_ms += 7 * DAY_MS - 1
    expire(driver)
    assert driver.fetch(T0) == {T0: 1}
    driver.now_ms += 1
    expire(driver)
    assert "g" not in driver.shard.groups


def test_offsets_do_not_expire_while_a_group_rebalances_or_its_subscriptions_are_unreadable() -> None:
    driver = Driver()
    half_hour_ms = 1_800_000
    first, _ = driver.stable(2, protocols=subscription("t"), session_ms=half_hour_ms, rebalance_ms=half_hour_ms)
    driver.commit({T0: 1, U0: 2}, member_id=first, generation=2)
    driver.now_ms += 8 * DAY_MS
    both = subscription("t", "u")
    driver.join(first, protocols=both, session_ms=half_hour_ms, rebalance_ms=half_hour_ms)
    assert classic(driver).state is State.PREPARING_REBALANCE
    expire(driver)
    assert driver.fetch() == {T0: 1, U0: 2}
    driver = Driver()
    [member] = driver.stable(protocols=(("range", b"\x00\x00\xff"),))
    driver.commit({T0: 1}, member_id=member, generation=1)
    driver.now_ms += 8 * DAY_MS
    expire(driver)
    assert driver.fetch() == {T0: 1}
    assert delete_offsets(driver, T0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_assignment_that_is_committed_in_a_later_generation_is_ignored(code: ErrorCode) -> None:
    driver = Driver()
    leader = driver.join().joined.member_id
    driver.hold_commits = True
    old = driver.sync(leader, 1, {leader: b"old"})
    again = driver.join(leader, protocols=(("range", b"changed"),))
    assert (old.error, again.joined.generation_id) == (ErrorCode.REBALANCE_IN_PROGRESS, 2)
    driver.release_commits(code)
    assert (classic(driver).state, classic(driver).generation) == (State.COMPLETING_REBALANCE, 2)
    assert driver.sync(leader, 2, {leader: b"new"}).synced.assignment == b"new"


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_each_join_of_a_static_member_that_restarts_twice_is_answered_once(code: ErrorCode) -> None:
    driver = Driver()
    leader, _ = static_group(driver)
    driver.hold_commits = True
    first = driver.join(instance="b", version=9)
    second = driver.join(instance="b", version=9)
    driver.release_commits(code)
    assert first.error is ErrorCode.FENCED_INSTANCE_ID
    assert second.error is code
    group = classic(driver)
    assert (group.state, set(group.static_members), group.waiting_joins) == (State.STABLE, {"a", "b"}, 0)
    assert driver.heartbeat(leader, 2, instance="a") is ErrorCode.NONE
    if code is ErrorCode.NONE:
        assert group.static_members["b"] == second.joined.member_id


@pytest.mark.parametrize(("most", "state"), [(1, "PreparingRebalance"), (2, "Stable"), (3, "Stable")])
def test_loaded_group_rebalances_only_if_it_has_more_members_than_its_limit(most: int, state: str) -> None:
    driver = Driver()
    driver.stable(2)
    other = Driver(replace(driver.config, max_size=most))
    other.replay(driver.journal)
    other.run(other.shard.loaded)
    assert other.state() == state


def test_every_loaded_group_with_too_many_members_rebalances() -> None:
    driver = Driver()
    names = ["small", "g1", "g2", "g3"]
    for name in names:
        driver.stable(1 if name == "small" else 2, group=name)
    other = Driver(GroupConfig(initial_rebalance_delay_ms=0, max_size=1))
    other.replay(driver.journal)
    other.run(other.shard.loaded)
    assert [other.state(name) for name in names] == ["Stable"] + ["PreparingRebalance"] * 3


def test_leave_from_a_group_that_is_being_deleted_is_sent_to_another_coordinator() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    classic(driver).state = State.DEAD
    answer = driver.leave(leader, follower)
    assert (answer.error_code, answer.members) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])
    assert set(classic(driver).members) == {leader, follower}


@pytest.mark.parametrize("committed", [False, True])
def test_offset_with_a_pending_commit_does_not_expire(committed: bool) -> None:
    """A tombstone would also erase the offset of the open transaction."""
    driver = Driver()
    driver.commit({T0: 1, U0: 2} if committed else {U0: 2})
    assert transactional(driver, 0) == [ErrorCode.NONE]
    driver.now_ms += 8 * DAY_MS
    expire(driver)
    assert driver.fetch(T0, U0) == {T0: 1 if committed else -1, U0: -1}
    driver.shard.apply_marker(5, True)
    assert driver.fetch() == {T0: 3}
