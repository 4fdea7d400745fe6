"""Tests that committed offsets of a deleted topic are erased, and that a recreated topic has no committed offsets."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from consumer_driver import image_of
from group_driver import Driver

from penstock.groups import offset_requests
from penstock.groups.txn_offsets import commit_in_transaction
from penstock.metadata.image import MetadataImage
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

T0 = ("t", 0)
OLD = image_of({"t": 1, "other": 1})
GONE = image_of({"other": 1}, version=2)


def made_again(image: MetadataImage, version: int) -> MetadataImage:
    topic = replace(OLD.topics["t"], topic_id=bytes([version]) * 16)
    topics = {**image.topics, "t": topic}
    return replace(
        image, version=version, topics=topics, topics_by_id={each.topic_id: each for each in topics.values()}
    )


NEW = made_again(GONE, 3)


def commit(driver: Driver, offset: int, *, retention_ms: int = -1) -> None:
    """Commits an offset with the id of the topic that now has this name, like the handler of OffsetCommit."""
    driver.commit({T0: offset}, topic_id=driver.shard.topic_id("t"), retention_ms=retention_ms)


def commit_transactionally(driver: Driver, offset: int, producer_id: int = 9) -> None:
    partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = TxnOffsetCommitRequest(
        group_id="g",
        producer_id=producer_id,
        producer_epoch=0,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    codes = driver.run(lambda turn: commit_in_transaction(driver.shard, turn, request))
    assert set(codes.values()) == {ErrorCode.NONE}


def seeing(image: MetadataImage) -> Driver:
    driver = Driver()
    driver.shard.see(image)
    return driver


def taken_over(driver: Driver, image: MetadataImage) -> Driver:
    """Loads the partition on another broker, which knows only the given metadata image."""
    other = seeing(image)
    other.replay(driver.journal)
    other.run(other.shard.loaded)
    return other


def test_committed_offsets_of_a_deleted_topic_are_erased_at_the_next_timer_run() -> None:
    driver = seeing(OLD)
    commit(driver, 5)
    driver.shard.see(GONE)
    driver.advance(0)
    assert driver.fetch(T0) == {T0: -1}
    assert driver.shard.timers.next_deadline() is None
    assert taken_over(driver, GONE).fetch(T0) == {T0: -1}


def test_topic_deletion_during_loading_erases_the_loaded_offsets() -> None:
    driver = seeing(OLD)
    commit(driver, 5)
    other = seeing(OLD)
    other.shard.see(GONE)
    other.replay(driver.journal)
    other.run(other.shard.loaded)
    other.advance(0)
    assert other.fetch(T0) == {T0: -1}


@pytest.mark.parametrize("transactional", [False, True])
def test_topic_recreated_while_the_group_had_no_coordinator_has_no_committed_offsets(transactional: bool) -> None:
    driver = seeing(OLD)
    if transactional:
        commit_transactionally(driver, 5)
        driver.shard.apply_marker(9, commit=True)
    else:
        commit(driver, 5)
    other = taken_over(driver, NEW)
    assert other.fetch(T0) == {T0: -1}
    assert other.fetch() == {}
    commit(other, 2)
    assert other.fetch(T0) == {T0: 2}


@pytest.mark.parametrize("image", [GONE, NEW])
def test_offsets_of_a_topic_deleted_while_the_group_had_no_coordinator_are_erased(image: MetadataImage) -> None:
    driver = seeing(OLD)
    commit(driver, 5)
    other = taken_over(driver, image)
    other.run(lambda turn: offset_requests.forget_missing(other.shard, turn, "g"))
    assert not other.shard.offsets.partitions("g")
    assert "g" not in other.shard.offsets.committed
    assert other.journal[-1][1] is None


def test_new_coordinator_keeps_the_committed_offsets_of_existing_topics() -> None:
    driver = seeing(OLD)
    commit(driver, 5)
    commit(driver, 6, retention_ms=10_000)  # this version has no topic id
    for image in (OLD, NEW):
        other = taken_over(driver, image)
        other.run(lambda turn, other=other: offset_requests.forget_missing(other.shard, turn, "g"))  # type: ignore[misc]
        assert other.fetch(T0) == {T0: 6}


def test_erasing_offsets_of_a_deleted_topic_keeps_new_offsets_of_the_recreated_topic() -> None:
    driver = seeing(OLD)
    commit(driver, 5)
    driver.shard.see(GONE)
    driver.shard.see(NEW)
    commit(driver, 1)
    driver.advance(0)
    assert driver.fetch(T0) == {T0: 1}


def test_erasing_offsets_of_a_deleted_topic_keeps_transactional_offsets_of_the_recreated_topic() -> None:
    driver = seeing(OLD)
    commit(driver, 5)
    driver.shard.see(GONE)
    driver.shard.see(NEW)
    commit_transactionally(driver, 1)
    driver.advance(0)
    driver.run(lambda turn: offset_requests.forget_missing(driver.shard, turn, "g"))
    driver.shard.apply_marker(9, commit=True)
    assert driver.fetch(T0) == {T0: 1}


@pytest.mark.parametrize("seed", range(20))
def test_exactly_the_offsets_of_topics_that_exist_are_left_after_any_changes_of_topics(seed: int) -> None:
    random = Random(seed)
    driver = Driver()
    ids: dict[str, bytes] = {}
    committed: dict[str, dict[tuple[str, int], bytes]] = {"g": {}, "h": {}}
    for version in range(1, 60):
        match random.randrange(4):
            case 0 | 1:
                for name in random.sample("tuv", random.randint(1, 3)):
                    if name in ids:
                        del ids[name]
                    else:
                        ids[name] = bytes([version, *name.encode()]) * 8
                topics = {name: replace(OLD.topics["t"], name=name, topic_id=each) for name, each in ids.items()}
                by_id = {each.topic_id: each for each in topics.values()}
                driver.shard.see(MetadataImage(version=version, topics=topics, topics_by_id=by_id))
            case 2 if ids:
                group, name = random.choice("gh"), random.choice(sorted(ids))
                partition = (name, random.randrange(2))
                driver.commit({partition: version}, group=group, topic_id=ids[name])
                committed[group][partition] = ids[name]
            case 3:
                driver.advance(0)
                for group, offsets in committed.items():
                    left = {partition: each for partition, each in offsets.items() if each in ids.values()}
                    committed[group] = left
                    assert set(driver.shard.offsets.partitions(group)) == set(left)
