"""Tests how the limited steps of matching are divided among the patterns of a group."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
from consumer_driver import ConsumerDriver

from penstock.groups.consumer import subscribe
from penstock.groups.consumer.group import ResolvedRegex
from penstock.metadata.patterns import MAX_STEPS, Work
from penstock.protocol.errors import ErrorCode, KafkaError

COSTS = (0, MAX_STEPS // 8, MAX_STEPS // 2, MAX_STEPS)


@pytest.mark.parametrize("costs", list(permutations(COSTS)))
def test_known_patterns_share_the_steps_of_one_heartbeat(
    costs: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pattern gets an equal share of the steps that are left, and a pattern that needs more keeps its topics."""
    driver = ConsumerDriver(topics={"t": 1})
    patterns = [f"{letter}|t" for letter in "abcd"]
    epochs = {
        pattern: driver.enter(pattern[0], subscribed_topic_names=None, subscribed_topic_regex=pattern).member_epoch
        for pattern in patterns
    }
    cost = dict(zip(patterns, costs))
    used: dict[str, int] = {}

    def resolve(turn: Any, image: Any, regex: str, work: Work, sees: Callable[[str], bool]) -> ResolvedRegex:
        used[regex] = min(cost[regex], work.left)
        work.left -= cost[regex]
        if work.left < 0:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, "too costly")
        return ResolvedRegex(frozenset({"t", "new"}), 2, 0)

    monkeypatch.setattr(subscribe, "resolve", resolve)
    driver.see({"t": 1, "new": 1, **dict.fromkeys("abcd", 1)})
    driver.beat("a", epochs["a|t"])
    assert sum(used.values()) <= MAX_STEPS
    left = MAX_STEPS
    for waiting, pattern in zip((4, 3, 2, 1), patterns):
        finished = cost[pattern] <= left // waiting
        assert driver.consumers.regexes[pattern].topics == ({"t", "new"} if finished else {"t"})
        left -= min(cost[pattern], left // waiting)
