"""Tests the lag of followers in a leader's metrics: per follower over all partitions, and per topic."""

from __future__ import annotations

from penstock.http.partition_metrics import Held, Led, TopicSums, _follower_lag
from penstock.replication.leader import Figures


def led(partition: int, lag_records: dict[int, int], lag_ms: dict[int, int]) -> Led:
    in_sync = tuple(replica for replica, behind in lag_records.items() if behind == 0)
    figures = Figures(
        topic="orders",
        partition=partition,
        leader_epoch=1,
        log_start=10,
        log_end=100,
        high_watermark=90,
        isr=(1, *in_sync),
        replicas=(1, *lag_records),
        lag_records=lag_records,
        lag_ms=lag_ms,
        under_replicated=len(in_sync) < len(lag_records),
        under_min_isr=not in_sync,
        isr_change_pending=False,
    )
    return Led(figures, 1000)


PARTITIONS = (led(0, {2: 0, 3: 7}, {2: 0, 3: 40}), led(1, {2: 0, 3: 3}, {2: 0, 3: 1500}), led(2, {2: 1}, {2: 5}))


def test_metrics_have_the_largest_and_the_total_lag_of_each_follower_over_all_partitions() -> None:
    held = Held([])
    for each in PARTITIONS:
        held.add_led(each)
    found = {family.name: dict(family.samples) for family in _follower_lag(held)}
    two, three = (("replica", "2"),), (("replica", "3"),)
    assert found["penstock_follower_lag_records_max"] == {two: 1, three: 7}
    assert found["penstock_follower_lag_records_sum"] == {two: 1, three: 10}
    assert found["penstock_follower_lag_seconds_max"] == {two: 0.005, three: 1.5}
    assert (held.under_replicated, held.under_min_isr) == (3, 1)


def test_metrics_of_a_topic_have_the_summed_sizes_and_the_largest_follower_lag_of_its_partitions() -> None:
    sums = TopicSums()
    for each in PARTITIONS:
        sums.add(each)
    assert (sums.ends, sums.records, sums.size) == (300, 270, 3000)
    assert (sums.lag.largest, sums.lag.longest_ms) == (7, 1500)
