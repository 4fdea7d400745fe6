"""Tests plans of moves between the log directories of a node: balance, free space, cordoned and offline directories."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.metadata.directory_balance import (
    CopyState,
    DirectoryMove,
    DirectoryState,
    PlacedReplica,
    balance,
    evacuate,
    rate,
    seconds_left,
)
from penstock.metadata.moves import PlanError
from penstock.protocol.vocabulary import TopicPartition

A, B, C = DirectoryState("/a"), DirectoryState("/b"), DirectoryState("/c")


def placed(**held: list[int]) -> dict[TopicPartition, PlacedReplica]:
    """Returns replicas with these sizes in the directories /a, /b, …"""
    return {
        (name, index): PlacedReplica(f"/{name}", size)
        for name, sizes in held.items()
        for index, size in enumerate(sizes)
    }


def after(replicas: dict[TopicPartition, PlacedReplica], moves: list[DirectoryMove]) -> dict[str, int]:
    where = {partition: replica.directory for partition, replica in replicas.items()}
    for move in moves:
        assert where[move.partition] == move.source
        where[move.partition] = move.target
    held: dict[str, int] = {}
    for partition, path in where.items():
        held[path] = held.get(path, 0) + replicas[partition].size
    return held


def test_balancing_moves_half_of_the_bytes_to_a_new_directory_in_one_move() -> None:
    replicas = placed(a=[100, 50, 30, 20])
    moves = balance([A, B], replicas)
    assert after(replicas, moves) == {"/a": 100, "/b": 100}
    assert len(moves) == 1


def test_directories_with_equal_bytes_need_no_move() -> None:
    assert balance([A, B], placed(a=[100], b=[97])) == []
    assert balance([A], placed(a=[100])) == []
    assert balance([], {}) == []


def test_balancing_does_not_move_the_only_replica_of_a_broker_to_an_empty_directory() -> None:
    assert balance([A, B], placed(a=[100])) == []


def test_balancing_moves_no_replica_to_a_cordoned_or_offline_directory() -> None:
    replicas = placed(a=[50, 50])
    assert balance([A, DirectoryState("/b", cordoned=True), DirectoryState("/c", offline=True)], replicas) == []


def test_balancing_moves_no_more_bytes_than_the_target_directory_has_free() -> None:
    moves = balance([A, DirectoryState("/b", usable_bytes=25)], placed(a=[50, 30, 20, 10]), reserve=5)
    assert [move.size for move in moves] == [20]


@given(
    st.lists(st.lists(st.integers(0, 1000), max_size=20), min_size=1, max_size=4),
    st.lists(st.integers(0, 3000), min_size=4, max_size=4),
)
def test_balancing_moves_each_replica_at_most_once_and_never_makes_directories_more_unequal(
    held: list[list[int]], usable: list[int]
) -> None:
    replicas = placed(**{"abcd"[index]: sizes for index, sizes in enumerate(held)})
    directories = [DirectoryState(f"/{'abcd'[index]}", usable[index]) for index in range(len(held))]
    before = {each.path: 0 for each in directories} | after(replicas, [])
    moves = balance(directories, replicas)
    assert len({move.partition for move in moves}) == len(moves)
    ended = {each.path: 0 for each in directories} | after(replicas, moves)
    assert max(ended.values()) <= max(before.values())
    assert min(ended.values()) >= min(before.values())
    for each in directories:
        assert sum(move.size for move in moves if move.target == each.path) <= each.usable_bytes


def test_evacuation_moves_each_replica_to_the_directory_with_the_fewest_bytes() -> None:
    replicas = placed(a=[10, 40, 30], b=[50], c=[20])
    moves = evacuate("/a", [A, B, C], replicas)
    assert after(replicas, moves) == {"/b": 80, "/c": 70}
    assert [move.size for move in moves] == [40, 30, 10]


def test_evacuation_moves_empty_replicas_too() -> None:
    assert len(evacuate("/a", [A, B], placed(a=[0]))) == 1


def test_evacuation_without_room_fails_with_an_error_that_names_the_replica_and_the_remedy() -> None:
    with pytest.raises(PlanError, match=r"has room for a-1 \(40 bytes\): free space"):
        evacuate("/a", [A, DirectoryState("/b", usable_bytes=39)], placed(a=[10, 40]))
    with pytest.raises(PlanError, match="add a directory"):
        evacuate("/a", [A, DirectoryState("/b", cordoned=True)], placed(a=[10]))
    with pytest.raises(PlanError, match="replace its disk"):
        evacuate("/a", [DirectoryState("/a", offline=True), B], placed(a=[10]))


def test_copy_rate_and_remaining_time_of_a_move_are_computed_from_two_measurements() -> None:
    now = CopyState(size=1000, copied=400, records_left=6)
    assert rate(None, now, 2.0) is None
    assert rate(CopyState(900, 200, 7), now, 2.0) == 100.0
    assert rate(CopyState(900, 500, 7), now, 2.0) == 0.0  # the copy was truncated meanwhile
    assert seconds_left(now, 100.0) == 6.0
    assert seconds_left(now, 0.0) is None
    assert seconds_left(CopyState(1000, 990, 0), None) == 0.0  # sizes differ by overhead, but no record is missing
