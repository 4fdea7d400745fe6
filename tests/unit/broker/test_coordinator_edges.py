"""Tests rare situations of coordinators: long outages, one broken log among others, and late producer ids."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from plain_coordinator import in_virtual_time
from test_coordinators import ELSEWHERE, Hosted
from test_marker_rounds import Timed
from test_marker_sender import HERE, World
from test_transaction_coordinators import Broker

from penstock.broker.coordinators.marker_sender import MAX_RETRY_SECONDS, MarkerSender
from penstock.broker.coordinators.runtime import Phase
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.build import build_batch
from penstock.transactions.turn import Markers

# --- markers


def test_marker_is_still_sent_after_an_outage_of_many_hours() -> None:
    async def scenario() -> None:
        world = Timed({("t", 0): -1, ("t", 1): -1})
        world.send(("t", 0), producer_id=1)
        world.send(("t", 1), producer_id=2)
        await asyncio.sleep(3 * 3600)
        world.leaders = dict.fromkeys(world.leaders, 2)
        await asyncio.sleep(2 * MAX_RETRY_SECONDS)
        assert len(world.done) == 2

    in_virtual_time(scenario, until=4 * 3600.0)


@pytest.mark.parametrize("leader", [0, 1, 2])
def test_markers_are_sent_to_every_node_id_and_written_on_this_node(leader: int) -> None:
    async def scenario() -> None:
        world = World({("t", 0): leader})
        world.send(("t", 0))
        await asyncio.sleep(0.001)
        assert len(world.done) == 1
        assert [node for node, _ in world.asked] == ([leader] if leader != HERE else [])
        assert len(world.written) == (leader == HERE)

    in_virtual_time(scenario)


def test_single_node_keeps_markers_for_other_leaders_until_it_leads_their_partitions() -> None:
    """An image may name another leader while the only node of a cluster is replaced."""

    async def scenario() -> None:
        world = World({("t", 0): 5, ("t", 1): HERE})
        world.sender = MarkerSender(
            HERE,
            metadata=cast(Any, SimpleNamespace(image=world)),
            writer=cast(Any, world),
            peers=None,
            done=world.finished,
            spawn=world.spawn,
        )
        world.send(("t", 0), ("t", 1))
        await asyncio.sleep(3)
        assert world.done == []
        assert [index for _, index, _ in world.written] == [1]
        world.leaders["t", 0] = HERE
        await asyncio.sleep(MAX_RETRY_SECONDS)
        assert [index for _, index, _ in world.written] == [1, 0]
        assert len(world.done) == 1

    in_virtual_time(scenario)


def test_each_transaction_ends_once_when_its_partitions_end_in_different_ways() -> None:
    """One partition is here, one is at another node, one is deleted, and one has no leader for some time."""

    async def scenario() -> None:
        world = World({("t", 0): HERE, ("t", 1): 2, ("t", 2): -1})
        markers = [Markers(f"tx{i}", i, 3, True, 2, frozenset(("t", index) for index in range(4))) for i in (1, 2)]
        for each in markers:
            world.sender.send(each, cast(Any, world.coordinator))
        await asyncio.sleep(0.5)
        assert world.done == []
        world.leaders["t", 2] = HERE
        world.sender.image_changed()
        world.sender.image_changed()
        await asyncio.sleep(3)
        assert [ending.markers for ending in world.done] == markers
        assert sorted(index for _, index, _ in world.written) == [0, 0, 2, 2]
        assert len(world.asked) <= 2

    in_virtual_time(scenario)


# --- coordinators of several partitions


def test_coordinator_whose_log_cannot_be_read_is_not_loaded_again_by_each_request() -> None:
    async def scenario() -> None:
        hosted = Hosted(2)
        key = b"\x00\x01" + b"\x00\x01g" + b"\x00\x09t"  # the length of the topic name is wrong
        hosted.partitions[0].append(build_batch([(0, key, b"\x00\x04", ())]))
        hosted.lead(p0=(HERE, 1), p1=(HERE, 1))
        await hosted.coordinators.load()
        broken, fine = hosted.coordinators.at(0), hosted.coordinators.at(1)
        for _ in range(2):
            assert hosted.coordinators.at(0) is broken
            with pytest.raises(KafkaError) as refused:
                hosted.coordinators.at(0).active()
            assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        fine.active()
        hosted.partitions[0].batches.clear()
        hosted.partitions[0].log_end_offset = hosted.partitions[0].high_watermark = 0
        assert hosted.lead(p0=(HERE, 2), p1=(HERE, 1))
        hosted.coordinators.at(0).active()
        assert hosted.coordinators.at(1) is fine

    in_virtual_time(scenario)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_partition_that_cannot_be_opened_does_not_keep_other_coordinators_closed(
    missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        hosted = Hosted(3)
        usual = hosted.get

        def get(topic: str, index: int) -> Any:
            if index == missing:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk is broken.")
            return usual(topic, index)

        monkeypatch.setattr(hosted, "get", get)
        assert hosted.lead(p0=(HERE, 1), p1=(HERE, 1), p2=(HERE, 1))
        others = [index for index in range(3) if index != missing]
        opened = [hosted.coordinators.at(index) for index in others]
        for index, each in zip(others, opened):
            assert each.partition is hosted.partitions[index]  # type: ignore[comparison-overlap]
        with pytest.raises(KafkaError) as refused:
            hosted.coordinators.at(missing)
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        monkeypatch.setattr(hosted, "get", usual)
        assert hosted.lead(p0=(HERE, 1), p1=(HERE, 1), p2=(HERE, 1))
        hosted.coordinators.at(missing).active()
        assert [hosted.coordinators.at(index) for index in others] == opened

    in_virtual_time(scenario)


def test_changed_leader_of_one_partition_leaves_the_coordinators_of_other_partitions_open() -> None:
    async def scenario() -> None:
        hosted = Hosted(3)
        hosted.lead(p0=(HERE, 1), p1=(HERE, 1), p2=(HERE, 1))
        before = list(hosted.coordinators)
        assert not hosted.lead(p0=(HERE, 1), p1=(ELSEWHERE, 2), p2=(HERE, 1))
        assert [each.phase for each in before] == [Phase.UNLOADED, Phase.CLOSED, Phase.UNLOADED]
        assert hosted.lead(p0=(HERE, 1), p1=(HERE, 3), p2=(HERE, 1))
        after = list(hosted.coordinators)
        assert {id(each) for each in (before[0], before[2])} < {id(each) for each in after}
        assert hosted.coordinators.at(1).epoch == 3
        hosted.image = SimpleNamespace(topics={})
        assert not hosted.coordinators.apply(cast(Any, hosted.image))
        assert [each.phase for each in after] == [Phase.CLOSED] * 3
        assert list(hosted.coordinators) == []
        assert hosted.lead(p0=(HERE, 1), p1=(HERE, 3), p2=(HERE, 1))
        assert len(list(hosted.coordinators)) == 3

    in_virtual_time(scenario)


# --- producer ids


def test_coordinator_of_a_transactional_id_is_returned_once_producer_ids_are_available() -> None:
    async def scenario() -> None:
        broker = Broker(HERE, ELSEWHERE)
        broker.transactions.start()
        wanted = asyncio.get_running_loop().create_task(broker.transactions.coordinator(broker.name_in(0)))
        await asyncio.sleep(1)
        assert not wanted.done()
        broker.producer_ids.allocated.set()
        assert await wanted is broker.transactions.coordinators.at(0)
        with pytest.raises(KafkaError) as refused:
            await broker.transactions.coordinator(broker.name_in(1))
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        await broker.transactions.close()

    in_virtual_time(scenario)
