"""Tests static members of classic groups (KIP-345): a restarted member keeps its membership and its partitions."""

import pytest
from group_driver import REBALANCE_MS, SESSION_MS, Driver

from penstock.groups.classic.group import ClassicGroup
from penstock.protocol.errors import ErrorCode


def static_group(driver: Driver) -> tuple[str, str]:
    """Returns a stable group in generation 2 with instances a (the leader) and b."""
    first = driver.join(instance="a", version=5).joined.member_id
    second = driver.join(instance="b", version=5)
    driver.join(first, instance="a", version=5)
    member = second.joined.member_id
    driver.sync(first, 2, {first: b"A", member: b"B"}, instance="a")
    driver.sync(member, 2, instance="b")
    return first, member


def test_a_restarted_follower_keeps_its_assignment_without_a_rebalance() -> None:
    driver = Driver()
    leader, _ = static_group(driver)
    joined = driver.join(instance="b", version=5).joined
    assert (joined.generation_id, joined.leader, joined.members) == (2, leader, [])
    assert driver.state() == "Stable"
    assert driver.sync(joined.member_id, 2, instance="b").synced.assignment == b"B"
    assert driver.heartbeat(leader, 2, instance="a") is ErrorCode.NONE


def test_requests_with_the_old_member_id_of_a_restarted_static_member_are_fenced() -> None:
    driver = Driver()
    _, follower = static_group(driver)
    driver.join(instance="b", version=5)
    assert driver.heartbeat(follower, 2, instance="b") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.sync(follower, 2, instance="b").error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.join(follower, instance="b", version=5).error is ErrorCode.FENCED_INSTANCE_ID


def test_restarted_static_leader_with_join_group_v8_gets_its_old_member_id_as_leader_id() -> None:
    driver = Driver()
    leader, _ = static_group(driver)
    joined = driver.join(instance="a", version=8).joined
    assert (joined.leader, joined.members, joined.skip_assignment) == (leader, [], False)


def test_restarted_static_leader_with_join_group_v9_gets_the_members_and_skips_the_assignment() -> None:
    driver = Driver()
    static_group(driver)
    joined = driver.join(instance="a", version=9).joined
    assert joined.leader == joined.member_id
    assert joined.skip_assignment
    assert {each.group_instance_id for each in joined.members} == {"a", "b"}
    assert driver.sync(joined.member_id, 2, instance="a").synced.assignment == b"A"


def test_restarted_static_follower_gets_a_join_group_v9_response_without_a_member_list() -> None:
    driver = Driver()
    static_group(driver)
    joined = driver.join(instance="b", version=9).joined
    assert (joined.skip_assignment, joined.members) == (False, [])


def test_restart_of_a_static_member_that_changes_the_selected_protocol_starts_a_rebalance() -> None:
    driver = Driver()
    both = (("range", b""), ("sticky", b""))
    first = driver.join(instance="a", version=5, protocols=both).joined.member_id
    driver.sync(first, 1, {}, instance="a")
    joined = driver.join(instance="a", version=5, protocols=(("sticky", b""),))
    assert joined.joined.generation_id == 2
    assert joined.joined.protocol_name == "sticky"


def test_static_member_that_restarts_during_sync_restarts_the_rebalance() -> None:
    driver = Driver()
    first = driver.join(instance="a", version=5).joined.member_id
    second = driver.join(instance="b", version=5)
    driver.join(first, instance="a", version=5)
    waiting = driver.sync(second.joined.member_id, 2, instance="b")
    driver.join(instance="b", version=5)
    assert waiting.error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.state() == "PreparingRebalance"


def test_restart_of_a_static_member_in_the_join_phase_fences_the_parked_join_of_its_old_id() -> None:
    driver = Driver()
    leader, follower = static_group(driver)
    driver.join(leader, instance="a", version=5)
    old = driver.join(follower, instance="b", version=5, protocols=(("range", b"x"),))
    assert old.joined.generation_id == 3
    driver.join(leader, instance="a", version=5, protocols=(("range", b"y"),))
    waiting = driver.join(instance="b", version=5)
    assert waiting.error is ErrorCode.NONE
    assert waiting.joined.generation_id == 4


def test_stopped_static_member_stays_in_the_group_until_its_session_times_out() -> None:
    driver = Driver()
    leader, _ = static_group(driver)
    driver.advance(SESSION_MS - 1)
    assert driver.heartbeat(leader, 2, instance="a") is ErrorCode.NONE
    assert driver.state() == "Stable"
    driver.advance(1)
    assert driver.heartbeat(leader, 2, instance="a") is ErrorCode.REBALANCE_IN_PROGRESS


