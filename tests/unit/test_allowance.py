"""Tests that memory grants stay within the limit. Granted bytes are added up until the used memory is counted again."""

from penstock.allowance import FULL_RECOUNT_MS, RECOUNT_MS, Allowance


class Held:
    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.counted = 0

    def __call__(self) -> int:
        self.counted += 1
        return self.size


def test_memory_used_before_the_first_grant_counts_towards_the_limit() -> None:
    held = Held(60)
    allowance = Allowance(100)
    allowance.counted_by(held)
    assert allowance.grant(40, 0)
    assert not allowance.grant(1, 1)
    assert allowance.grant(0, 1)
    assert allowance.grant(-5, 1)


def test_memory_in_use_is_not_counted_again_at_every_refused_request_for_memory() -> None:
    held = Held(100)
    allowance = Allowance(100)
    allowance.counted_by(held)
    assert [allowance.grant(1, now_ms) for now_ms in range(FULL_RECOUNT_MS)] == [False] * FULL_RECOUNT_MS
    assert held.counted == 1
    held.size = 50
    assert allowance.grant(50, FULL_RECOUNT_MS)
    assert held.counted == 2


def test_memory_used_without_a_grant_is_noticed_when_memory_is_counted_again() -> None:
    held = Held()
    allowance = Allowance(100)
    allowance.counted_by(held)
    assert allowance.grant(1, 0)
    held.size = 100
    assert not allowance.grant(1, RECOUNT_MS)


def test_memory_limit_applies_to_the_sum_of_all_memory_users() -> None:
    allowance = Allowance(100)
    allowance.counted_by(Held(50))
    allowance.counted_by(Held(50))
    assert not allowance.grant(1, 0)
    assert Allowance().grant(1 << 60, 0)
