"""Tests which heartbeats are answered with an assignment, and which members see topics that a pattern matches later."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from consumer_driver import REVOKE_MS, ConsumerDriver, shares
from test_group_migration import CONFIG, metadata

FIELDS: dict[str, Any] = {
    "rebalance_timeout_ms": REVOKE_MS,
    "owned": {"t": [0, 1]},
    "subscribed_topic_names": ["t"],
    "subscribed_topic_regex": "",
}


@pytest.mark.parametrize("given", list(product([False, True], repeat=len(FIELDS))))
def test_assignment_is_repeated_only_for_a_heartbeat_with_all_fields(given: tuple[bool, ...]) -> None:
    driver = ConsumerDriver(CONFIG, {"t": 2})
    epoch = driver.enter("a").member_epoch
    timeout, owned, names, regex = given
    sent = {name: value for (name, value), is_given in zip(FIELDS.items(), given) if is_given}
    answer = driver.beat("a", epoch, **sent)
    assert answer.member_epoch == epoch
    assert shares(answer) == ({"t": [0, 1]} if timeout and owned and (names or regex) else None)


@pytest.mark.parametrize("first", ["join", "heartbeat", "timer"])
def test_topic_that_a_pattern_matches_is_assigned_although_another_event_sees_the_change_first(first: str) -> None:
    driver = ConsumerDriver(CONFIG, {"t": 2})
    epoch = driver.enter("a", "t", subscribed_topic_regex="n.*").member_epoch
    classic = driver.join("c", protocols=metadata()).joined
    driver.sync("c", classic.generation_id)
    for _ in range(2):
        held = driver.consumers.members["a"].assigned
        epoch = driver.beat("a", epoch, owned={"t": sorted(*held.values())} if held else {}).member_epoch
    driver.see({"t": 2, "new": 1})
    if first == "join":
        driver.join("c", protocols=metadata())
    elif first == "heartbeat":
        driver.heartbeat("c", driver.consumers.members["c"].epoch)
    else:
        driver.enter("b", "t")
        driver.beat("b", -1)
    driver.beat("a", epoch)
    assert driver.consumers.regexes["n.*"].topics == {"new"}
    assert any(driver.shard.topic_id("new") in target for target in driver.consumers.target.values())
