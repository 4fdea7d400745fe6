"""Tests the leader's decisions about its followers with tables of cases."""

from __future__ import annotations

import pytest

from penstock.metadata.image import BrokerImage, PartitionImage
from penstock.protocol.errors import ErrorCode
from penstock.replication.leader import Leading, Proposal, Verdict

LAG_MS = 1000
BROKERS = {each: BrokerImage(each, 10 + each, bytes(16), {}, fenced=False) for each in (1, 2, 3)}


def image(isr: tuple[int, ...] = (1, 2, 3), *, partition_epoch: int = 5, **fields: object) -> PartitionImage:
    values = {"replicas": (1, 2, 3), "leader": 1, "leader_epoch": 7, "partition_epoch": partition_epoch, **fields}
    return PartitionImage(isr=isr, **values)  # type: ignore[arg-type]


def leading(isr: tuple[int, ...] = (1, 2, 3), *, epoch_start: int = 0, now_ms: int = 0) -> Leading:
    return Leading(1, image(isr), epoch_start, now_ms)


def fetch(leader: Leading, node: int, offset: int, *, end: int, now_ms: int = 0, epoch: int | None = None) -> None:
    leader.followers[node].broker_epoch = 10 + node if epoch is None else epoch
    leader.followers[node].on_fetch(offset, 0, end, now_ms)


def mark(leader: Leading, end: int, *, now_ms: int = 0) -> int:
    return leader.high_watermark(end, end, now_ms, LAG_MS, BROKERS)


@pytest.mark.parametrize(
    ("isr", "offsets", "expected"),
    [
        ((1, 2, 3), {2: 10, 3: 8}, 8),
        ((1, 2, 3), {2: 10, 3: 10}, 10),
        ((1, 2), {2: 9, 3: 3}, 9),  # replica 3 is not in sync and is far behind
        ((1,), {2: 3, 3: 4}, 10),
        ((1, 2, 3), {2: 10}, -1),  # replica 3 has not fetched: the high watermark does not advance
    ],
)
def test_the_high_watermark_is_the_smallest_log_end_of_in_sync_replicas(
    isr: tuple[int, ...], offsets: dict[int, int], expected: int
) -> None:
    leader = leading(isr)
    for node, offset in offsets.items():
        fetch(leader, node, offset, end=10, now_ms=5000)
    assert mark(leader, 10, now_ms=10_000) == expected


def test_high_watermark_waits_for_a_follower_that_may_join_the_isr() -> None:
    leader = leading((1,))
    fetch(leader, 2, 10, end=10, now_ms=5000)
    assert mark(leader, 12, now_ms=5500) == 10
    assert mark(leader, 12, now_ms=5000 + LAG_MS + 1) == 12  # only while it is caught up
    assert leader.high_watermark(12, 12, 5500, LAG_MS, {}) == 12  # only if it is eligible


def test_high_watermark_waits_for_an_added_replica_until_the_controller_decides_the_isr_change() -> None:
    leader = leading((1, 2))
    fetch(leader, 2, 10, end=10)
    fetch(leader, 3, 10, end=10)
    leader.expand(3, 11)
    assert leader.maximal_isr == {1, 2, 3}
    fetch(leader, 2, 20, end=20, now_ms=9000)
    assert mark(leader, 20, now_ms=9000) == 10
    assert leader.refused(ErrorCode.UNKNOWN_SERVER_ERROR) is Verdict.RETRY
    assert leader.maximal_isr == {1, 2, 3}
    leader.follow(image((1, 2), partition_epoch=6), 9000)
    assert leader.maximal_isr == {1, 2}
    assert mark(leader, 20, now_ms=9000) == 20


@pytest.mark.parametrize(
    ("expands", "answered_epoch", "counts"),
    [
        pytest.param(True, 6, True, id="a larger set"),
        pytest.param(False, 6, False, id="a smaller set"),
        pytest.param(False, 5, True, id="a set that the controller had already"),
    ],
)
def test_leader_uses_a_smaller_isr_only_after_the_metadata_image_contains_it(
    expands: bool, answered_epoch: int, counts: bool
) -> None:
    proposal = Proposal((1, 2), ((1, 11), (2, 12)), leader_epoch=3, partition_epoch=5, expands=expands)
    assert proposal.counts_when_granted(answered_epoch) is counts


def test_removed_replica_counts_towards_the_high_watermark_until_the_isr_change_is_committed() -> None:
    leader = leading()
    for node in (2, 3):
        fetch(leader, node, 10, end=10)
    fetch(leader, 2, 20, end=20, now_ms=5000)
    assert leader.laggards(20, 5000, LAG_MS) == [3]
    proposal = leader.shrink([3], 11)
    assert proposal.isr == (1, 2)
    assert proposal.members == ((1, 11), (2, 12))
    assert mark(leader, 20, now_ms=5000) == 10
    assert leader.laggards(30, 99_999, LAG_MS) == []  # one change at a time
    assert leader.accepted((1, 2), 7, 6)
    assert mark(leader, 20, now_ms=5000) == 20


