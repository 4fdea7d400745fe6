"""Tests what a coordinator does for all groups of its partition, and for requests of the wrong protocol."""

from __future__ import annotations

import pytest
from consumer_driver import ConsumerDriver, error, topic_id
from group_driver import REBALANCE_MS, Driver
from share_driver import ShareDriver, parts, share_beat
from streams_driver import StreamsDriver, code

from penstock.groups import offset_requests
from penstock.groups.config import GroupConfig
from penstock.groups.streams.checks import MAX_TOPICS, check_size
from penstock.groups.txn_offsets import commit_in_transaction
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_09_offset_fetch import OffsetFetchRequestGroup
from penstock.protocol.messages.api_28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    Topology,
)

DAY_MS = 24 * 60 * 60 * 1000
T0, T1 = ("t", 0), ("t", 1)


def all_protocols() -> StreamsDriver:
    """Returns a coordinator with two groups of each protocol, with two members each."""
    driver = StreamsDriver()
    for number in (1, 2):
        driver.stable(2, group=f"classic{number}")
        for member in ("a", "b"):
            driver.enter(member, group_id=f"consumer{number}")
            share_beat(driver, member, 0, group_id=f"share{number}", subscribed_topic_names=["t"])
            driver.come(member, group_id=f"streams{number}")
    return driver


def test_silent_members_of_all_groups_are_removed_after_a_load() -> None:
    loaded = all_protocols().reload()
    assert {len(group.members) for group in loaded.shard.groups.values()} == {2}
    loaded.advance(10 * 60_000)
    assert {len(group.members) for group in loaded.shard.groups.values()} == {0}


def test_coordinator_that_loses_its_partition_keeps_no_group() -> None:
    driver = all_protocols()
    driver.abandon()
    assert not driver.shard.groups


@pytest.mark.parametrize("group", ["share1", "streams1", "none"])
def test_classic_heartbeat_to_a_group_without_classic_members_is_refused(group: str) -> None:
    assert all_protocols().heartbeat("a", 1, group=group) is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeat_with_a_later_generation_is_refused() -> None:
    driver = Driver()
    [member] = driver.stable(1)
    assert [driver.heartbeat(member, generation) for generation in (0, 1, 2)] == [
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.NONE,
        ErrorCode.ILLEGAL_GENERATION,
    ]


def test_heartbeat_with_an_unknown_instance_id_gets_unknown_member_id() -> None:
    driver = Driver()
    [member] = driver.stable(1)
    assert driver.heartbeat(member, 1, instance="i") is ErrorCode.UNKNOWN_MEMBER_ID


def test_transactional_offset_commit_to_a_share_group_is_refused() -> None:
    driver = ShareDriver()
    driver.come("a")
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = TxnOffsetCommitRequest(
        group_id="g", topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])]
    )
    codes = driver.run(lambda turn: commit_in_transaction(driver.shard, turn, request))
    assert set(codes.values()) == {ErrorCode.GROUP_ID_NOT_FOUND}


