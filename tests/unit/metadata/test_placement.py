"""Tests the placement of replicas: even spread, racks, fenced brokers and refusals."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from penstock.metadata.image import BrokerImage
from penstock.metadata.placement import place
from penstock.protocol.errors import ErrorCode, KafkaError


def brokers(*racks: str | None, fenced: frozenset[int] = frozenset()) -> list[BrokerImage]:
    return [
        BrokerImage(index, 10 + index, bytes(16), {}, rack, fenced=index in fenced)
        for index, rack in enumerate(racks, start=1)
    ]


def test_a_single_broker_gets_all_replicas() -> None:
    assert place(brokers(None), 3, 1, Random(1)) == [[1], [1], [1]]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("nodes", "factor"), [(3, 1), (3, 2), (3, 3), (5, 3), (7, 4)])
def test_leaders_and_replicas_spread_evenly_over_equal_brokers(seed: int, nodes: int, factor: int) -> None:
    assignments = place(brokers(*[None] * nodes), nodes * (nodes - 1), factor, Random(seed))
    leaders = Counter(replicas[0] for replicas in assignments)
    everyone = Counter(broker for replicas in assignments for broker in replicas)
    assert set(leaders.values()) == {nodes - 1}
    assert max(everyone.values()) - min(everyone.values()) <= nodes
    assert all(len(set(replicas)) == factor for replicas in assignments)


@pytest.mark.parametrize("seed", range(5))
def test_partitions_with_the_same_leader_have_different_followers(seed: int) -> None:
    assignments = place(brokers(None, None, None), 6, 2, Random(seed))
    assert len({tuple(replicas) for replicas in assignments}) == 6


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [2, 3])
def test_replicas_of_a_partition_are_in_different_racks(seed: int, factor: int) -> None:
    nodes = brokers("a", "a", "b", "b", "c", "c")
    rack = {node.broker_id: node.rack for node in nodes}
    assignments = place(nodes, 12, factor, Random(seed))
    assert all(len({rack[broker] for broker in replicas}) == factor for replicas in assignments)
    assert set(Counter(replicas[0] for replicas in assignments).values()) == {2}


def test_rack_gets_several_replicas_if_there_are_more_replicas_than_racks() -> None:
    assignments = place(brokers("a", "a", "b", "b"), 8, 3, Random(3))
    assert all(len(set(replicas)) == 3 for replicas in assignments)


@pytest.mark.parametrize("seed", range(5))
def test_fenced_broker_gets_replicas_only_if_too_few_brokers_are_unfenced(seed: int) -> None:
    nodes = brokers(None, None, None, fenced=frozenset({2}))
    assert all(2 not in replicas for replicas in place(nodes, 6, 2, Random(seed)))
    with_all = place(nodes, 6, 3, Random(seed))
    assert all(replicas[2] == 2 for replicas in with_all)


def test_placement_with_the_same_seed_gives_the_same_replicas() -> None:
    nodes = brokers("a", "b", "c", None)
    assert place(nodes, 20, 3, Random(9)) == place(nodes, 20, 3, Random(9))


def test_a_broker_whose_directories_are_all_cordoned_gets_no_replicas() -> None:
    one, two = bytes(15) + b"\x01", bytes(15) + b"\x02"
    first, *others = brokers(None, None, None)
    for cordoned in ((one,), (one, two)):  # two is one that has failed meanwhile
        closed = [replace(first, log_dirs=(one,), cordoned_log_dirs=cordoned), *others]
        placed = place(closed, 10, 2, Random(1))
        assert {replica for replicas in placed for replica in replicas} == {2, 3}
        with pytest.raises(KafkaError):
            place(closed, 1, 3, Random(1))
    half = [replace(first, log_dirs=(one, two), cordoned_log_dirs=(one,)), *others]
    assert {replica for replicas in place(half, 10, 3, Random(1)) for replica in replicas} == {1, 2, 3}


def test_placement_with_more_replicas_than_brokers_is_refused() -> None:
    with pytest.raises(KafkaError) as refusal:
        place(brokers(None), 1, 2, Random(1))
    assert refusal.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert refusal.value.message is not None
    assert "but only 1 can take one" in refusal.value.message


def test_placement_without_an_unfenced_broker_is_refused() -> None:
    with pytest.raises(KafkaError) as refusal:
        place(brokers(None, fenced=frozenset({1})), 1, 1, Random(1))
    assert refusal.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
