"""Tests the timeouts of classic groups with several members, and timeouts that end in the same millisecond."""

from __future__ import annotations

from itertools import combinations

import pytest
from group_driver import REBALANCE_MS, Driver
from test_classic_static import static_group

from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.config import GroupConfig
from penstock.protocol.errors import ErrorCode

LONG_MS = 100_000


def classic(driver: Driver) -> ClassicGroup:
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    return group


def test_all_members_that_do_not_rejoin_in_time_are_removed() -> None:
    driver = Driver()
    ids = driver.stable(4, session_ms=LONG_MS)
    waiting = driver.join(ids[0], session_ms=LONG_MS)
    driver.advance(60_000)
    assert [each.member_id for each in waiting.joined.members] == [ids[0]]
    assert list(classic(driver).members) == [ids[0]]


def test_group_whose_members_all_left_has_no_members_after_a_load() -> None:
    driver = Driver()
    ids = driver.stable(2)
    driver.leave(*ids)
    loaded = classic(driver.reload())
    assert (loaded.state, loaded.members, loaded.generation) == (State.EMPTY, {}, classic(driver).generation)


def test_session_that_ends_with_the_join_phase_that_removed_its_member_is_ignored() -> None:
    driver = Driver()
    first, second, third = driver.stable(3, session_ms=10_000, rebalance_ms=10_000)
    driver.advance(5_000)
    waiting = driver.join(first, session_ms=10_000, rebalance_ms=10_000)
    for member in (second, third):
        assert driver.heartbeat(member, 3) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.advance(9_999)
    assert waiting.answer is None
    driver.advance(1)
    assert waiting.joined.generation_id == 4
    assert list(classic(driver).members) == [first]


def test_session_of_a_member_with_a_parked_sync_begins_when_the_leader_assigns() -> None:
    driver = Driver()
    waiting = [driver.join()]
    waiting.append(driver.join())
    waiting[0] = driver.join(waiting[0].joined.member_id)
    leader, follower = (each.joined.member_id for each in waiting)
    parked = driver.sync(follower, 2)
    for _ in range(3):
        driver.advance(5_000)
        assert driver.heartbeat(leader, 2) is ErrorCode.NONE
    driver.sync(leader, 2, {leader: b"A", follower: b"B"})
    assert parked.synced.assignment == b"B"
    driver.advance(9_999)
    assert driver.heartbeat(leader, 2) is ErrorCode.NONE
    assert set(classic(driver).members) == {leader, follower}
    driver.advance(1)
    assert list(classic(driver).members) == [leader]


def test_join_phase_ends_as_soon_as_the_last_client_with_a_new_member_id_is_given_up() -> None:
    driver = Driver()
    [leader] = driver.stable(session_ms=LONG_MS)
    for session_ms in (7_000, 9_000):
        assert driver.join(version=4, session_ms=session_ms).error is ErrorCode.MEMBER_ID_REQUIRED
    waiting = [driver.join(session_ms=LONG_MS), driver.join(leader, session_ms=LONG_MS)]
    driver.advance(8_999)
    assert [each.answer for each in waiting] == [None, None]
    driver.advance(1)
    assert [each.joined.generation_id for each in waiting] == [2, 2]


def test_repeated_sync_of_a_member_of_a_stable_group_extends_its_session() -> None:
    driver = Driver()
    first, second = driver.stable(2)
    for _ in range(3):
        driver.advance(9_999)
        assert driver.sync(second, 2).synced.assignment == b"to " + second.encode()
        driver.heartbeat(first, 2)
    driver.advance(9_999)
    assert set(classic(driver).members) == {first, second}
    driver.advance(1)
    assert not classic(driver).members


def test_initial_delay_is_not_extended_by_members_of_an_earlier_initial_rebalance() -> None:
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=3_000))
    first, second = (driver.join(rebalance_ms=3_000) for _ in range(2))
    driver.advance(3_000)
    driver.leave(first.joined.member_id, second.joined.member_id)
    third = driver.join(rebalance_ms=REBALANCE_MS)
    driver.advance(2_999)
    assert third.answer is None
    driver.advance(1)
    assert third.joined.generation_id == 3


def test_session_of_a_member_whose_parked_sync_failed_begins_with_the_error() -> None:
    driver = Driver()
    first = driver.join(instance="a", version=5).joined.member_id
    second = driver.join(instance="b", version=5)
    driver.join(first, instance="a", version=5)
    follower = second.joined.member_id
    parked = driver.sync(follower, 2, instance="b")
    driver.advance(9_000)
    driver.heartbeat(first, 2)
    driver.advance(6_000)  # beyond the session of the follower, which need not send heartbeats meanwhile
    driver.join(version=3)  # another member begins a rebalance
    assert parked.error is ErrorCode.REBALANCE_IN_PROGRESS
    for step, present in ((9_999, True), (1, False)):
        driver.heartbeat(first, 2, instance="a")
        driver.advance(step)
        assert (follower in classic(driver).members) is present


@pytest.mark.parametrize("silent", [each for count in range(1, 5) for each in combinations(range(4), count)])
def test_exactly_the_members_that_sent_no_sync_are_removed_at_the_rebalance_timeout(silent: tuple[int, ...]) -> None:
    driver = Driver()
    ids = driver.stable(4, session_ms=LONG_MS)
    waiting = [driver.join(member, session_ms=LONG_MS) for member in ids]
    generation = waiting[0].joined.generation_id
    synced = [member for index, member in enumerate(ids) if index not in silent]
    parked = [driver.sync(member, generation) for member in synced]
    driver.advance(REBALANCE_MS - 1)
    assert {driver.heartbeat(member, generation) for member in ids} == {ErrorCode.NONE}
    driver.advance(1)
    assert list(classic(driver).members) == synced
    assert driver.state() == "PreparingRebalance" if synced else "Empty"
    for member in ids:
        expected = ErrorCode.REBALANCE_IN_PROGRESS if member in synced else ErrorCode.UNKNOWN_MEMBER_ID
        assert driver.heartbeat(member, generation) is expected
    if 0 in silent:  # the leader did not assign
        assert [each.error for each in parked] == [ErrorCode.REBALANCE_IN_PROGRESS] * len(synced)


def test_restart_of_the_only_member_without_a_sync_ends_the_time_to_sync() -> None:
    driver = Driver()
    first = driver.join(instance="a", version=5).joined.member_id
    second = driver.join(instance="b", version=5)
    driver.join(first, instance="a", version=5)
    driver.sync(first, 2, {first: b"A", second.joined.member_id: b"B"}, instance="a")
    new = driver.join(instance="b", version=5).joined.member_id
    for _ in range(20):
        driver.advance(5_000)
        for instance, member in (("a", first), ("b", new)):
            assert driver.heartbeat(member, 2, instance=instance) is ErrorCode.NONE
    assert classic(driver).state is State.STABLE


def test_requests_to_a_group_that_is_being_deleted_are_sent_to_another_coordinator() -> None:
    driver = Driver()
    leader, follower = static_group(driver)
    classic(driver).state = State.DEAD
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    for member in (leader, follower, "unknown"):
        assert driver.join(member).error is unavailable
        assert driver.sync(member, 2).error is unavailable
    assert driver.join().error is unavailable
    assert driver.heartbeat("unknown", 2) is unavailable
