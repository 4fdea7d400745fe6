"""Tests the comparison of samples from the replicas of a partition."""

import pytest

from penstock.guard.comparison import Rules, compare
from penstock.guard.findings import NOBODY, Finding, Kind
from penstock.guard.samples import Sample, Status
from penstock.records.build import build_batch


def batch(offset: int, value: bytes = b"value", *, records: int = 2, epoch: int = 3, at_ms: int = 1000) -> bytes:
    return bytes(build_batch([(at_ms, None, value, ())] * records, base_offset=offset, leader_epoch=epoch))


LOG = batch(0) + batch(2) + batch(4)
OTHER = batch(0) + batch(2, b"VALUE") + batch(4)


def rotten(log: bytes, at: int) -> bytes:
    return log[:at] + bytes((log[at] ^ 1,)) + log[at + 1 :]


def served(node_id: int, records: bytes, high_watermark: int = 6) -> Sample:
    return Sample(node_id, Status.SERVED, records, high_watermark)


def rules(replicas: int = 3, *, epoch: int = 3, latest_ms: int = -1) -> Rules:
    return Rules("t-0", replicas, epoch, latest_ms)


def accused(findings: tuple[Finding, ...]) -> list[tuple[Kind, int]]:
    return [(each.kind, each.accused) for each in findings]


def test_comparison_of_equal_replicas_ends_with_the_shortest_sample_and_reports_no_finding() -> None:
    found = compare(0, [served(1, LOG), served(2, LOG[:-3]), served(3, LOG)], rules())
    assert (found.end, found.findings, found.damaged) == (4, (), frozenset())


@pytest.mark.parametrize("liar", [1, 2, 3])
def test_replica_whose_content_differs_from_two_equal_replicas_is_accused(liar: int) -> None:
    samples = [served(node, OTHER if node == liar else LOG) for node in (1, 2, 3)]
    found = compare(0, samples, rules())
    assert accused(found.findings) == [(Kind.CONTENT, liar)]
    assert found.good == tuple(node for node in (1, 2, 3) if node != liar)
    assert (found.damaged, found.findings[0].offset, found.end) == (frozenset({liar}), 2, 4)
    assert all(f"node {node}: batch 2 to 3, digest " in found.findings[0].evidence for node in (1, 2, 3))


def test_no_node_is_accused_if_the_only_two_replicas_have_different_content() -> None:
    found = compare(0, [served(1, LOG), served(2, OTHER)], rules(2))
    assert accused(found.findings) == [(Kind.CONTENT, NOBODY)]
    assert not found.good
    assert not found.damaged


def test_no_node_is_accused_if_two_replicas_differ_and_the_third_replica_does_not_answer() -> None:
    found = compare(0, [served(1, LOG), served(2, OTHER), Sample(3, Status.UNKNOWN)], rules())
    assert accused(found.findings) == [(Kind.CONTENT, NOBODY)]


def test_guard_accuses_the_one_replica_that_differs_and_not_the_two_equal_replicas() -> None:
    found = compare(0, [served(1, OTHER), served(2, LOG), served(3, LOG)], rules())
    assert accused(found.findings) == [(Kind.CONTENT, 1)]


def test_no_node_is_accused_if_all_three_replicas_have_different_content() -> None:
    third = batch(0) + batch(2, b"third") + batch(4)
    found = compare(0, [served(1, LOG), served(2, OTHER), served(3, third)], rules())
    assert accused(found.findings) == [(Kind.CONTENT, NOBODY)]


def test_two_of_five_replicas_are_accused_if_the_other_three_agree_on_different_content() -> None:
    samples = [served(node, OTHER if node in (1, 2) else LOG) for node in range(1, 6)]
    assert accused(compare(0, samples, rules(5)).findings) == [(Kind.CONTENT, 1), (Kind.CONTENT, 2)]


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_replica_with_a_wrong_checksum_is_accused_even_if_it_is_the_only_replica(replicas: int) -> None:
    bad = rotten(LOG, len(batch(0)) + 70)
    samples = [served(1, bad), *(served(node, LOG) for node in range(2, replicas + 1))]
    found = compare(0, samples, rules(replicas))
    assert accused(found.findings) == [(Kind.CHECKSUM, 1)]
    assert found.good == tuple(range(2, replicas + 1))
    assert found.damaged == {1}


@pytest.mark.parametrize("byte", [7, 15], ids=["offset", "leader epoch"])
def test_flipped_bit_in_a_field_without_checksum_is_reported_as_different_content(byte: int) -> None:
    bad = rotten(LOG, len(batch(0)) + byte)
    found = compare(0, [served(1, LOG), served(2, bad), served(3, LOG)], rules(epoch=9))
    assert accused(found.findings) == [(Kind.CONTENT, 2)]
    assert found.damaged == {2}


