"""Tests rare cases of groups: expiry of every kind of group, full memory in a transaction, and refused records."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import pytest
from consumer_driver import image_of
from group_driver import Driver
from share_driver import share_beat
from streams_driver import EAGER, StreamsDriver, code, plain, stateful, statuses, topology
from test_group_room_requests import fill
from test_group_shard import all_protocols

from penstock.groups import offset_requests
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.config import GroupConfig
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.streams.group import StreamsGroup
from penstock.groups.timing import arm_session
from penstock.groups.txn_offsets import commit_in_transaction
from penstock.groups.undo import add_group
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_88_streams_group_heartbeat import Endpoint

KINDS = ["classic", "consumer", "share", "streams"]


def expire(driver: Driver, group: str) -> int:
    """Expires the offsets of the group, and returns the number of records that were written."""
    before = len(driver.journal)
    driver.run(lambda turn: offset_requests.expire(driver.shard, turn, group))
    return len(driver.journal) - before


def transactional(driver: Driver, *partitions: int, metadata: str = "") -> list[ErrorCode]:
    parts = [
        TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=3, committed_metadata=metadata)
        for index in partitions
    ]
    request = TxnOffsetCommitRequest(
        group_id="g", producer_id=5, topics=[TxnOffsetCommitRequestTopic(name="t", partitions=parts)]
    )
    codes = driver.run(lambda turn: commit_in_transaction(driver.shard, turn, request))
    return [codes["t", index] for index in partitions]


@pytest.mark.parametrize("kind", KINDS)
def test_group_with_members_is_not_deleted_by_expiry(kind: str) -> None:
    driver = all_protocols()
    assert expire(driver, f"{kind}1") == 0
    assert len(driver.shard.groups[f"{kind}1"].members) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_group_without_members_and_offsets_is_deleted_by_expiry_unless_it_is_a_share_group(kind: str) -> None:
    driver = all_protocols()
    driver.advance(10 * 60_000)
    assert (expire(driver, f"{kind}1") > 0) == (kind != "share")
    assert (f"{kind}1" in driver.shard.groups) == (kind == "share")
    assert f"{kind}2" in driver.shard.groups
    assert expire(driver, "missing") == 0


def test_group_with_a_pending_member_or_a_pending_offset_is_not_deleted_by_expiry() -> None:
    driver = Driver()
    waiting = driver.join(version=9)
    assert expire(driver, "g") == 0
    assert driver.join(waiting.joined.member_id, version=9).error is ErrorCode.NONE
    driver = Driver()
    assert transactional(driver, 0) == [ErrorCode.NONE]
    driver.advance(driver.config.offsets_retention_ms)
    assert expire(driver, "g") == 0
    driver.shard.apply_marker(5, True)
    assert driver.fetch() == {("t", 0): 3}


def test_offsets_of_a_transaction_are_refused_one_by_one_at_the_memory_limit() -> None:
    driver = Driver(GroupConfig(offset_metadata_max_bytes=2))
    driver.commit({("t", 0): 1}, metadata="12")
    fill(driver)
    assert transactional(driver, 0, 1, metadata="12") == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
    assert transactional(driver, 0, metadata="123") == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    driver.shard.apply_marker(5, True)
    assert driver.fetch() == {("t", 0): 3}


def test_pending_member_that_finds_the_group_full_is_no_longer_pending() -> None:
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=0, max_size=2))
    [first] = driver.stable()
    second, third = (driver.join(version=9).joined.member_id for _ in range(2))
    driver.join(second, version=9)
    driver.join(first)
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert third in group.pending_members, "the join phase waits for it"
    driver.advance(1)
    assert driver.join(third, version=9).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert not group.pending_members


# --- topics


def test_group_looks_at_its_topics_again_only_if_they_changed() -> None:
    driver = StreamsDriver(EAGER, {"t": 1, "u": 1, "v": 1})
    driver.enter("a", "t", group_id="consumer t")
    driver.enter("a", "u", group_id="consumer u")
    driver.enter("a", group_id="pattern", subscribed_topic_names=[], subscribed_topic_regex="x.*")
    share_beat(driver, "a", 0, group_id="share t", subscribed_topic_names=["t"])
    share_beat(driver, "a", 0, group_id="share u", subscribed_topic_names=["u"])
    driver.come("a", topology(plain(source="t")), group_id="streams t")
    driver.come("a", topology(plain(source="u")), group_id="streams u")
    every = {"consumer t", "consumer u", "pattern", "share t", "share u", "streams t", "streams u"}

    def changed_by(topics: dict[str, int], racks: dict[int, str] | None = None, *, seen: bool = True) -> set[str]:
        for group in driver.shard.groups.values() if seen else ():
            group.metadata_changed = False  # type: ignore[union-attr]
        before = driver.shard.image
        image = image_of(topics, racks)
        kept = {
            name: before.topics[name]
            if name in before.topics and len(before.topics[name].partitions) == topics[name]
            else topic
            for name, topic in image.topics.items()
        }
        brokers = before.brokers if racks is None else image.brokers
        by_id = {topic.topic_id: topic for topic in kept.values()}
        image = replace(image, topics=kept, topics_by_id=by_id, brokers=brokers, acls=before.acls)
        driver.shard.see(image)
        return {name for name, group in driver.shard.groups.items() if group.metadata_changed}  # type: ignore[union-attr]

    assert changed_by({"t": 1, "u": 1, "v": 2}) == {"pattern"}
    assert changed_by({"t": 2, "u": 1, "v": 2}) == {"consumer t", "pattern", "share t", "streams t"}
    assert changed_by({"t": 2, "v": 2}) == {"consumer u", "pattern", "share u", "streams u"}
    assert changed_by({"t": 2, "u": 3, "v": 2}) == {"consumer u", "pattern", "share u", "streams u"}
    assert changed_by({"t": 2, "u": 3, "v": 2}) == set()
    assert changed_by({"t": 2, "u": 3, "v": 2}, {0: "r"}) == {name for name in every if "share" not in name}
    assert changed_by({"t": 2, "u": 3, "v": 3}, seen=False) == {name for name in every if "share" not in name}
    assert changed_by({"t": 3, "u": 3, "v": 3}) == {"consumer t", "pattern", "share t", "streams t"}
    assert changed_by({"t": 3, "u": 3, "v": 1}, seen=False) == {"consumer t", "pattern", "share t", "streams t"}
    assert changed_by({"t": 3, "u": 3, "v": 1}) == set()
    driver.shard.see(replace(driver.shard.image, acls=copy(driver.shard.image.acls)))
    changed = {name for name, group in driver.shard.groups.items() if group.metadata_changed}  # type: ignore[union-attr]
    assert changed == {"pattern"}, "a pattern matches only topics that its member may describe"


# --- streams groups


def test_endpoints_list_all_partitions_of_active_and_standby_tasks_apart() -> None:
    config = GroupConfig(
        initial_rebalance_delay_ms=0,
        streams_initial_rebalance_delay_ms=0,
        streams_assignment_interval_ms=0,
        streams_standby_replicas=1,
    )
    driver = StreamsDriver(config, {"t": 2, "g-changelog": 2})
    for name in ("a", "b"):
        driver.come(name, stateful(), user_endpoint=Endpoint(host=name, port=1))
    driver.settle()
    answer = driver.stay("a", endpoint_information_epoch=-1)
    listed = {
        each.user_endpoint.host: tuple(
            [(part.topic, part.partitions) for part in parts]
            for parts in (each.active_partitions, each.standby_partitions)
        )
        for each in answer.partitions_by_user_endpoint or ()
    }
    held = driver.group.members["a"].assigned
    active, standby = (next(sorted(indexes) for key, indexes in held.items() if key.role == role) for role in (0, 1))
    assert sorted([*active, *standby]) == [0, 1]
    assert listed == {"a": ([("t", active)], [("t", standby)]), "b": ([("t", standby)], [("t", active)])}
    last = answer.endpoint_information_epoch
    assert driver.stay("a", endpoint_information_epoch=last).partitions_by_user_endpoint is None


def test_endpoints_list_every_input_of_every_subtopology() -> None:
    driver = StreamsDriver(EAGER, {"t": 1, "u": 2, "v": 2})
    both = plain("0", "t")
    both.source_topics.append("u")
    driver.come("a", topology(both, plain("1", "v")), user_endpoint=Endpoint(host="a", port=1))
    driver.settle()
    [each] = driver.stay("a", endpoint_information_epoch=-1).partitions_by_user_endpoint or []
    assert [(part.topic, part.partitions) for part in each.active_partitions] == [
        ("t", [0]),
        ("u", [0, 1]),
        ("v", [0, 1]),
    ]


def test_refused_records_of_a_streams_member_undo_its_shutdown_request_and_its_timers() -> None:
    driver = StreamsDriver(EAGER)
    driver.come("a")
    driver.come("b", user_endpoint=Endpoint(host="b", port=1))
    group = driver.group
    kept = (group.configured, group.shutdown_by, group.endpoint_epoch, group.computing)
    driver.see({"t": 6})
    driver.refuse_records = True
    driver.come("c", shutdown_application=True, user_endpoint=Endpoint(host="c", port=1))
    assert (group.configured, group.shutdown_by, group.endpoint_epoch, group.computing) == kept
    assert group.metadata_changed
    assert set(group.sessions) == {"a", "b"}
    assert all(timer.armed for timer in group.sessions.values())
    driver.refuse_records = False
    assert statuses(driver.stay("a")) == []
    assert code(driver.come("c")) is ErrorCode.NONE


def test_shutdown_request_ends_with_the_last_member() -> None:
    driver = StreamsDriver(EAGER)
    driver.come("a")
    driver.come("b")
    driver.stream_beat("a", -1, shutdown_application=True)
    assert driver.group.shutdown_by == "a"
    driver.stream_beat("b", -1, shutdown_application=True)
    group = driver.shard.groups["g"]
    assert isinstance(group, StreamsGroup)
    assert group.shutdown_by is None


@pytest.mark.parametrize("replaces", [False, True])
def test_undo_of_a_new_group_restores_the_replaced_group_with_all_its_timers(replaces: bool) -> None:
    shard = Driver().shard
    turn = shard.turn(0, 0)
    old, new = ConsumerGroup("g"), ConsumerGroup("g")
    groups = {"g": old} if replaces else {}
    for group, delay_ms in ((old, 10), (new, 20)):
        for member in ("a", "b"):
            arm_session(turn, group, member, delay_ms)
    add_group(groups, turn, new)
    assert groups == {"g": new}
    assert [timer.armed for timer in old.all_timers()] == [not replaces] * 2
    assert all(timer.armed for timer in new.all_timers())
    [undo] = turn.undo
    undo()
    assert groups == ({"g": old} if replaces else {})
    assert [timer.deadline_ms for timer in old.all_timers()] == [10, 10]
    assert not any(timer.armed for timer in new.all_timers())
