from dataclasses import replace

import pytest
from group_driver import REBALANCE_MS, SESSION_MS, Driver, Waiting

from penstock.groups.config import GroupConfig
from penstock.protocol.errors import ErrorCode

DELAY = GroupConfig(initial_rebalance_delay_ms=3000)


def handshake(driver: Driver) -> str:
    first = driver.join(version=4)
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    return first.joined.member_id


def test_first_member_of_a_classic_group_becomes_leader_of_generation_1() -> None:
    driver = Driver()
    joined = driver.join().joined
    assert joined.error_code == ErrorCode.NONE
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id
    assert (joined.protocol_type, joined.protocol_name) == ("consumer", "range")
    assert [(each.member_id, each.metadata) for each in joined.members] == [(joined.member_id, b"range-metadata")]
    assert driver.state() == "CompletingRebalance"


def test_dynamic_member_first_gets_a_member_id_and_then_joins_with_it() -> None:
    driver = Driver()
    member_id = handshake(driver)
    assert member_id.startswith("client-")
    assert driver.state() == "Empty"
    assert driver.join(member_id, version=4).joined.member_id == member_id


def test_pending_member_id_expires_after_the_session_timeout() -> None:
    driver = Driver()
    member_id = handshake(driver)
    driver.advance(SESSION_MS)
    assert driver.join(member_id, version=4).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_rebalance_waits_for_a_member_that_got_a_member_id_but_has_not_joined_yet() -> None:
    driver = Driver()
    [leader] = driver.stable()
    pending = handshake(driver)
    rejoined = driver.join(leader)
    assert rejoined.answer is None
    driver.join(pending, version=4)
    assert len(rejoined.joined.members) == 2


def test_static_member_joins_without_first_getting_a_member_id() -> None:
    assert Driver().join(instance="i", version=5).joined.member_id.startswith("i-")


@pytest.mark.parametrize("session_ms", [5999, 1_800_001])
def test_join_with_a_session_timeout_out_of_bounds_is_refused(session_ms: int) -> None:
    assert Driver().join(session_ms=session_ms).error is ErrorCode.INVALID_SESSION_TIMEOUT


def test_join_with_an_empty_group_id_is_refused() -> None:
    assert Driver().join(group="").error is ErrorCode.INVALID_GROUP_ID


def test_join_with_an_id_that_the_coordinator_did_not_generate_is_answered_unknown_member_id() -> None:
    driver = Driver()
    assert driver.join("ghost").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.join("ghost", group="no-such-group").error is ErrorCode.UNKNOWN_MEMBER_ID
    driver.stable()
    assert driver.join("ghost").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_without_protocols_is_refused_and_creates_no_group() -> None:
    driver = Driver()
    assert driver.join(protocols=()).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.join(protocol_type="").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.journal == []
    assert driver.state() == "Dead"


def test_member_without_a_common_protocol_with_the_other_members_is_refused() -> None:
    driver = Driver()
    driver.stable()
    assert driver.join(protocols=(("sticky", b""),)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.join(protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.state() == "Stable"


def test_group_selects_the_common_protocol_that_most_members_prefer() -> None:
    driver = Driver(DELAY)
    first = driver.join(protocols=(("a", b"1"), ("b", b"1"), ("c", b"1")))
    driver.join(protocols=(("b", b"2"), ("c", b"2")))
    driver.join(protocols=(("c", b"3"), ("b", b"3")))
    driver.join(protocols=(("c", b"4"), ("b", b"4")))
    driver.advance(REBALANCE_MS)
    assert first.joined.protocol_name == "b"
    assert {each.metadata for each in first.joined.members} == {b"1", b"2", b"3", b"4"}


def test_each_new_member_extends_the_initial_rebalance_delay() -> None:
    driver = Driver(DELAY)
    first = driver.join()
    driver.advance(2999)
    second = driver.join()
    driver.advance(2999)
    assert first.answer is None
    driver.advance(2)
    assert first.joined.generation_id == second.joined.generation_id == 1


def test_the_first_rebalance_ends_at_the_rebalance_timeout_even_if_members_keep_joining() -> None:
    driver = Driver(DELAY)
    first = driver.join(rebalance_ms=7000)
    for _ in range(3):
        driver.advance(2500)
        driver.join(rebalance_ms=7000)
    assert first.joined.generation_id == 1


def test_a_new_member_starts_a_rebalance_and_all_members_join_the_next_generation() -> None:
    driver = Driver()
    [leader] = driver.stable()
    newcomer = driver.join()
    assert driver.state() == "PreparingRebalance"
    assert driver.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    again = driver.join(leader)
    assert again.joined.generation_id == newcomer.joined.generation_id == 2
    assert newcomer.joined.members == []
    assert len(again.joined.members) == 2


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    newcomer = driver.join(rebalance_ms=5000)
    driver.join(follower)
    while newcomer.answer is None:
        driver.advance(5000)
        driver.heartbeat(leader, 2)
    assert newcomer.joined.leader == follower
    assert driver.heartbeat(leader, 3) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_rejoins_a_stable_group_starts_a_rebalance() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    assert driver.join(leader).answer is None
    assert driver.heartbeat(follower, 2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_follower_that_rejoins_unchanged_gets_the_current_generation() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    joined = driver.join(follower).joined
    assert (joined.generation_id, joined.leader, joined.members) == (2, leader, [])
    assert driver.state() == "Stable"


def test_a_follower_that_rejoins_with_new_metadata_starts_a_rebalance() -> None:
    driver = Driver()
    _, follower = driver.stable(2)
    assert driver.join(follower, protocols=(("range", b"other"),)).answer is None
    assert driver.state() == "PreparingRebalance"


def test_member_that_rejoins_unchanged_during_sync_gets_its_join_response_again() -> None:
    driver = Driver()
    member = driver.join().joined.member_id
    again = driver.join(member).joined
    assert (again.generation_id, again.leader, len(again.members)) == (1, member, 1)


def test_member_that_rejoins_with_new_metadata_during_sync_restarts_the_rebalance() -> None:
    driver = Driver()
    member = driver.join().joined.member_id
    assert driver.join(member, protocols=(("range", b"other"),)).joined.generation_id == 2


def test_full_classic_group_refuses_new_members() -> None:
    driver = Driver(replace(GroupConfig(initial_rebalance_delay_ms=0), max_size=2))
    driver.stable(2)
    refused = driver.join().joined
    assert (refused.error_code, refused.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert driver.state() == "Stable"


def test_join_beyond_the_maximum_group_size_is_refused_during_the_initial_rebalance_delay() -> None:
    driver = Driver(replace(DELAY, max_size=2))
    accepted = [driver.join(), driver.join()]
    assert driver.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    driver.advance(REBALANCE_MS)
    assert all(each.error is ErrorCode.NONE for each in accepted)


def test_second_join_of_a_waiting_member_replaces_its_parked_join() -> None:
    driver = Driver()
    leader, _ = driver.stable(2)
    first, second = driver.join(leader), driver.join(leader)
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.answer is None


def test_new_member_whose_first_join_is_parked_too_long_is_removed() -> None:
    driver = Driver()
    leader, _ = driver.stable(2, rebalance_ms=1_000_000)
    newcomer: Waiting = driver.join(rebalance_ms=1_000_000)
    for _ in range(60):
        driver.advance(SESSION_MS // 2)
        driver.heartbeat(leader, 2)
    assert newcomer.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_records_of_a_new_group_are_committed_before_the_first_join_response() -> None:
    driver = Driver()
    driver.hold_commits = True
    joined = driver.join()
    assert joined.answer is None
    driver.release_commits()
    assert joined.error is ErrorCode.NONE
