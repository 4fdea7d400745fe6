"""Tests that a coordinator without free memory refuses new transactional ids, and keeps serving existing ids."""

from __future__ import annotations

from transaction_driver import T0, T1, Driver

from penstock.allowance import Allowance
from penstock.protocol.errors import ErrorCode
from penstock.transactions.transaction import PARTITION_BYTES


def test_new_transactional_ids_are_refused_at_the_memory_limit_and_known_ids_continue() -> None:
    driver = Driver()
    allowance = driver.shard.allowance = Allowance(3_000)
    allowance.counted_by(lambda: driver.shard.held_bytes)
    codes = [driver.init(f"x{number}").code for number in range(10)]
    assert codes[0] is ErrorCode.NONE
    assert codes[-1] is ErrorCode.POLICY_VIOLATION
    assert len(driver.shard.transactions) == codes.count(ErrorCode.NONE)
    assert driver.shard.held_bytes <= allowance.limit
    assert driver.init("x0").code is ErrorCode.NONE


def test_counted_memory_of_transactions_is_correct_after_every_change() -> None:
    driver = Driver()
    answer = driver.init("x")
    empty = driver.shard.held_bytes
    assert driver.add(answer, T0, T1, name="x") is ErrorCode.NONE
    assert driver.shard.held_bytes > empty
    assert driver.reload().shard.held_bytes == driver.shard.held_bytes
    driver.run(lambda turn: turn.erase("x"))
    assert driver.shard.held_bytes == 0


def test_added_partitions_need_memory_only_if_they_are_new() -> None:
    driver = Driver()
    who = driver.init()
    assert driver.add(who, T0, T1) is ErrorCode.NONE
    allowance = driver.shard.allowance = Allowance(driver.shard.held_bytes + PARTITION_BYTES)
    allowance.counted_by(lambda: driver.shard.held_bytes)
    assert driver.add(who, T0, T1, ("t", 2), ("t", 3)) is ErrorCode.POLICY_VIOLATION
    assert driver.transaction().partitions == {T0, T1}
    assert driver.add(who, T0, T1, ("t", 2)) is ErrorCode.NONE
    assert driver.add(who, T0, T1, ("t", 2)) is ErrorCode.NONE
    driver.advance(1_000)  # the memory is counted again
    assert driver.add(who, ("t", 3)) is ErrorCode.POLICY_VIOLATION
    assert driver.shard.held_bytes == allowance.limit