@pytest.mark.parametrize(
    ("fetches", "now_ms", "lags"),
    [
        ([(10, 10, 0)], 5000, False),  # at the leader's end: in sync, however old its last fetch
        ([(9, 10, 0)], 1001, True),  # not caught up within the lag time
        ([(9, 10, 0), (10, 12, 900)], 1000, False),  # at 900 ms it reached the end that the log had at 0 ms
        ([(9, 10, 0), (10, 12, 900)], 1900, True),
        ([(10, 10, 500), (10, 12, 1400)], 1500, False),
        ([(10, 10, 500), (11, 14, 1400)], 1501, True),
    ],
)
def test_lag_of_a_follower_is_the_time_since_it_was_last_caught_up(
    fetches: list[tuple[int, int, int]], now_ms: int, lags: bool
) -> None:
    leader = leading((1, 2))
    for offset, end, at_ms in fetches:
        fetch(leader, 2, offset, end=end, now_ms=at_ms)
    assert leader.laggards(fetches[-1][1], now_ms, LAG_MS) == ([2] if lags else [])


@pytest.mark.parametrize(
    ("offset", "high_watermark", "epoch_start", "epoch", "joins"),
    [
        (10, 10, 5, 12, True),
        (9, 10, 5, 12, False),  # behind the high watermark
        (10, 10, 11, 12, False),  # below the start of the epoch: the predecessor may have acknowledged later records
        (10, 10, 5, 11, False),  # another incarnation
        (10, 10, 5, -1, False),  # the fetch contains no broker epoch
    ],
)
def test_a_follower_may_join_the_isr_only_if_it_is_caught_up_and_registered_with_the_same_broker_epoch(
    offset: int, high_watermark: int, epoch_start: int, epoch: int, joins: bool
) -> None:
    leader = leading((1,), epoch_start=epoch_start)
    fetch(leader, 2, offset, end=20, epoch=epoch)
    assert leader.may_join(leader.followers[2], high_watermark, BROKERS) is joins


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INELIGIBLE_REPLICA,  # an earlier attempt may still arrive and be granted
    ],
)
def test_refused_isr_expansion_stays_in_effect_until_a_newer_metadata_image_arrives(code: ErrorCode) -> None:
    leader = leading((1, 2))
    fetch(leader, 3, 10, end=10)
    leader.expand(3, 11)
    assert leader.refused(code) is Verdict.WAIT
    assert leader.maximal_isr == {1, 2, 3}
    leader.follow(image((1, 2)), 0)  # an image from before the proposal
    assert leader.maximal_isr == {1, 2, 3}
    leader.follow(image((1, 2), partition_epoch=6), 0)
    assert leader.maximal_isr == {1, 2}


def test_an_older_image_does_not_undo_an_isr_change_that_the_controller_accepted() -> None:
    leader = leading((1, 2))
    leader.expand(3, 11)
    assert leader.accepted((1, 2, 3), 7, 6)
    leader.follow(image((1, 2), partition_epoch=5), 0)
    assert leader.isr == (1, 2, 3)
    assert not leader.accepted((1,), 6, 9)  # an answer for another leader epoch
    assert not leader.accepted((1,), 7, 5)
    leader.follow(image((1, 3), partition_epoch=7), 0)
    assert sorted(leader.isr) == [1, 3]


def test_added_replicas_start_out_of_sync_and_removed_replicas_are_forgotten() -> None:
    leader = leading((1, 2))
    fetch(leader, 2, 10, end=10)
    leader.follow(image((1, 2), partition_epoch=6, replicas=(1, 2, 4)), 0)
    assert list(leader.followers) == [2, 4]
    assert leader.followers[2].log_end == 10
    assert not leader.followers[4].is_caught_up(10, 0, LAG_MS)


@pytest.mark.parametrize(
    ("isr", "min_insync", "under"), [((1,), 2, True), ((1, 2), 2, False), ((1, 2, 3), 5, False), ((1, 2), 5, True)]
)
def test_min_isr_is_at_most_the_number_of_replicas(isr: tuple[int, ...], min_insync: int, under: bool) -> None:
    assert leading(isr).is_under_min_isr(min_insync) is under


def test_the_low_watermark_ignores_dead_replicas() -> None:
    leader = leading()
    leader.followers[2].on_fetch(10, 6, 10, 0)
    leader.followers[3].on_fetch(10, 2, 10, 0)
    assert leader.low_watermark(8, lambda node: True) == 2
    assert leader.low_watermark(8, lambda node: node != 3) == 6
    assert leader.low_watermark(8, lambda node: False) == 8


def test_lag_of_a_follower_that_never_caught_up_counts_from_the_start_of_the_leadership() -> None:
    leader = leading((1, 2), now_ms=10_000)
    fetch(leader, 2, 10, end=10, now_ms=11_000)
    fetch(leader, 3, 4, end=10, now_ms=11_000)
    assert [leader.followers[node].lag_ms(10, 12_000) for node in (2, 3)] == [0, 2_000]
    assert [leader.followers[node].lag_ms(12, 15_000) for node in (2, 3)] == [4_000, 5_000]
