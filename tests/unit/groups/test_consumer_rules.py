"""Tests rules of consumer groups with several members, topics and patterns that change at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from consumer_driver import SESSION_MS, ConsumerDriver, error, shares, topic_id
from test_group_migration import CONFIG, classic_pair
from test_group_offsets import expire

from penstock.groups import consumer_requests
from penstock.groups.config import GroupConfig
from penstock.groups.consumer.advance import preferred_assignor
from penstock.groups.consumer.group import ConsumerMember
from penstock.groups.turn import Caller
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_68_consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.protocol.messages.api_69_consumer_group_describe import Assignment

DAY_MS = 24 * 60 * 60 * 1000


def named(assignment: Assignment) -> dict[str, list[int]]:
    return {each.topic_name: each.partitions for each in assignment.topic_partitions}


def settle(driver: ConsumerDriver, rounds: int = 4) -> None:
    """Lets every member own exactly what it is assigned, until the group is stable."""
    for _ in range(rounds):
        for member in list(driver.consumers.members.values()):
            owned = {topic.rstrip(b".").decode(): list(some) for topic, some in member.assigned.items()}
            driver.beat(member.member_id, member.epoch, owned=owned, instance_id=member.instance_id)
    assert driver.describe().group_state == "Stable"


def test_heartbeat_that_changes_the_group_extends_only_the_session_of_its_own_member() -> None:
    driver = ConsumerDriver(topics={"t": 4, "u": 1})
    driver.enter("a")
    epoch = driver.enter("b").member_epoch
    driver.advance(SESSION_MS - 1)
    assert error(driver.beat("b", epoch, subscribed_topic_names=["t", "u"])) is ErrorCode.NONE
    driver.enter("c")
    driver.advance(1)
    assert set(driver.consumers.members) == {"b", "c"}


def test_description_of_a_member_lists_the_partitions_of_every_topic_that_it_still_has_to_revoke() -> None:
    driver = ConsumerDriver(topics={"t": 4, "u": 4})
    epoch = driver.enter("a", "t", "u", server_assignor="range").member_epoch
    driver.enter("b", "t", "u", server_assignor="range")
    driver.beat("a", epoch)
    member = driver.consumers.members["a"]
    assert set(member.pending_revocation) == set(member.assigned) == {topic_id("t"), topic_id("u")}
    assert named(driver.describe().members[0].assignment) == {"t": [0, 1, 2, 3], "u": [0, 1, 2, 3]}


@pytest.mark.parametrize("interval_ms", [0, 10_000])
def test_upgraded_group_is_assigned_at_once_whatever_the_interval_between_assignments(interval_ms: int) -> None:
    driver = ConsumerDriver(replace(CONFIG, consumer_assignment_interval_ms=interval_ms))
    classic_pair(driver)
    assert error(driver.enter("new")) is ErrorCode.NONE
    assert sum(map(len, driver.consumers.target["new"].values())) == 1
    assert driver.describe().group_state == "Reconciling"


def test_first_member_without_topics_gets_an_epoch_with_which_it_can_send_heartbeats() -> None:
    driver = ConsumerDriver()
    response = driver.enter("a", subscribed_topic_names=[])
    assert response.member_epoch > 0
    assert driver.describe().group_epoch == driver.describe().assignment_epoch == response.member_epoch
    assert driver.beat("a", response.member_epoch).member_epoch == response.member_epoch
    assert error(driver.beat("a", response.member_epoch + 1)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert driver.reload().shard.remembered() == driver.shard.remembered()


@pytest.mark.parametrize("instance", ["i", "j"])
def test_returning_static_member_keeps_its_partitions_when_topics_grew_meanwhile(instance: str) -> None:
    driver = ConsumerDriver()
    driver.enter("a", instance_id="i")
    driver.enter("b", instance_id="j")
    settle(driver)
    before = {each.instance_id: each.assigned[topic_id("t")].keys() for each in driver.consumers.members.values()}
    old = driver.consumers.static_members[instance]
    driver.beat(old, -2, instance_id=instance)
    driver.see({"t": 8})
    driver.enter("new", instance_id=instance)
    for _ in range(2):
        driver.beat("new", driver.consumers.members["new"].epoch, instance_id=instance)
    target = driver.consumers.target
    assert old not in target
    for member in driver.consumers.members.values():
        assert before[member.instance_id] < target[member.member_id][topic_id("t")]


def test_static_member_that_leaves_for_a_while_releases_the_partitions_that_it_had_to_revoke() -> None:
    driver = ConsumerDriver()
    epoch = driver.enter("a", instance_id="i").member_epoch
    other = driver.enter("b").member_epoch
    kept = shares(driver.beat("a", epoch, instance_id="i"))
    assert shares(driver.beat("b", other)) is None
    driver.beat("a", -2, instance_id="i")
    got = shares(driver.beat("b", other))
    assert kept is not None
    assert got is not None
    assert sorted([*kept["t"], *got["t"]]) == [0, 1, 2, 3]


# --- topics


@pytest.mark.parametrize("changed", ["t", "u", "v"])
def test_change_of_any_subscribed_topic_causes_a_new_assignment(changed: str) -> None:
    topics = {"t": 2, "u": 2, "v": 2}
    driver = ConsumerDriver(topics=topics)
    epoch = driver.enter("a", "a-missing", "t", "u", "v", "z-missing").member_epoch
    for count in (3, 4):
        driver.see({**topics, changed: count})
        epoch += 1
        response = driver.beat("a", epoch - 1)
        assert response.member_epoch == epoch
        assert shares(response) == {**{name: [0, 1] for name in topics}, changed: list(range(count))}
    driver.see({**topics, changed: 4, "other": 1})
    assert driver.beat("a", epoch).member_epoch == epoch


def test_change_of_the_rack_of_any_replica_causes_a_new_assignment() -> None:
    driver = ConsumerDriver(topics={"t": 3, "u": 1})
    epoch = driver.enter("a", "t", "u").member_epoch
    for racks in ({0: "r", 1: "r", 2: "r"}, {0: "r", 1: "r", 2: "s"}, {0: "r", 1: "s", 2: "s"}):
        driver.see({"t": 3, "u": 1}, racks)
        epoch += 1
        assert driver.beat("a", epoch - 1).member_epoch == epoch, racks
        driver.see({"t": 3, "u": 1}, racks)
        assert driver.beat("a", epoch).member_epoch == epoch, "the same racks"


def test_offsets_of_deleted_topics_are_erased_in_every_group() -> None:
    driver = ConsumerDriver(topics={"t": 2, "u": 2, "v": 2})
    offsets = {(name, index): 1 for name in "tuv" for index in (0, 1)}
    groups = ["g1", "g2", "g3"]
    for group in groups:
        driver.commit(offsets, group=group)
    driver.see({"v": 2})
    driver.advance(0)
    for group in groups:
        assert driver.fetch(group=group) == {("v", 0): 1, ("v", 1): 1}


def test_offsets_of_a_consumer_group_expire_only_for_topics_that_no_member_reads() -> None:
    driver = ConsumerDriver(topics=dict.fromkeys("tuvw", 1))
    epoch = driver.enter("a", "t").member_epoch
    driver.enter("b", subscribed_topic_names=["w"], subscribed_topic_regex="u.*")
    driver.commit({(name, 0): 1 for name in "tuvw"}, member_id="a", generation=epoch)
    driver.now_ms += 7 * DAY_MS - 1
    expire(driver)
    assert len(driver.fetch()) == 4
    driver.now_ms += 1
    expire(driver)
    assert driver.fetch() == {("t", 0): 1, ("u", 0): 1, ("w", 0): 1}
    for member in ("a", "b"):
        driver.beat(member, -1)
    expire(driver)
    assert (driver.fetch(), driver.shard.groups) == ({}, {})


# --- patterns


def beat_seeing(
    driver: ConsumerDriver, member: str, epoch: int, sees: Callable[[str], bool], **fields: Any
) -> dict[str, list[int]] | None:
    """Sends a heartbeat of a client that may describe only some topics."""
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=member, member_epoch=epoch, **fields)
    caller = Caller("client", "/127.0.0.1", 1, sees)
    return shares(driver.run(lambda turn: consumer_requests.consumer_heartbeat(driver.shard, turn, request, caller)))


def test_patterns_keep_their_topics_when_another_member_leaves_after_topics_changed() -> None:
    driver = ConsumerDriver(topics={"t1": 1})
    for member, pattern in (("a", "t.*"), ("b", "t.*"), ("c", "t1|u")):
        driver.enter(member, subscribed_topic_names=[], subscribed_topic_regex=pattern)
    settle(driver)
    driver.see({"t1": 1, "t2": 1, "u": 1})
    driver.beat("b", -1)
    assert {name: each.topics for name, each in driver.consumers.regexes.items()} == {"t.*": {"t1"}, "t1|u": {"t1"}}
    driver.beat("a", driver.consumers.members["a"].epoch)
    assert {name: each.topics for name, each in driver.consumers.regexes.items()} == {
        "t.*": {"t1", "t2"},
        "t1|u": {"t1", "u"},
    }
    settle(driver)
    assert set(driver.consumers.owners) == {(topic_id(name), 0) for name in ("t1", "t2", "u")}


def test_pattern_matches_only_topics_that_the_client_may_describe() -> None:
    driver = ConsumerDriver(topics={"t1": 1, "t2": 1})
    fields = {"rebalance_timeout_ms": 5000, "topic_partitions": [], "subscribed_topic_regex": "t.*"}
    assert beat_seeing(driver, "a", 0, lambda name: name == "t1", **fields) == {"t1": [0]}
    epoch = driver.consumers.members["a"].epoch
    driver.see({"t1": 1, "t2": 1, "t3": 1})
    assert beat_seeing(driver, "a", epoch, lambda name: name != "t2") == {"t1": [0], "t3": [0]}


# --- assignors


def votes(driver: ConsumerDriver, *names: str | None) -> str:
    members = {str(number): ConsumerMember(str(number), server_assignor=name) for number, name in enumerate(names)}
    return preferred_assignor(driver.shard.turn(0, 0), members)


@pytest.mark.parametrize(
    ("configured", "first"),
    [
        (("range", "uniform"), "range"),
        (("uniform", "range"), "uniform"),
        (("x", "range"), "range"),
        (("x",), "uniform"),
    ],
)
def test_assignor_of_a_group_is_its_members_choice_or_the_first_that_is_configured(
    configured: tuple[str, ...], first: str
) -> None:
    driver = ConsumerDriver(GroupConfig(consumer_assignors=configured))
    assert votes(driver) == votes(driver, None, None) == votes(driver, "x", None) == first
    assert votes(driver, None, "range", None) == "range"
    assert votes(driver, "range", "uniform", "uniform") == "uniform"
    assert votes(driver, "uniform", "range", "range", None) == "range"
