from time import thread_time

import pytest
from group_driver import SESSION_MS, Driver

from penstock.groups import membership
from penstock.groups.config import GroupConfig
from penstock.protocol.errors import ErrorCode

pytestmark = pytest.mark.exhaustive

GROUPS, MEMBERS = 1000, 10


def many_stable_groups(driver: Driver) -> list[tuple[str, str]]:
    """Creates stable groups in generation 1, and returns the group id and the member id of every member."""
    waiting = [(f"g{index}", driver.join(group=f"g{index}")) for index in range(GROUPS) for _ in range(MEMBERS)]
    driver.advance(100)
    for group, each in waiting:
        driver.sync(each.joined.member_id, 1, group=group)
    return [(group, each.joined.member_id) for group, each in waiting]


def test_heartbeat_among_ten_thousand_members_takes_a_few_microseconds() -> None:
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=1))
    seats = many_stable_groups(driver)
    shard, now_ms = driver.shard, driver.now_ms
    started = thread_time()
    for group_id, member_id in seats:
        assert membership.heartbeat(shard, group_id, 1, member_id, None, now_ms) is ErrorCode.NONE
    assert (thread_time() - started) / len(seats) < 50e-6  # CPU time; about 1 µs here
    # A timer is queued once per member, not once per heartbeat, besides the timers of the first join.
    for _ in range(4):
        driver.advance(SESSION_MS // 2)
        for group_id, member_id in seats:
            driver.heartbeat(member_id, 1, group=group_id)
    assert len(shard.timers) <= 3 * len(seats)
    assert all(group.state == "Stable" for group in shard.groups.values())
