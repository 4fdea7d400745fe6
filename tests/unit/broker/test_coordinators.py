"""Tests which partitions of an internal topic have a coordinator on this broker after a change of the image."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_coordinator_runtime import MemoryPartition, commit

from penstock.broker.coordinators.partition_coordinators import Coordinators
from penstock.broker.coordinators.runtime import Phase
from penstock.clock import ManualClock
from penstock.groups.config import GroupConfig
from penstock.groups.shard import GroupShard
from penstock.protocol.errors import ErrorCode, KafkaError

HERE, ELSEWHERE = 1, 2


class Hosted:
    """Holds one topic `o`, whose partitions may have any leader."""

    def __init__(self, count: int) -> None:
        self.partitions = {index: MemoryPartition() for index in range(count)}
        self.image = SimpleNamespace(topics={})
        self.coordinators: Coordinators[GroupShard] = Coordinators(
            "o",
            node_id=HERE,
            partitions=cast(Any, self),
            metadata=cast(Any, self),
            clock=ManualClock(),
            make=lambda: GroupShard(GroupConfig(), Random(1)),
        )

    def get(self, topic: str, index: int) -> MemoryPartition:
        return self.partitions[index]

    def lead(self, **leaders: tuple[int, int]) -> bool:
        """Sets the leader and leader epoch of partitions, given as p0=(leader, epoch), p1=…."""
        parts = {}
        for name, (leader, epoch) in leaders.items():
            self.partitions[int(name[1:])].leader_epoch = epoch
            parts[int(name[1:])] = SimpleNamespace(leader=leader, leader_epoch=epoch)
        self.image = SimpleNamespace(topics={"o": SimpleNamespace(partitions=parts)})
        return self.coordinators.apply(cast(Any, self.image))


def test_broker_has_coordinators_only_for_partitions_that_it_leads() -> None:
    async def scenario() -> None:
        hosted = Hosted(2)
        assert hosted.lead(p0=(HERE, 1), p1=(ELSEWHERE, 1))
        hosted.coordinators.at(0).active()
        with pytest.raises(KafkaError) as elsewhere:
            hosted.coordinators.at(1)
        assert elsewhere.value.code is ErrorCode.NOT_COORDINATOR
        assert not hosted.coordinators.apply(cast(Any, hosted.image))

    asyncio.run(scenario())


def test_requests_that_wait_at_a_coordinator_get_not_coordinator_when_its_partition_moves() -> None:
    async def scenario() -> None:
        hosted = Hosted(1)
        hosted.partitions[0].replicated = False
        hosted.lead(p0=(HERE, 1))
        waiting = hosted.coordinators.at(0).run(commit(5))
        assert isinstance(waiting, asyncio.Future)
        await asyncio.sleep(0)
        hosted.lead(p0=(ELSEWHERE, 2))
        with pytest.raises(KafkaError) as gone:
            await waiting
        assert gone.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(scenario())


@pytest.mark.parametrize("seen_elsewhere", [True, False])
def test_a_new_leader_epoch_gets_a_new_coordinator_that_loads_the_log(seen_elsewhere: bool) -> None:
    async def scenario() -> None:
        hosted = Hosted(1)
        hosted.lead(p0=(HERE, 1))
        before = hosted.coordinators.at(0)
        written = before.run(commit(5))
        assert isinstance(written, asyncio.Future)
        await written
        if seen_elsewhere:
            hosted.lead(p0=(ELSEWHERE, 2))
        hosted.partitions[0].batches.clear()  # the leader in between lacked the record, and this node truncated it
        hosted.partitions[0].log_end_offset = hosted.partitions[0].high_watermark = 0
        assert hosted.lead(p0=(HERE, 3))
        after = hosted.coordinators.at(0)
        assert before.phase is Phase.CLOSED
        assert after.active().offsets.committed == {}
        assert after.epoch == 3

    asyncio.run(scenario())


def test_recreated_internal_topic_gets_new_coordinators_even_in_the_same_leader_epoch() -> None:
    async def scenario() -> None:
        hosted = Hosted(1)
        hosted.lead(p0=(HERE, 0))
        before = hosted.coordinators.at(0)
        hosted.partitions[0] = MemoryPartition()
        assert hosted.lead(p0=(HERE, 0))
        assert before.phase is Phase.CLOSED
        assert hosted.coordinators.at(0).partition is cast(Any, hosted.partitions[0])

    asyncio.run(scenario())


def test_iterating_over_coordinators_skips_coordinators_that_are_removed_meanwhile() -> None:
    async def scenario() -> None:
        hosted = Hosted(3)
        hosted.lead(p0=(HERE, 1), p1=(HERE, 1), p2=(HERE, 1))
        seen: list[Any] = []
        for coordinator in hosted.coordinators:
            seen.append(coordinator.partition)
            hosted.lead(p0=(HERE, 1), p1=(ELSEWHERE, 2), p2=(HERE, 1))
        assert seen == [hosted.partitions[0], hosted.partitions[2]]

    asyncio.run(scenario())


def test_close_closes_all_coordinators_and_forgets_them() -> None:
    async def scenario() -> None:
        hosted = Hosted(3)
        hosted.lead(p0=(HERE, 1), p1=(HERE, 1), p2=(HERE, 1))
        opened = list(hosted.coordinators)
        assert len(opened) == 3
        hosted.coordinators.close()
        assert [each.phase for each in opened] == [Phase.CLOSED] * 3
        assert list(hosted.coordinators) == []
        with pytest.raises(KafkaError) as gone:
            hosted.coordinators.at(0)
        assert gone.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(scenario())


def test_load_loads_all_coordinators_even_if_one_log_cannot_be_loaded() -> None:
    async def scenario() -> None:
        hosted = Hosted(3)
        hosted.lead(p0=(HERE, 1), p1=(HERE, 1), p2=(HERE, 1))
        hosted.partitions[0].leader_epoch = 2
        await hosted.coordinators.load()
        phases = [each.phase for each in hosted.coordinators._by_partition.values()]
        assert phases == [Phase.CLOSED, Phase.ACTIVE, Phase.ACTIVE]

    asyncio.run(scenario())


def test_active_coordinator_stays_in_use_and_one_that_its_log_stopped_is_replaced() -> None:
    async def scenario() -> None:
        hosted = Hosted(1)
        hosted.lead(p0=(HERE, 1))
        first = hosted.coordinators.at(0)
        first.active()
        assert hosted.coordinators.at(0) is first
        first.close()
        second = hosted.coordinators.at(0)
        assert second is not first
        assert hosted.coordinators.of("any group") is second

    asyncio.run(scenario())


def test_coordinator_of_a_key_is_unknown_while_its_topic_is_unknown() -> None:
    async def scenario() -> None:
        with pytest.raises(KafkaError) as unknown:
            Hosted(1).coordinators.of("any group")
        assert unknown.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(scenario())