@pytest.mark.parametrize(
    ("member", "shift", "expected"),
    [
        (None, None, ErrorCode.NONE),
        (None, 0, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", 0, ErrorCode.NONE),
        ("a", 1, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", -1, ErrorCode.STALE_MEMBER_EPOCH),
    ],
)
@pytest.mark.parametrize("group", ["consumer1", "streams1"])
def test_offset_fetch_of_a_group_member_with_a_wrong_epoch_is_refused(
    group: str, member: str | None, shift: int | None, expected: ErrorCode
) -> None:
    shard = all_protocols().shard
    known = shard.groups[group].members["a"]
    epoch = -1 if shift is None else shift if member is None else known.epoch + shift  # type: ignore[union-attr]
    request = OffsetFetchRequestGroup(group_id=group, member_id=member, member_epoch=epoch, topics=None)
    if expected is ErrorCode.NONE:
        assert offset_requests.fetch(shard, request, False).error_code == expected
        return
    with pytest.raises(KafkaError) as refused:
        offset_requests.fetch(shard, request, False)
    assert refused.value.code is expected


def test_offsets_of_every_partition_of_a_deleted_topic_are_erased() -> None:
    driver = ConsumerDriver(topics={"t": 2, "u": 1})
    driver.commit({T0: 1, T1: 2, ("u", 0): 3}, topic_id=bytes(16))
    driver.see({"u": 1})
    driver.advance(0)
    assert driver.fetch() == {("u", 0): 3}


def test_offsets_of_every_partition_of_a_missing_topic_are_erased() -> None:
    driver = Driver()
    driver.commit({T0: 1, T1: 2})
    driver.run(lambda turn: offset_requests.forget_missing(driver.shard, turn, "g"))
    assert driver.fetch() == {}


def test_stable_offset_is_returned_while_another_partition_is_in_a_transaction() -> None:
    driver = Driver()
    driver.commit({T0: 1, T1: 1})
    pending = TxnOffsetCommitRequestPartition(partition_index=1, committed_offset=9)
    request = TxnOffsetCommitRequest(
        group_id="g", producer_id=5, topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[pending])]
    )
    driver.run(lambda turn: commit_in_transaction(driver.shard, turn, request))
    assert driver.fetch(T0, T1, require_stable=True) == {T0: 1, T1: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    assert driver.fetch(T0, T1) == {T0: 1, T1: 1}


def test_retention_of_offsets_begins_when_the_last_member_leaves() -> None:
    driver = Driver(GroupConfig(initial_rebalance_delay_ms=0, offsets_retention_ms=DAY_MS))
    [member] = driver.stable(1)
    driver.commit({T0: 1}, member_id=member, generation=1)
    driver.now_ms += DAY_MS
    driver.leave(member)
    driver.now_ms += DAY_MS - 1
    driver.run(lambda turn: offset_requests.expire(driver.shard, turn, "g"))
    assert driver.fetch(T0) == {T0: 1}
    driver.now_ms += 1
    driver.run(lambda turn: offset_requests.expire(driver.shard, turn, "g"))
    assert "g" not in driver.shard.groups


def test_rejoining_member_can_change_its_rebalance_timeout() -> None:
    driver = Driver()
    first, second = driver.stable(2, session_ms=3 * REBALANCE_MS)
    driver.join(first, rebalance_ms=2 * REBALANCE_MS, session_ms=3 * REBALANCE_MS)
    driver.join(second, rebalance_ms=1000, session_ms=3 * REBALANCE_MS)
    driver.sync(first, 3, {first: b"", second: b""})
    driver.sync(second, 3)
    waiting = driver.join(first, rebalance_ms=1000, session_ms=3 * REBALANCE_MS)
    driver.advance(1000)
    assert waiting.joined.error_code == ErrorCode.NONE


def test_session_timeouts_at_both_limits_are_accepted() -> None:
    config = GroupConfig(initial_rebalance_delay_ms=0, min_session_timeout_ms=10, max_session_timeout_ms=20)
    for session_ms, expected in ((9, ErrorCode.INVALID_SESSION_TIMEOUT), (10, 0), (20, 0), (21, 26)):
        assert Driver(config).join(session_ms=session_ms).joined.error_code == expected


def test_member_of_a_full_consumer_group_can_still_send_heartbeats() -> None:
    driver = ConsumerDriver(
        GroupConfig(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0, consumer_max_size=1)
    )
    epoch = driver.enter("a").member_epoch
    assert error(driver.enter("b")) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert error(driver.beat("a", epoch)) is ErrorCode.NONE


def test_share_group_gets_a_new_epoch_when_a_member_leaves() -> None:
    driver = ShareDriver()
    driver.come("a")
    driver.come("b")
    driver.create_states()
    epoch = driver.share_beat("a", driver.group.members["a"].epoch).member_epoch
    driver.share_beat("b", -1)
    answer = driver.share_beat("a", epoch)
    assert answer.member_epoch > epoch
    assert parts(answer) == {"t": [0, 1, 2, 3]}
    assert topic_id("t") in driver.group.members["a"].assigned


def test_topics_of_all_subtopologies_count_towards_the_topic_limit_of_a_streams_topology() -> None:
    half = [f"t{number}" for number in range(MAX_TOPICS // 2)]
    both = [Subtopology(subtopology_id=name, source_topics=half) for name in ("0", "1")]
    with pytest.raises(KafkaError) as refused:
        check_size(StreamsGroupHeartbeatRequest(topology=Topology(epoch=0, subtopologies=both)))
    assert refused.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_streams_member_cannot_join_a_classic_group_that_has_members() -> None:
    driver = StreamsDriver()
    driver.stable(1)
    assert code(driver.come("a")) is ErrorCode.GROUP_ID_NOT_FOUND
