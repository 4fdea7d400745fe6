"""Tests plans for draining and balancing: examples, and properties that hold for every cluster."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.metadata.moves import Move, Placement, PlanError, drain, rebalance
from penstock.protocol.vocabulary import TopicPartition
from tools.examples import examples

NO_SIZES: dict[TopicPartition, int] = {}
PLAIN = {1: None, 2: None, 3: None}


def placed(*replicas: tuple[int, ...], topic: str = "t") -> dict[TopicPartition, tuple[int, ...]]:
    return {(topic, index): each for index, each in enumerate(replicas)}


def after(placement: Placement, moves: list[Move]) -> dict[TopicPartition, tuple[int, ...]]:
    return {**placement, **{move.partition: move.after for move in moves}}


def counts(placement: Placement, brokers: object) -> dict[int, int]:
    found = Counter(broker for replicas in placement.values() for broker in replicas)
    return {broker: found[broker] for broker in brokers}  # type: ignore[attr-defined]


# --- examples -----------------------------------------------------------------------------------------------------


def test_a_balanced_cluster_needs_no_moves() -> None:
    assert rebalance(placed((1, 2), (2, 3), (3, 1)), PLAIN, NO_SIZES) == []


def test_drain_moves_all_replicas_of_a_broker_and_no_other_replicas() -> None:
    moves = drain(placed((1, 2), (2, 3), (3, 1)), {**PLAIN, 4: None}, {3}, NO_SIZES)
    assert [(move.partition[1], move.removing, move.adding) for move in moves] == [(1, (3,), (4,)), (2, (3,), (4,))]


def test_drain_is_refused_if_no_other_broker_can_take_a_replica() -> None:
    with pytest.raises(PlanError, match="t-0 has 3 replicas, and no other broker"):
        drain(placed((1, 2, 3)), PLAIN, {3}, NO_SIZES)


def test_drained_replica_goes_to_a_rack_without_another_replica_of_the_partition() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    (move,) = drain(placed((1, 3)), racks, {3}, NO_SIZES)
    assert move.adding == (4,)


def test_rebalance_moves_replicas_only_to_a_new_broker() -> None:
    before = placed(*[(1, 2), (2, 1)] * 3)
    moves = rebalance(before, PLAIN, NO_SIZES, onto={3})
    assert counts(after(before, moves), PLAIN) == {1: 4, 2: 4, 3: 4}
    assert {broker for move in moves for broker in move.adding} == {3}
    assert sum(move.copies for move in moves) == 4


def test_a_rebalance_moves_the_smallest_partitions() -> None:
    before = placed(*[(1,)] * 4)
    sizes = {("t", 0): 900, ("t", 1): 10, ("t", 2): 800, ("t", 3): 20}
    moves = rebalance(before, {1: None, 2: None}, sizes)
    assert [move.partition[1] for move in moves] == [1, 3]


def test_leaders_are_balanced_by_reordering_replicas() -> None:
    before = placed((1, 2), (1, 2), (1, 3), (1, 3), (2, 3), (3, 2))
    moves = rebalance(before, PLAIN, NO_SIZES)
    assert not any(move.copies for move in moves)
    assert Counter(replicas[0] for replicas in after(before, moves).values()) == {1: 2, 2: 2, 3: 2}


def test_leaders_are_balanced_between_two_brokers_that_share_no_partition() -> None:
    # Brokers 1 and 3 share no partition: 1 passes a leadership to 2, and 2 passes another to 3.
    before = placed((1, 2), (1, 2), (1, 2), (2, 3), (2, 3))
    moves = rebalance(before, PLAIN, NO_SIZES)
    leaders = Counter(replicas[0] for replicas in after(before, moves).values())
    assert max(leaders.values()) <= 2


def test_rebalance_moves_one_of_two_replicas_in_a_rack_to_another_rack() -> None:
    racks = {1: "a", 2: "a", 3: "b"}
    (move,) = rebalance(placed((1, 2)), racks, NO_SIZES)
    assert move.after == (1, 3)


def test_rebalance_never_puts_two_replicas_of_a_partition_into_one_rack() -> None:
    racks = {1: "a", 2: "b", 3: "b"}
    before = placed(*[(1, 2)] * 4)
    moves = rebalance(before, racks, NO_SIZES)
    assert all(1 in replicas for replicas in after(before, moves).values())
    assert counts(after(before, moves), racks) == {1: 4, 2: 2, 3: 2}


# --- properties of every plan -------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[int, str | None], dict[TopicPartition, tuple[int, ...]]]:
    size = draw(st.integers(2, 7))
    named = draw(st.booleans())
    racks = {broker: draw(st.sampled_from("abc")) if named else None for broker in range(1, size + 1)}
    placement: dict[TopicPartition, tuple[int, ...]] = {}
    for topic in range(draw(st.integers(1, 3))):
        factor = draw(st.integers(1, min(3, size)))
        for index in range(draw(st.integers(1, 9))):
            order = draw(st.permutations(sorted(racks)))
            placement[f"t{topic}", index] = tuple(order[:factor])
    return racks, placement


def rack_count(replicas: tuple[int, ...], racks: dict[int, str | None]) -> int:
    return len({racks[broker] for broker in replicas})


@given(clusters())
@settings(max_examples=examples(200), deadline=None)
def test_rebalance_keeps_the_number_of_replicas_and_puts_them_on_different_brokers(
    cluster: tuple[dict[int, str | None], dict[TopicPartition, tuple[int, ...]]],
) -> None:
    racks, before = cluster
    for partition, replicas in after(before, rebalance(before, racks, NO_SIZES)).items():
        assert len(replicas) == len(before[partition])
        assert len(set(replicas)) == len(replicas)
        assert set(replicas) <= set(racks)


@given(clusters())
@settings(max_examples=examples(200), deadline=None)
def test_rebalance_without_racks_ends_with_replica_counts_that_differ_by_at_most_one(
    cluster: tuple[dict[int, str | None], dict[TopicPartition, tuple[int, ...]]],
) -> None:
    racks = dict.fromkeys(cluster[0])
    before = cluster[1]
    moves = rebalance(before, racks, NO_SIZES)
    held, had = counts(after(before, moves), racks), counts(before, racks)
    assert max(held.values()) - min(held.values()) <= 1
    # No broker both gives and takes replicas, so the moves are no more than the surplus of the fullest brokers.
    assert sum(len(move.adding) for move in moves) == sum(max(0, had[each] - held[each]) for each in racks)


@given(clusters())
@settings(max_examples=examples(200), deadline=None)
def test_moves_never_reduce_the_number_of_racks_of_a_partition(
    cluster: tuple[dict[int, str | None], dict[TopicPartition, tuple[int, ...]]],
) -> None:
    racks, before = cluster
    for partition, replicas in after(before, rebalance(before, racks, NO_SIZES)).items():
        if None not in racks.values():
            assert rack_count(replicas, racks) >= rack_count(before[partition], racks)


@given(clusters())
@settings(max_examples=examples(200), deadline=None)
def test_rebalance_directly_after_a_rebalance_has_no_moves(
    cluster: tuple[dict[int, str | None], dict[TopicPartition, tuple[int, ...]]],
) -> None:
    racks, before = cluster
    assert rebalance(after(before, rebalance(before, racks, NO_SIZES)), racks, NO_SIZES) == []


@given(clusters(), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_drain_moves_only_the_replicas_of_its_broker_and_keeps_racks(
    cluster: tuple[dict[int, str | None], dict[TopicPartition, tuple[int, ...]]], data: st.DataObject
) -> None:
    racks, before = cluster
    leaving = data.draw(st.sampled_from(sorted(racks)))
    if any(len(replicas) == len(racks) for replicas in before.values()):
        with pytest.raises(PlanError):
            drain({k: v for k, v in before.items() if len(v) == len(racks)}, racks, {leaving}, NO_SIZES)
        return
    moves = drain(before, racks, {leaving}, NO_SIZES)
    ended = after(before, moves)
    assert all(leaving not in replicas for replicas in ended.values())
    for move in moves:
        assert move.removing == (leaving,)
        assert len(move.adding) == 1
    possible = {rack for broker, rack in racks.items() if broker != leaving}
    for partition, replicas in ended.items():
        if leaving in before[partition] and None not in possible:
            kept = [broker for broker in before[partition] if broker != leaving]
            best = min(len(possible), rack_count(tuple(kept), racks) + 1)
            free = {racks[each] for each in racks if each != leaving and each not in kept}
            if free - {racks[each] for each in kept}:
                assert rack_count(replicas, racks) == best


@given(clusters())
@settings(max_examples=examples(100), deadline=None)
def test_leaders_are_balanced_as_far_as_the_replica_placement_allows(
    cluster: tuple[dict[int, str | None], dict[TopicPartition, tuple[int, ...]]],
) -> None:
    racks, before = cluster
    ended = after(before, rebalance(before, racks, NO_SIZES))
    most = max(Counter(replicas[0] for replicas in ended.values()).values())
    assert _can_lead_within(ended, most)
    assert most == 1 or not _can_lead_within(ended, most - 1)


def _can_lead_within(placement: Placement, most: int) -> bool:
    """Returns True if some choice of leaders gives no broker more than `most` leaderships.

    Computes a bipartite matching with capacity `most`.
    """
    led: dict[int, list[TopicPartition]] = {}

    def place(partition: TopicPartition, seen: set[int]) -> bool:
        for broker in placement[partition]:
            if broker in seen:
                continue
            seen.add(broker)
            mine = led.setdefault(broker, [])
            if len(mine) < most:
                mine.append(partition)
                return True
            for index, other in enumerate(mine):
                if place(other, seen):
                    mine[index] = partition
                    return True
        return False

    return all(place(partition, set()) for partition in sorted(placement))