def test_batch_with_an_offset_above_the_high_watermark_is_reported_as_damaged() -> None:
    bad = rotten(LOG, len(batch(0)) + 2)
    found = compare(0, [served(1, LOG), served(2, bad)], rules(2))
    assert accused(found.findings) == [(Kind.CHECKSUM, 2)]
    assert found.good == (1,)


def test_batch_with_a_damaged_length_field_is_reported_as_a_wrong_checksum() -> None:
    bad = rotten(LOG, len(batch(0)) + 8)
    samples = [served(1, LOG), served(2, bad), served(3, LOG)]
    before = compare(0, samples, rules())
    assert (before.end, before.findings) == (2, ())
    rest = [served(each.node_id, bytes(each.records)[len(batch(0)) :]) for each in samples]
    found = compare(2, rest, rules())
    assert accused(found.findings) == [(Kind.CHECKSUM, 2)]
    assert found.good == (1, 3)


def test_replica_that_reports_its_own_damage_is_accused_of_a_wrong_checksum() -> None:
    found = compare(0, [Sample(1, Status.DAMAGED), served(2, LOG), served(3, LOG)], rules())
    assert accused(found.findings) == [(Kind.CHECKSUM, 1)]
    assert (found.damaged, found.good, found.end) == (frozenset({1}), (2, 3), 2)


def test_intact_replica_is_named_as_the_good_copy_if_the_only_other_replica_is_damaged() -> None:
    found = compare(0, [Sample(1, Status.DAMAGED), served(2, LOG)], rules(2))
    assert (found.damaged, found.good) == (frozenset({1}), (2,))


def test_no_good_copy_is_named_if_every_replica_is_damaged() -> None:
    found = compare(0, [Sample(1, Status.DAMAGED), served(2, rotten(LOG, 70))], rules(2))
    assert found.good == ()
    assert found.damaged == {1, 2}


def test_no_node_is_accused_if_compaction_can_explain_missing_records() -> None:
    whole = batch(0) + batch(2, b"two") + batch(4, b"four")
    without_second = batch(0) + batch(4, b"four")
    found = compare(0, [served(1, without_second), served(2, whole), served(3, whole)], rules())
    assert accused(found.findings) == [(Kind.CONTENT, NOBODY)]
    assert found.incomparable
    assert found.end == 6


def test_in_sync_replica_is_accused_if_it_lacks_records_that_a_majority_has_committed() -> None:
    found = compare(0, [Sample(1, Status.LACKING), served(2, LOG), served(3, LOG)], rules())
    assert accused(found.findings) == [(Kind.MISSING, 1)]
    assert "below offset 6, which nodes 2, 3 committed" in found.findings[0].evidence


def test_replica_is_accused_of_missing_records_only_if_a_majority_of_replicas_has_them() -> None:
    assert compare(0, [Sample(1, Status.LACKING), served(2, LOG)], rules(2)).findings == ()
    silent = [Sample(1, Status.LACKING), served(2, LOG), Sample(3, Status.UNKNOWN)]
    assert compare(0, silent, rules()).findings == ()


def test_replica_whose_log_starts_after_the_compared_offsets_is_not_compared() -> None:
    found = compare(0, [Sample(1, Status.ABSENT), served(2, LOG), served(3, LOG)], rules())
    assert (found.end, found.findings) == (6, ())


def test_a_batch_with_an_epoch_above_the_controllers_epoch_is_reported() -> None:
    later = batch(0) + batch(2, epoch=9)
    agreed = compare(0, [served(1, later), served(2, later)], rules(2))
    assert accused(agreed.findings) == [(Kind.EPOCH, NOBODY)]
    alone = compare(0, [served(1, later), served(2, LOG), served(3, LOG)], rules())
    assert accused(alone.findings) == [(Kind.EPOCH, 1), (Kind.CONTENT, 1)]


def test_timestamp_in_the_future_is_reported_only_if_a_limit_is_set() -> None:
    log = batch(0, at_ms=5_001)
    assert compare(0, [served(1, log)], rules(1)).findings == ()
    found = compare(0, [served(1, log)], rules(1, latest_ms=5_000))
    assert accused(found.findings) == [(Kind.TIMESTAMP, NOBODY)]
    assert compare(0, [served(1, log)], rules(1, latest_ms=5_001)).findings == ()


def test_replicas_that_do_not_answer_cause_no_finding() -> None:
    found = compare(7, [Sample(1, Status.UNKNOWN), Sample(2, Status.ABSENT), served(3, b"")], rules())
    assert (found.end, found.findings) == (7, ())
