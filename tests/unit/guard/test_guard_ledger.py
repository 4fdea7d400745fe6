"""Tests how confirmed findings against nodes are counted."""

import pytest

from penstock.guard.findings import NOBODY, Finding, Kind
from penstock.guard.ledger import RECOUNT_MS, Ledger


def finding(partition: str, *, node: int = 2, kind: Kind = Kind.CONTENT) -> Finding:
    return Finding(kind, node, partition, 0, "")


def test_findings_about_several_partitions_of_a_node_together_reach_the_quarantine_threshold() -> None:
    ledger = Ledger(threshold=3, window_ms=1000)
    assert [ledger.enter(finding(f"t-{index}"), 0) for index in range(3)] == [False, False, True]


def test_same_finding_counts_towards_quarantine_only_once_per_minute() -> None:
    ledger = Ledger(threshold=2, window_ms=1000)
    assert not any(ledger.enter(finding("t-0"), at_ms) for at_ms in range(5))
    assert ledger.enter(finding("t-0", kind=Kind.TWO_LEADERS), 5)


def test_persistent_wrong_content_counts_towards_quarantine_again_every_minute() -> None:
    ledger = Ledger(threshold=3, window_ms=10 * RECOUNT_MS)
    times = range(0, 3 * RECOUNT_MS, RECOUNT_MS // 6)
    reached = [at_ms for at_ms in times if ledger.enter(finding("t-0"), at_ms)]
    assert reached[0] == 2 * RECOUNT_MS


def test_repeated_findings_of_a_wrong_checksum_in_a_replica_count_towards_quarantine_once() -> None:
    ledger = Ledger(threshold=2, window_ms=2 * RECOUNT_MS)
    rotten = finding("t-0", kind=Kind.CHECKSUM)
    assert not any(ledger.enter(rotten, at_ms) for at_ms in range(0, 10 * RECOUNT_MS, RECOUNT_MS))
    assert ledger.enter(finding("t-1", kind=Kind.CHECKSUM), 10 * RECOUNT_MS)


def test_findings_against_two_nodes_do_not_together_reach_the_quarantine_threshold() -> None:
    ledger = Ledger(threshold=2, window_ms=1000)
    assert not ledger.enter(finding("t-0", node=1), 0)
    assert not ledger.enter(finding("t-1", node=2), 0)


def test_findings_older_than_the_time_window_do_not_count_towards_quarantine() -> None:
    ledger = Ledger(threshold=2, window_ms=1000)
    ledger.enter(finding("t-0"), 0)
    assert not ledger.enter(finding("t-1"), 1001)
    assert ledger.count(2, 1001) == 1


@pytest.mark.parametrize("kind", [Kind.TIMESTAMP, Kind.AUTHENTICATION, Kind.END_OFFSET])
def test_findings_about_timestamps_logins_and_end_offsets_never_count_towards_quarantine(kind: Kind) -> None:
    ledger = Ledger(threshold=1, window_ms=1000)
    assert not ledger.enter(finding("t-0", kind=kind), 0)


def test_finding_that_accuses_no_node_never_counts_towards_quarantine() -> None:
    assert not Ledger(threshold=1, window_ms=1000).enter(finding("t-0", node=NOBODY), 0)


def test_node_released_from_quarantine_starts_with_no_findings() -> None:
    ledger = Ledger(threshold=2, window_ms=1000)
    ledger.enter(finding("t-0"), 0)
    ledger.forget(2)
    assert not ledger.enter(finding("t-1"), 1)
