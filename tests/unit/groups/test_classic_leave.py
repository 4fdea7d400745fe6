from group_driver import Driver

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_13_leave_group import LeaveGroupResponse


def codes(response: LeaveGroupResponse) -> list[ErrorCode]:
    return [ErrorCode(each.error_code) for each in response.members]


def test_group_becomes_empty_and_starts_a_new_generation_when_its_last_member_leaves() -> None:
    driver = Driver()
    [member] = driver.stable()
    assert codes(driver.leave(member)) == [ErrorCode.NONE]
    assert driver.state() == "Empty"
    assert driver.join().joined.generation_id == 3


def test_a_leaving_member_starts_a_rebalance_at_once() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    driver.leave(leader)
    assert driver.heartbeat(follower, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.join(follower).joined.leader == follower


def test_join_phase_ends_when_the_only_member_that_has_not_rejoined_leaves() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    rejoined = driver.join(leader)
    driver.leave(follower)
    assert rejoined.joined.generation_id == 3


def test_the_parked_join_of_a_leaving_member_gets_unknown_member_id() -> None:
    driver = Driver()
    leader, _ = driver.stable(2)
    waiting = driver.join(leader)
    driver.leave(leader)
    assert waiting.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_leave_request_with_several_members_returns_one_result_for_each_member() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    assert codes(driver.leave(leader, "ghost", follower)) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert driver.state() == "Empty"


def test_member_that_got_a_member_id_but_has_not_joined_yet_can_leave() -> None:
    driver = Driver()
    pending = driver.join(version=4).joined.member_id
    assert codes(driver.leave(pending)) == [ErrorCode.NONE]
    assert driver.join(pending, version=4).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    driver = Driver()
    driver.stable(instance="i", version=5)
    assert codes(driver.leave(("", "other"))) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert codes(driver.leave(("", "i"))) == [ErrorCode.NONE]
    assert driver.state() == "Empty"


def test_leave_with_the_old_id_of_a_restarted_static_member_is_fenced() -> None:
    driver = Driver()
    [old] = driver.stable(instance="i", version=5)
    driver.join(instance="i", version=5)
    assert codes(driver.leave((old, "i"))) == [ErrorCode.FENCED_INSTANCE_ID]


def test_leave_request_for_an_unknown_group_or_an_empty_group_id_is_refused() -> None:
    driver = Driver()
    assert codes(driver.leave("m")) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.leave("m", group="").error_code == ErrorCode.INVALID_GROUP_ID


def test_rebalance_waits_for_the_remaining_members_after_a_rejoined_member_left() -> None:
    driver = Driver()
    first, second, third = driver.stable(3)
    driver.join(first)
    driver.leave(first)
    rejoined = driver.join(second)
    assert rejoined.answer is None
    driver.join(third)
    assert sorted(each.member_id for each in rejoined.joined.members) == sorted([second, third])


def test_rebalance_does_not_wait_for_a_member_that_left_before_its_first_join() -> None:
    driver = Driver()
    [member] = driver.stable(1)
    pending = driver.join(version=4).joined.member_id
    driver.leave(pending)
    assert driver.join(member).joined.error_code == ErrorCode.NONE
