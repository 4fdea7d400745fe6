from group_driver import REBALANCE_MS, SESSION_MS, Driver

from penstock.groups import admin
from penstock.protocol.errors import ErrorCode


def test_sync_requests_of_followers_wait_for_the_leaders_assignments() -> None:
    driver = Driver()
    leader = driver.join().joined.member_id
    follower_join = driver.join()
    driver.join(leader)
    follower = follower_join.joined.member_id
    follower_sync = driver.sync(follower, 2)
    assert follower_sync.answer is None
    leader_sync = driver.sync(leader, 2, {leader: b"L", follower: b"F"})
    assert (leader_sync.synced.assignment, follower_sync.synced.assignment) == (b"L", b"F")
    assert (leader_sync.synced.protocol_type, leader_sync.synced.protocol_name) == ("consumer", "range")
    assert driver.state() == "Stable"


def test_member_that_the_leader_assigned_nothing_gets_an_empty_assignment() -> None:
    driver = Driver()
    leader = driver.join().joined.member_id
    assert driver.sync(leader, 1, {}).synced.assignment == b""


def test_repeated_sync_in_a_stable_group_returns_the_same_assignment() -> None:
    driver = Driver()
    _, follower = driver.stable(2)
    assert driver.sync(follower, 2).synced.assignment == b"to " + follower.encode()


def test_the_assignment_is_committed_before_any_member_gets_it() -> None:
    driver = Driver()
    leader = driver.join().joined.member_id
    driver.hold_commits = True
    sync = driver.sync(leader, 1, {leader: b"L"})
    assert sync.answer is None
    assert driver.state() == "CompletingRebalance"
    driver.release_commits()
    assert sync.synced.assignment == b"L"


def test_assignment_that_is_committed_only_after_the_next_rebalance_began_is_ignored() -> None:
    driver = Driver()
    leader = driver.join().joined.member_id
    driver.hold_commits = True
    sync = driver.sync(leader, 1, {leader: b"L"})
    driver.join()
    assert sync.error is ErrorCode.REBALANCE_IN_PROGRESS
    driver.release_commits()
    assert driver.state() == "PreparingRebalance"


def test_assignment_that_the_log_refuses_fails_the_syncs_and_restarts_the_rebalance() -> None:
    driver = Driver()
    leader = driver.join().joined.member_id
    driver.hold_commits = True
    sync = driver.sync(leader, 1, {leader: b"L"})
    driver.release_commits(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert sync.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.state() == "PreparingRebalance"


def test_sync_with_a_wrong_member_or_generation_or_protocol_is_refused() -> None:
    driver = Driver()
    assert driver.sync("x", 1, group="").error is ErrorCode.INVALID_GROUP_ID
    assert driver.sync("x", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    leader, _ = driver.stable(2)
    assert driver.sync("x", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.sync(leader, 1).error is ErrorCode.ILLEGAL_GENERATION
    assert driver.sync(leader, 2, protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.sync(leader, 2, protocol_name="sticky").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.sync(leader, 2, protocol_type="consumer", protocol_name="range").error is ErrorCode.NONE
    driver.join()
    assert driver.sync(leader, 2).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_heartbeat_error_code_depends_on_the_state_of_the_group() -> None:
    driver = Driver()
    assert driver.heartbeat("x", 1, group="") is ErrorCode.INVALID_GROUP_ID
    assert driver.heartbeat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    leader = driver.join().joined.member_id
    assert driver.heartbeat(leader, 1) is ErrorCode.NONE
    driver.sync(leader, 1, {leader: b"L"})
    assert driver.heartbeat(leader, 1) is ErrorCode.NONE
    assert driver.heartbeat(leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert driver.heartbeat("x", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    driver.join()
    assert driver.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_member_stays_in_the_group_while_it_sends_heartbeats_within_its_session_timeout() -> None:
    driver = Driver()
    [member] = driver.stable()
    for _ in range(5):
        driver.advance(SESSION_MS - 1)
        assert driver.heartbeat(member, 1) is ErrorCode.NONE
    driver.advance(SESSION_MS)
    assert driver.heartbeat(member, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.state() == "Empty"


def test_member_without_heartbeats_is_removed_and_the_other_members_rebalance() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    driver.advance(SESSION_MS - 1)
    driver.heartbeat(follower, 2)
    driver.advance(1)
    assert driver.heartbeat(follower, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = driver.join(follower).joined
    assert (joined.generation_id, joined.leader) == (3, follower)
    assert driver.heartbeat(leader, 3) is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_with_a_parked_join_stays_in_the_group_without_heartbeats() -> None:
    driver = Driver()
    leader, follower = driver.stable(2, session_ms=SESSION_MS)
    waiting = driver.join(leader)
    for _ in range(5):
        driver.advance(SESSION_MS - 1)
        driver.heartbeat(follower, 2)
    assert waiting.answer is None
    driver.join(follower)
    assert waiting.error is ErrorCode.NONE


def test_member_that_joins_but_sends_no_sync_is_removed_at_the_rebalance_timeout() -> None:
    driver = Driver()
    leader = driver.join().joined.member_id
    follower = driver.join()
    driver.join(leader)
    for _ in range(REBALANCE_MS // 5000):
        driver.advance(5000)
        driver.heartbeat(leader, 2)
        driver.heartbeat(follower.joined.member_id, 2)
        if driver.state() == "CompletingRebalance" and driver.now_ms == 5000:
            driver.sync(leader, 2, {})
    assert driver.heartbeat(follower.joined.member_id, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(leader, 2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_second_sync_of_a_member_replaces_its_parked_sync_which_gets_rebalance_in_progress() -> None:
    driver = Driver()
    leader = driver.join().joined.member_id
    follower = driver.join()
    driver.join(leader)
    member, generation = follower.joined.member_id, follower.joined.generation_id
    parked = driver.sync(member, generation)
    repeated = driver.sync(member, generation)
    assert parked.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert repeated.answer is None
    driver.sync(leader, generation, {member: b"mine"})
    assert repeated.synced.assignment == b"mine"


def test_members_have_no_assignment_after_a_generation_that_ended_before_its_leader_assigned() -> None:
    driver = Driver()
    ids = driver.stable(3)

    def assignments() -> list[bytes]:
        return [each.member_assignment for each in admin.describe(driver.shard, "g", 6).members]

    assert assignments() == [b"to " + member.encode() for member in ids]
    waiting = [driver.join(member) for member in ids]
    driver.sync(ids[1], waiting[1].joined.generation_id)
    driver.leave(ids[2])
    assert driver.state() == "PreparingRebalance"
    assert assignments() == [b"", b""]
