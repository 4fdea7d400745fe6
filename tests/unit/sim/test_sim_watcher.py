"""Tests the watcher of leaders and ISRs, and the comparison of replicas."""

from dataclasses import replace

import pytest

from penstock.broker.events import QuorumRoleChanged
from penstock.log.txn_index import AbortedTransaction
from penstock.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionImage, TopicImage
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn
from penstock.sim.checks.replica_rules import ReplicaCopy, compare, ended_twice, misindexed
from penstock.sim.checks.watcher import Watcher

TOPIC = b"t" * 16
FIRST = PartitionImage(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=0, partition_epoch=0)


class Watched:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.broken: list[str] = []
        self.watcher = Watcher(
            [],
            lambda: 1.0,
            lambda who, what: self.lines.append(f"{who}: {what}"),
            lambda rule, what: self.broken.append(rule),
        )

    def learn(self, *partitions: PartitionImage) -> None:
        for partition in partitions:
            self.watcher._learn(EMPTY_IMAGE, image(partition))


def image(partition: PartitionImage) -> MetadataImage:
    topic = TopicImage("t", TOPIC, {0: partition})
    return MetadataImage(offset=5, version=1, topics={"t": topic}, topics_by_id={TOPIC: topic})


def test_log_of_a_simulated_run_contains_leader_changes() -> None:
    watched = Watched()
    watched.learn(FIRST, replace(FIRST, leader=2, leader_epoch=1, partition_epoch=1, isr=(2, 3)))
    assert watched.lines == ["leaders: t-0 n1", "leaders: t-0 n2"]
    assert [each.leader for each in watched.watcher.leaderships["t", 0]] == [1, 2]
    assert not watched.broken


def test_node_with_older_metadata_than_another_node_breaks_no_rule() -> None:
    watched = Watched()
    later = replace(FIRST, leader=2, leader_epoch=1, partition_epoch=1)
    watched.learn(FIRST, later, FIRST)
    assert watched.lines == ["leaders: t-0 n1", "leaders: t-0 n2"]
    assert not watched.broken


def test_watcher_reports_two_partition_leaders_of_one_leader_epoch_once() -> None:
    watched = Watched()
    other = replace(FIRST, leader=2, partition_epoch=1)
    watched.learn(FIRST, other, other)
    assert watched.broken == ["one leader per epoch"]


def test_watcher_reports_two_different_isrs_in_one_partition_epoch() -> None:
    watched = Watched()
    watched.learn(FIRST, replace(FIRST, isr=(1, 2)))
    assert watched.broken == ["one state per change"]


def test_watcher_reports_two_quorum_leaders_of_one_epoch() -> None:
    watched = Watched()
    watched.watcher.role_changed("n1", QuorumRoleChanged(1, "leader", 3, 1))
    watched.watcher.role_changed("n2", QuorumRoleChanged(2, "follower", 3, 1))
    watched.watcher.role_changed("n3", QuorumRoleChanged(3, "unattached", 4, -1))
    assert watched.watcher.quorum_leader == 1
    assert not watched.broken
    watched.watcher.role_changed("n3", QuorumRoleChanged(3, "leader", 3, 3))
    assert watched.broken == ["one leader per epoch"]


def batch(offset: int, value: bytes) -> bytes:
    return build_batch([(1, b"k", value, ())], base_offset=offset)


def copy(name: str, *values: bytes, start: int = 0) -> ReplicaCopy:
    batches = {offset: batch(offset, value) for offset, value in enumerate(values) if offset >= start}
    return ReplicaCopy(name, start, len(values), batches)


@pytest.mark.parametrize("compacted", [False, True])
def test_replicas_with_equal_records_and_different_log_starts_break_no_rule(compacted: bool) -> None:
    copies = [copy("n1", b"a", b"b", b"c"), copy("n2", b"a", b"b", b"c", start=1)]
    assert list(compare("t-0", copies, compacted=compacted)) == []


@pytest.mark.parametrize("compacted", [False, True])
def test_comparison_finds_different_values_at_the_same_offset(compacted: bool) -> None:
    copies = [copy("n1", b"a", b"b"), copy("n2", b"a", b"x")]
    assert list(compare("t-0", copies, compacted=compacted)) == ["t-0 offset 1 differs between n1 and n2"]


def test_comparison_finds_a_replica_whose_log_ends_before_the_log_of_another_replica() -> None:
    assert list(compare("t-0", [copy("n1", b"a", b"b"), copy("n2", b"a")], compacted=False)) == [
        "t-0 ends at 1 on n2 and at 2 on n1"
    ]


def test_comparison_ignores_a_record_that_only_one_replica_has_compacted_away() -> None:
    thin = copy("n2", b"a", b"b", b"c")
    del thin.batches[1]
    assert list(compare("t-0", [copy("n1", b"a", b"b", b"c"), thin], compacted=True)) == []
    assert list(compare("t-0", [copy("n1", b"a", b"b", b"c"), thin], compacted=False)) != []


def transactional(epoch: int) -> bytes:
    return build_batch([(1, b"k", b"v", ())], producer_id=7, producer_epoch=epoch, base_sequence=0, transactional=True)


def marker(epoch: int, *, committed: bool = True) -> bytes:
    return build_end_txn(EndTxn(committed, 0), producer_id=7, producer_epoch=epoch, timestamp=1)


def test_repeated_transaction_marker_outside_a_transaction_breaks_no_rule() -> None:
    batches = [transactional(0), marker(1), marker(1), transactional(1), marker(2, committed=False)]
    assert list(ended_twice("t-0", ReplicaCopy("n1", 0, 5, dict(enumerate(batches))))) == []


def test_rule_finds_a_repeated_transaction_marker_that_ends_the_next_transaction() -> None:
    batches = [transactional(0), marker(1), transactional(1), marker(1), marker(2)]
    assert list(ended_twice("t-0", ReplicaCopy("n1", 0, 5, dict(enumerate(batches))))) == [
        "t-0: producer 7's marker of epoch 1 ends two transactions, at 3"
    ]


def test_rule_finds_a_repeated_transaction_marker_with_another_result() -> None:
    batches = [transactional(0), marker(1), marker(1, committed=False)]
    assert len(list(ended_twice("t-0", ReplicaCopy("n1", 0, 3, dict(enumerate(batches)))))) == 1


def test_rule_finds_aborted_transactions_without_index_entry_and_index_entries_without_marker() -> None:
    data = build_batch(
        [(1, b"k", b"v", ())], base_offset=1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    end = build_end_txn(EndTxn(False, 0), producer_id=7, producer_epoch=0, timestamp=1, base_offset=2)
    found = ReplicaCopy("n1", 0, 3, {1: data, 2: end})
    entry = AbortedTransaction(7, 1, 2, 3)
    assert list(misindexed("t-0", found, [entry])) == []
    assert list(misindexed("t-0", found, [entry._replace(first_offset=0)])) == [], "compaction removed its first batch"
    assert len(list(misindexed("t-0", found, []))) == 1
    assert len(list(misindexed("t-0", found, [entry._replace(first_offset=2)]))) == 1
    del found.batches[2]
    assert len(list(misindexed("t-0", found, [entry]))) == 1