def test_new_id_of_a_restarted_static_member_is_committed_before_the_response_and_survives_a_reload() -> None:
    driver = Driver()
    static_group(driver)
    driver.hold_commits = True
    joined = driver.join(instance="b", version=5)
    assert joined.answer is None
    driver.release_commits()
    other = driver.reload()
    assert other.heartbeat(joined.joined.member_id, 2, instance="b") is ErrorCode.NONE


def test_rebalance_of_static_members_waits_until_at_least_one_member_rejoins() -> None:
    driver = Driver()
    _, second = static_group(driver)
    driver.leave(("", "a"))
    for _ in range(14):
        driver.advance(5000)
        assert driver.heartbeat(second, 2, instance="b") is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.state() == "PreparingRebalance"
    waiting = driver.join(second, instance="b", version=5)
    assert waiting.joined.leader == second


def test_new_member_becomes_group_leader_if_the_static_members_do_not_rejoin_in_time() -> None:
    driver = Driver()
    session_ms = 2 * REBALANCE_MS
    leader = driver.join(instance="i", session_ms=session_ms).joined.member_id
    second = driver.join(instance="j", session_ms=session_ms)
    driver.join(leader, instance="i", session_ms=session_ms)
    driver.sync(leader, 2, {leader: b""})
    driver.sync(second.joined.member_id, 2)
    other = driver.join(session_ms=session_ms)
    driver.advance(REBALANCE_MS)
    assert other.joined.leader == other.joined.member_id
    assert len(other.joined.members) == 3


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_join_of_a_restarted_leader_is_answered_by_the_join_phase_that_began_before_its_record_was_committed(
    code: ErrorCode,
) -> None:
    """The new member does not support the protocol of the generation that ends, so that generation can't be listed."""
    driver = Driver()
    both, other = (("range", b"r"), ("other", b"o")), (("other", b"o"),)
    first = driver.join(instance="a", version=9, protocols=both).joined.member_id
    second = driver.join(instance="b", version=9, protocols=both)
    driver.join(first, instance="a", version=9, protocols=both)
    driver.sync(first, 2, {}, instance="a")
    driver.hold_commits = True
    restarted = driver.join(instance="a", version=9, protocols=both)
    new = driver.join(protocols=other)
    driver.release_commits(code)
    assert restarted.answer is None
    driver.join(second.joined.member_id, instance="b", version=9, protocols=both)
    assert restarted.joined.generation_id == new.joined.generation_id == 3
    assert restarted.joined.protocol_name == "other"
    assert len(restarted.joined.members) == 3


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR])
@pytest.mark.parametrize("held_ms", [1000, SESSION_MS + 1000])
def test_session_of_a_restarted_static_member_begins_when_its_join_is_answered(code: ErrorCode, held_ms: int) -> None:
    driver = Driver()
    leader, _ = static_group(driver)
    driver.hold_commits = True
    restarted = driver.join(instance="b", version=5)
    for _ in range(held_ms // 1000):
        driver.advance(1000)
        driver.heartbeat(leader, 2, instance="a")
    driver.release_commits(code)
    assert restarted.answer is not None
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    for _ in range(SESSION_MS // 1000):
        assert "b" in group.static_members
        driver.advance(1000)
        driver.heartbeat(leader, 2, instance="a")
    assert "b" not in group.static_members, "it sent nothing for the whole session timeout"


def test_restarted_static_member_keeps_its_membership_beyond_the_session_of_its_previous_process() -> None:
    driver = Driver()
    leader, _ = static_group(driver)
    driver.advance(SESSION_MS - 100)
    driver.heartbeat(leader, 2, instance="a")
    restarted = driver.join(instance="b", version=5).joined.member_id
    driver.advance(200)
    assert driver.heartbeat(restarted, 2, instance="b") is ErrorCode.NONE


def test_group_does_not_wait_for_the_sync_of_a_static_member_that_restarted() -> None:
    driver = Driver()
    first = driver.join(instance="a", version=9).joined.member_id
    driver.join(instance="b", version=9)
    driver.join(first, instance="a", version=9)
    driver.sync(first, 2, {}, instance="a")
    restarted = driver.join(instance="b", version=9).joined.member_id
    for _ in range(REBALANCE_MS // 1000 + 1):
        driver.advance(1000)
        assert driver.heartbeat(first, 2, instance="a") is ErrorCode.NONE
        assert driver.heartbeat(restarted, 2, instance="b") is ErrorCode.NONE
