"""Tests joins that replace what a classic group knew before: its protocol type, a member's client, a parked join."""

from __future__ import annotations

import pytest
from group_driver import Driver
from test_classic_static import static_group

from penstock.groups import admin
from penstock.groups.config import GroupConfig
from penstock.protocol.errors import ErrorCode

FULL = GroupConfig(initial_rebalance_delay_ms=3_000, max_size=2)


@pytest.mark.parametrize("before", ["consumer", "connect"])
@pytest.mark.parametrize("after", ["consumer", "connect"])
@pytest.mark.parametrize("reloaded", [False, True])
def test_emptied_group_takes_the_protocol_type_of_its_next_member(before: str, after: str, reloaded: bool) -> None:
    driver = Driver()
    former = driver.join(protocol_type=before).joined.member_id
    driver.sync(former, 1, {})
    driver.leave(former)
    if reloaded:
        driver = driver.reload()
    joined = driver.join(protocol_type=after).joined
    assert (joined.protocol_type, joined.generation_id) == (after, 3)
    synced = driver.sync(joined.member_id, 3, {}, protocol_type=after)
    assert synced.error is ErrorCode.NONE
    assert synced.synced.protocol_type == after
    described = admin.describe(driver.shard, "g", 6)
    assert (described.protocol_type, described.group_state) == (after, "Stable")
    [listed] = admin.list_groups(driver.reload().shard.groups.values(), frozenset(), frozenset())
    assert listed.protocol_type == after


def test_restarted_static_member_is_described_and_stored_with_its_new_client() -> None:
    driver = Driver()
    static_group(driver)
    driver.join(instance="b", version=5, client="restarted")
    for each in (driver, driver.reload()):
        clients = {one.group_instance_id: one.client_id for one in admin.describe(each.shard, "g", 6).members}
        assert clients == {"a": "client", "b": "restarted"}


def test_member_of_a_full_group_may_repeat_its_parked_join() -> None:
    driver = Driver(FULL)
    ids = [driver.join(version=4).answer.member_id for _ in range(3)]
    first, second = (driver.join(member, version=4) for member in ids[:2])
    refused = driver.join(ids[2], version=4)
    assert (refused.error, refused.answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    again = [driver.join(member, version=4) for member in ids[:2]]
    assert [each.error for each in (first, second)] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    driver.advance(FULL.initial_rebalance_delay_ms * 3)
    assert [each.joined.member_id for each in again] == ids[:2]
    assert {each.error for each in again} == {ErrorCode.NONE}


@pytest.mark.parametrize("instance", [None, "i"])
@pytest.mark.parametrize("session_ms", [7_000, 20_000])
def test_member_that_joins_again_has_the_session_timeout_of_its_last_join(
    session_ms: int, instance: str | None
) -> None:
    driver = Driver()
    member = driver.join(instance=instance, version=3 if instance is None else 5).joined.member_id
    driver.sync(member, 1, {member: b"A"}, instance=instance)
    if instance is None:
        driver.join(member, session_ms=session_ms)
        driver.sync(member, 2, {member: b"A"})
    else:
        member = driver.join(instance=instance, version=5, session_ms=session_ms).joined.member_id
        driver.sync(member, 1, instance=instance)
    driver.advance(session_ms - 1)
    assert driver.state() == "Stable"
    driver.advance(1)
    assert driver.state() == "Empty"
