"""A coordinator whose memory is used up refuses new groups, members and offsets, and goes on with those it has."""

from __future__ import annotations

from random import Random

from consumer_driver import ConsumerDriver
from group_driver import Driver

from penstock.allowance import FULL_RECOUNT_MS, Allowance
from penstock.groups.config import GroupConfig
from penstock.groups.shard import GroupShard
from penstock.protocol.errors import ErrorCode

CONFIG = GroupConfig(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0)


def bound(driver: Driver, limit: int) -> Allowance:
    allowance = driver.shard.allowance = Allowance(limit)
    allowance.counted_by(driver.shard.held_bytes)
    return allowance


def test_new_groups_are_refused_and_members_that_are_in_come_back() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    allowance = bound(driver, 10_000)
    joined = []
    for number in range(10):
        waiting = driver.join(group=f"g{number}")
        if waiting.error is ErrorCode.POLICY_VIOLATION:
            break
        joined.append(waiting.joined.member_id)
    assert 2 <= len(joined) < 10
    assert f"g{len(joined)}" not in driver.shard.groups
    assert driver.shard.held_bytes() <= allowance.limit
    again = driver.join(joined[0], group="g0")
    assert again.error is ErrorCode.NONE
    driver.leave(joined[0], group="g0")
    driver.leave(joined[1], group="g1")
    driver.now_ms += FULL_RECOUNT_MS
    assert driver.join(group="g0").error is ErrorCode.NONE


def test_member_ids_that_were_handed_out_count() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    allowance = bound(driver, 10_000)
    codes = []
    for _ in range(20):
        codes.append(driver.join(version=9).error)
        driver.now_ms += FULL_RECOUNT_MS // 10
    assert codes[0] is ErrorCode.MEMBER_ID_REQUIRED
    assert codes[-1] is ErrorCode.POLICY_VIOLATION
    assert driver.shard.held_bytes() <= allowance.limit


def test_large_metadata_of_members_counts() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    bound(driver, 1_000_000)
    assert driver.join(group="a", protocols=(("range", bytes(600_000)),)).error is ErrorCode.NONE
    assert driver.join(group="b", protocols=(("range", bytes(600_000)),)).error is ErrorCode.POLICY_VIOLATION
    assert driver.join(group="c").error is ErrorCode.NONE
    group = driver.shard.groups["a"]
    (member,) = group.members
    driver.leave(member, group="a")
    assert driver.shard.held_bytes() < 10_000


def test_members_of_the_consumer_protocol_are_refused_with_a_message() -> None:
    driver = ConsumerDriver()
    bound(driver, 7_000)
    answers = [driver.enter(f"m{number}") for number in range(10)]
    codes = [answer.error_code for answer in answers]
    assert codes[0] == ErrorCode.NONE
    assert codes[-1] == ErrorCode.POLICY_VIOLATION
    assert "penstock.coordinator.max.bytes" in str(answers[-1].error_message)
    assert len(driver.shard.groups["g"].members) == codes.count(ErrorCode.NONE)
    again = driver.enter("m0")
    assert again.error_code == ErrorCode.NONE


def test_offsets_are_refused_when_they_are_new_and_replaced_when_they_are_not() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    bound(driver, 10_000)
    assert driver.commit({("t", 0): 5}, metadata="m" * 4000) == [ErrorCode.NONE]
    assert driver.commit({("t", 0): 6}, metadata="m" * 4000, group="h") == [ErrorCode.POLICY_VIOLATION]
    assert "h" not in driver.shard.groups
    assert driver.commit({("t", 0): 7}, metadata="m" * 4000) == [ErrorCode.NONE]
    assert driver.shard.held_bytes() < 6_000


def test_the_memory_of_offsets_is_known_after_every_change() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    offsets = driver.shard.offsets
    driver.commit({("t", 0): 5}, metadata="m" * 100)
    driver.commit({("t", 1): 5})
    both = offsets.bytes
    driver.commit({("t", 0): 6})
    assert offsets.bytes == both - 100
    again = driver.reload().shard.offsets
    again.of_group("g")
    assert again.bytes == offsets.bytes
    driver.run(lambda turn: offsets.erase_group(turn, "g"))
    assert offsets.bytes == 0
