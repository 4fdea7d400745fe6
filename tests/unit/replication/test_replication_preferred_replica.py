"""Tests which replica a consumer should read from: the follower in its rack with the longest log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.metadata.image import BrokerImage, PartitionImage
from penstock.replication.leader import Leading
from penstock.replication.preferred_replica import preferred_replica

BROKERS = {
    each: BrokerImage(each, 10 + each, bytes(16), {}, fenced=False, rack="far" if each == 1 else "near")
    for each in (1, 2, 3)
}


def leading(*ends: int, isr: tuple[int, ...] = (1, 2, 3), log_start: int = 0) -> Leading:
    """Returns node 1 as leader; the logs of nodes 2 and 3 end at `ends`."""
    image = PartitionImage(replicas=(1, 2, 3), isr=isr, leader=1, leader_epoch=1)
    leader = Leading(1, image, 0, 0)
    for node, end in zip((2, 3), ends):
        leader.followers[node].on_fetch(end, log_start, 10, 5)
    return leader


@pytest.mark.parametrize(
    ("ends", "offset", "expected"),
    [
        pytest.param((8, 9), 5, 3, id="the longest log"),
        pytest.param((9, 8), 5, 2, id="the longest log, whatever the order"),
        pytest.param((5, 4), 5, 2, id="an offset at the end"),
        pytest.param((4, 3), 5, -1, id="an offset past both ends"),
    ],
)
def test_the_preferred_replica_is_the_follower_in_the_consumers_rack_with_the_longest_log(
    ends: tuple[int, int], offset: int, expected: int
) -> None:
    assert preferred_replica(leading(*ends), BROKERS, "near", offset) == expected


def test_consumer_in_the_rack_of_the_leader_or_in_an_unknown_rack_stays_with_the_leader() -> None:
    assert preferred_replica(leading(9, 9), BROKERS, "far", 5) == -1
    assert preferred_replica(leading(9, 9), BROKERS, "nowhere", 5) == -1


def test_preferred_replica_is_live_and_in_sync_and_has_the_fetch_offset() -> None:
    assert preferred_replica(leading(8, 9, isr=(1, 2)), BROKERS, "near", 5) == 2
    fenced = {**BROKERS, 3: replace(BROKERS[3], fenced=True)}
    assert preferred_replica(leading(8, 9), fenced, "near", 5) == 2
    assert preferred_replica(leading(8, 9), {1: BROKERS[1], 2: BROKERS[2]}, "near", 5) == 2
    assert preferred_replica(leading(8, 9, log_start=6), BROKERS, "near", 5) == -1
    assert preferred_replica(leading(8, 9, log_start=5), BROKERS, "near", 5) == 3


def test_follower_that_caught_up_most_recently_is_preferred_if_the_logs_are_equal() -> None:
    leader = leading(9, 9)
    leader.followers[2].caught_up_ms = 7
    assert preferred_replica(leader, BROKERS, "near", 5) == 2
