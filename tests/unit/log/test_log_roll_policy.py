"""Compares the decision to open a new segment with a plain rule, on both sides of every limit."""

from __future__ import annotations

from itertools import product
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.log.roll_policy import RollPolicy
from penstock.log.segment import MAX_RELATIVE_OFFSET, Segment
from penstock.metadata.configs.topic import LogConfig

BASE = 1000
CREATED_MS = 50_000
ROLL_MS = 700
LIMIT = 300
CONFIG = LogConfig(segment_bytes=LIMIT, segment_ms=ROLL_MS, segment_index_bytes=80)


class Highest(Random):
    """Draws the highest number that it may draw."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        if stop is not None or start < 1:
            raise ValueError("a jitter is drawn from 0 to a positive limit")
        return start - 1


def segment(size: int, first: int | None, *, full: bool = False) -> Segment:
    def is_index_full(limit: int) -> bool:
        assert limit == CONFIG.segment_index_bytes
        return full

    fields = {"size": size, "base_offset": BASE, "first_timestamp": first, "created_ms": CREATED_MS}
    return cast(Segment, SimpleNamespace(**fields, is_index_full=is_index_full))


def test_segment_with_records_is_full_above_each_limit_and_not_at_the_limit() -> None:
    policy = RollPolicy(CONFIG, Highest())
    offsets = (BASE, BASE + MAX_RELATIVE_OFFSET, BASE + MAX_RELATIVE_OFFSET + 1)
    for first, waited, size, last_offset, full in product(
        (-1, 0, 1, 90_000), (0, ROLL_MS, ROLL_MS + 1), (LIMIT - 101, LIMIT - 100, LIMIT - 99), offsets, (False, True)
    ):
        timestamp, now_ms = (first + waited, 0) if first >= 0 else (0, CREATED_MS + waited)
        due = policy.is_due(segment(100, first, full=full), size, timestamp, last_offset, now_ms)
        too_large = 100 + size > LIMIT
        too_far = last_offset - BASE > MAX_RELATIVE_OFFSET
        assert due is (too_large or too_far or waited > ROLL_MS or full)


def test_empty_segment_takes_a_batch_of_any_size_and_age_unless_its_offset_is_too_far() -> None:
    policy = RollPolicy(CONFIG, Highest())
    for size, now_ms, beyond in product((1, LIMIT, LIMIT + 1), (CREATED_MS, CREATED_MS + 10 * ROLL_MS), (0, 1)):
        last_offset = BASE + MAX_RELATIVE_OFFSET + beyond
        assert policy.is_due(segment(0, None), size, now_ms, last_offset, now_ms) is bool(beyond)


@pytest.mark.parametrize("compact", [False, True])
def test_age_limit_is_the_lower_of_two_configs_minus_a_jitter_below_segment_ms(compact: bool) -> None:
    policies = frozenset({"compact"} if compact else {"delete"})
    for segment_ms, lag_ms, jitter_ms in product((500, 700), (400, 500, 900), (0, 1, 300, 500, 5000)):
        config = LogConfig(
            cleanup_policy=policies,
            segment_bytes=LIMIT,
            segment_index_bytes=80,
            segment_ms=segment_ms,
            max_compaction_lag_ms=lag_ms,
            segment_jitter_ms=jitter_ms,
        )
        limit = min(segment_ms, lag_ms) if compact else segment_ms
        limit -= max(0, min(jitter_ms, segment_ms) - 1)
        policy = RollPolicy(config, Highest())
        for waited in (limit, limit + 1):
            due = policy.is_due(segment(1, 90_000), 1, 90_000 + waited, BASE + 1, 0)
            assert due is (waited > limit)
