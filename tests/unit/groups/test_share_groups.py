"""Tests members of share groups: epochs, assignments, initialization of states, and refused requests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from consumer_driver import topic_id
from hypothesis import given
from hypothesis import strategies as st
from share_driver import ShareDriver, parts

from penstock.allowance import Allowance
from penstock.groups import admin, shard, share_requests
from penstock.groups.config import GroupConfig
from penstock.groups.share import assignor
from penstock.groups.share.states import InitializeStates
from penstock.protocol.errors import ErrorCode, KafkaError


def test_share_join_whose_records_are_refused_leaves_no_group() -> None:
    driver = ShareDriver()
    driver.refuse_records = True
    driver.come("a", "t")
    assert not driver.shard.groups


def test_share_partitions_are_assigned_once_their_states_are_initialized() -> None:
    driver = ShareDriver()
    first = driver.come("a")
    assert parts(first) == {}
    assert first.heartbeat_interval_ms < driver.config.share_heartbeat_interval_ms
    assert driver.asked == [InitializeStates("g", 1, tuple((topic_id("t"), index) for index in range(4)))]
    assert parts(driver.share_beat("a", first.member_epoch)) is None
    driver.create_states()
    second = driver.share_beat("a", first.member_epoch)
    assert parts(second) == {"t": [0, 1, 2, 3]}
    assert second.member_epoch > first.member_epoch
    assert second.heartbeat_interval_ms == driver.config.share_heartbeat_interval_ms


def test_partitions_are_shared_if_a_share_group_has_more_members_than_partitions() -> None:
    driver = ShareDriver(topics={"t": 2})
    driver.come("a")
    driver.create_states()
    for member in ("b", "c", "d", "e"):
        driver.come(member)
    epochs = {each: member.epoch for each, member in driver.group.members.items()}
    for member, epoch in epochs.items():
        driver.share_beat(member, epoch)
    counts = [sum(index in target[topic_id("t")] for target in driver.group.target.values()) for index in range(2)]
    assert sum(counts) == 6
    assert all(target for target in driver.group.target.values())


def test_partitions_of_a_removed_share_member_are_assigned_to_the_other_members() -> None:
    driver = ShareDriver()
    driver.come("a")
    driver.create_states()
    driver.come("b")
    driver.share_beat("a", driver.group.members["a"].epoch)
    assert len(driver.group.members["a"].assigned[topic_id("t")]) == 2
    assert driver.share_beat("b", -1).member_epoch == -1
    assert parts(driver.share_beat("a", driver.group.members["a"].epoch)) == {"t": [0, 1, 2, 3]}


def test_share_heartbeat_with_an_epoch_older_than_the_previous_epoch_is_fenced() -> None:
    driver = ShareDriver()
    driver.come("a")
    driver.create_states()
    for other in ("b", "c", "d"):
        driver.come(other)
        driver.share_beat("a", driver.group.members["a"].epoch)
    member = driver.group.members["a"]
    assert member.previous_epoch > 1
    codes = [
        ErrorCode(driver.share_beat("a", epoch).error_code)
        for epoch in (member.previous_epoch - 1, member.epoch + 1, member.previous_epoch, member.epoch)
    ]
    assert codes == [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.NONE, ErrorCode.NONE]


def test_share_member_without_heartbeats_is_removed() -> None:
    driver = ShareDriver()
    driver.come("a")
    driver.advance(driver.config.share_session_timeout_ms)
    assert driver.group.state == "Empty"
    assert ErrorCode(driver.share_beat("a", 1).error_code) is ErrorCode.UNKNOWN_MEMBER_ID


def test_initialization_of_share_states_is_requested_again_after_a_timeout() -> None:
    driver = ShareDriver()
    epoch = driver.come("a").member_epoch
    driver.advance(10_000)
    driver.share_beat("a", epoch)
    driver.advance(driver.config.share_initialize_retry_ms - 10_000)
    driver.share_beat("a", epoch)
    assert len(driver.asked) == 2
    other = driver.reload()
    other.share_beat("a", epoch)
    assert len(other.asked) == 1, "a coordinator that has just loaded does not know whether anybody asked"


def test_replaying_the_log_restores_a_share_group() -> None:
    driver = ShareDriver()
    driver.come("a")
    driver.create_states()
    driver.come("b", "t", "missing")
    driver.share_beat("a", driver.group.members["a"].epoch)
    assert driver.reload().shard.remembered() == driver.shard.remembered()


def test_share_states_are_initialized_for_new_partitions_and_removed_for_deleted_topics() -> None:
    driver = ShareDriver(topics={"t": 1})
    driver.come("a", "t", "u")
    driver.create_states()
    driver.see({"t": 2, "u": 1})
    driver.share_beat("a", driver.group.members["a"].epoch)
    assert driver.asked[0].partitions == ((topic_id("t"), 1), (topic_id("u"), 0))
    driver.create_states()
    assert parts(driver.share_beat("a", driver.group.members["a"].epoch)) == {"t": [0, 1], "u": [0]}
    driver.see({"u": 1})
    driver.advance(0)
    assert set(driver.group.states.initialized) == {topic_id("u")}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": []}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": 7, "member_id": "a"}, ErrorCode.FENCED_MEMBER_EPOCH),
        ({"member_epoch": 7}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_epoch": 7, "group_id": "other"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"group_id": "classic"}, ErrorCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_invalid_share_heartbeat_is_refused_and_changes_nothing(fields: dict[str, Any], code: ErrorCode) -> None:
    driver = ShareDriver()
    driver.come("a")
    driver.join(group="classic")
    before = driver.shard.remembered()
    request = {"member_id": "b", "member_epoch": 0, "group_id": "g", "subscribed_topic_names": ["t"], **fields}
    answer = driver.share_beat(request.pop("member_id"), request.pop("member_epoch"), **request)
    assert ErrorCode(answer.error_code) is code
    assert driver.shard.remembered() == before


def test_full_share_group_refuses_another_member() -> None:
    driver = ShareDriver(GroupConfig(share_max_size=1))
    driver.come("a")
    assert ErrorCode(driver.come("b").error_code) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_share_group_refuses_members_of_other_protocols() -> None:
    driver = ShareDriver()
    driver.come("a")
    assert driver.join("").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert ErrorCode(driver.enter("b").error_code) is ErrorCode.GROUP_ID_NOT_FOUND
    assert [each.group_type for each in admin.list_groups(driver.shard.groups.values(), frozenset(), frozenset())] == [
        "share"
    ]


def test_offsets_of_a_share_group_can_be_altered_and_deleted_only_while_it_has_no_members() -> None:
    driver = ShareDriver()
    driver.come("a")
    driver.create_states()
    with pytest.raises(KafkaError) as refused:
        driver.run(lambda turn: share_requests.begin_alter(driver.shard, turn, "g", {topic_id("t"): frozenset({0})}))
    assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
    driver.share_beat("a", -1)
    epoch = driver.group.epoch
    assert epoch < driver.run(
        lambda turn: share_requests.begin_alter(driver.shard, turn, "g", {topic_id("t"): frozenset({0})})
    )
    slots = driver.run(lambda turn: share_requests.begin_delete(driver.shard, turn, "g", [topic_id("t")]))
    assert slots == [(topic_id("t"), index) for index in range(4)]
    driver.come("a")
    assert driver.asked[0].partitions == tuple(slots), "an unfinished deletion starts the group anew"
    driver.run(lambda turn: share_requests.finish_delete(driver.shard, turn, "g", [topic_id("t")]))


def test_replay_after_the_deletion_of_a_share_group_restores_no_group() -> None:
    driver = ShareDriver()
    driver.come("a")
    driver.create_states()
    assert driver.run(lambda turn: admin.delete_group(driver.shard, turn, "g")) is ErrorCode.NON_EMPTY_GROUP
    driver.share_beat("a", -1)
    assert driver.run(lambda turn: admin.delete_group(driver.shard, turn, "g")) is ErrorCode.NONE
    assert not driver.shard.groups
    assert not driver.reload().shard.groups


@pytest.mark.parametrize("reloaded", [False, True])
def test_share_group_with_the_id_of_a_deleted_group_gets_higher_epochs(reloaded: bool) -> None:
    driver = ShareDriver()
    driver.come("a")
    driver.share_beat("a", -1)
    last = driver.group.epoch
    assert driver.run(lambda turn: admin.delete_group(driver.shard, turn, "g")) is ErrorCode.NONE
    if reloaded:
        driver = driver.reload()
    assert "g" not in driver.shard.groups
    driver.come("b")
    assert driver.group.epoch > last
    assert driver.asked[-1].state_epoch > last


@given(
    st.lists(st.sets(st.integers(0, 3)).map(frozenset), min_size=1, max_size=8),
    st.lists(st.integers(1, 5), min_size=4, max_size=4),
)
def test_share_assignor_gives_every_partition_a_member_and_every_member_a_partition(
    reads: list[frozenset[int]], sizes: list[int]
) -> None:
    topics = {bytes([number]): frozenset(range(size)) for number, size in enumerate(sizes)}
    members = {f"m{place}": frozenset(bytes([each]) for each in some) for place, some in enumerate(reads)}
    first = assignor.assign(members, topics, {})
    for member, some in members.items():
        assert set(first[member]) <= some
        assert bool(first[member]) == bool(some)
    read = {(topic, index) for some in members.values() for topic in some for index in topics[topic]}
    assert read == {(topic, index) for held in first.values() for topic, some in held.items() for index in some}
    assert assignor.assign(members, topics, first) == first or len(set(members.values())) > 1, "nothing moves"
    if len(set(members.values())) == 1:
        counts = {sum(map(len, held.values())) for held in first.values()}
        assert max(counts) - min(counts) <= 1
        readers = Counter((topic, index) for held in first.values() for topic, some in held.items() for index in some)
        assert max(readers.values(), default=0) - min(readers.values(), default=0) <= 1


def test_share_assignor_reads_the_partitions_of_a_topic_once_for_all_members_with_the_same_subscription() -> None:
    listed = 0

    class Partitions(dict[bytes, frozenset[int]]):
        def __getitem__(self, topic: bytes) -> frozenset[int]:
            nonlocal listed
            listed += 1
            return super().__getitem__(topic)

    members = {f"m{number}": frozenset([b"a" if number % 2 else b"b"]) for number in range(200)}
    target = assignor.assign(members, Partitions({each: frozenset(range(1000)) for each in (b"a", b"b")}), {})
    assert {len(some) for held in target.values() for some in held.values()} == {10}
    assert listed == 2


def test_new_members_of_a_share_group_are_refused_at_the_memory_limit() -> None:
    driver = ShareDriver()
    allowance = driver.shard.allowance = Allowance(7_000)
    allowance.counted_by(driver.shard.held_bytes)
    codes = [ErrorCode(driver.come(f"m{number}", "t").error_code) for number in range(20)]
    assert codes[0] is ErrorCode.NONE
    assert codes[-1] is ErrorCode.POLICY_VIOLATION


def test_share_members_send_heartbeats_more_often_until_the_states_of_their_partitions_exist() -> None:
    driver = ShareDriver()
    usual = driver.config.share_heartbeat_interval_ms
    assert driver.come("a").heartbeat_interval_ms < usual
    assert driver.share_beat("a", 1).heartbeat_interval_ms < usual
    driver.create_states()
    epoch = driver.share_beat("a", 1).member_epoch
    assert driver.share_beat("a", epoch).heartbeat_interval_ms == usual


def test_deleted_topic_gives_a_share_group_a_new_epoch() -> None:
    driver = ShareDriver(topics={"t": 2, "u": 2})
    driver.come("a", "t", "u")
    driver.create_states()
    epoch = driver.share_beat("a", 1).member_epoch
    driver.see({"t": 2})
    answer = driver.share_beat("a", epoch)
    assert answer.member_epoch == epoch + 1
    assert parts(answer) == {"t": [0, 1]}


def test_share_group_that_waits_for_its_next_assignment_keeps_its_epoch() -> None:
    driver = ShareDriver(GroupConfig(share_assignment_interval_ms=60_000))
    driver.come("a")
    driver.create_states()
    epochs = set()
    for _ in range(5):
        driver.share_beat("a", driver.group.members["a"].epoch)
        epochs.add(driver.group.epoch)
    assert len(epochs) == 1


def test_altering_share_offsets_records_the_partitions_whose_states_are_initialized() -> None:
    driver = ShareDriver()
    slots = {topic_id("t"): frozenset({1, 2})}
    driver.run(lambda turn: share_requests.begin_alter(driver.shard, turn, "g", slots))
    for each in (driver, driver.reload()):
        assert each.group.states.initializing == slots
        assert each.group.states.names == {topic_id("t"): "t"}


def test_epochs_of_the_oldest_deleted_share_groups_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "MAX_RETIRED", 2)
    driver = ShareDriver()
    for name in ("a", "b", "a", "c"):
        driver.share_beat("m", 0, group_id=name, subscribed_topic_names=["t"])
        driver.share_beat("m", -1, group_id=name)
        assert driver.delete(name) is ErrorCode.NONE
    assert list(driver.shard.retired_epochs) == ["a", "c"]
