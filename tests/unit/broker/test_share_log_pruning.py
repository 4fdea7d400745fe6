"""Tests that a share coordinator deletes records only below copied snapshots that are committed."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import cast

import pytest
from plain_coordinator import in_virtual_time
from test_coordinator_runtime import MemoryPartition

from penstock.broker.coordinators.runtime import Coordinator, Phase, committed
from penstock.broker.coordinators.share_states import prune
from penstock.broker.replicas.partition import Partition
from penstock.clock import ManualClock
from penstock.metadata.image import MetadataImage, PartitionImage, TopicImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.share import state_requests
from penstock.share.state_journal import ShareKey
from penstock.share.state_requests import Write
from penstock.share.state_shard import COLD_AFTER_RECORDS, ShareStateShard
from penstock.share.states import RecordState, StateBatch

TOPIC_ID = bytes(15) + b"\x07"
COLD, HOT = ShareKey("g", TOPIC_ID, 0), ShareKey("g", TOPIC_ID, 1)
COMMIT_SECONDS = 5.0
PART = PartitionImage(replicas=(1,), isr=(1,), leader=1)
TOPIC = TopicImage("t", TOPIC_ID, {0: PART, 1: PART})
IMAGE = MetadataImage(topics={"t": TOPIC}, topics_by_id={TOPIC_ID: TOPIC})


class PrunedPartition(MemoryPartition):
    """Notes the offsets before which records were deleted."""

    deleted: tuple[int, ...] = ()

    def delete_before(self, offset: int) -> None:
        self.deleted += (offset,)
        self.log_start_offset = offset


def coordinate(partition: PrunedPartition) -> Coordinator[ShareStateShard]:
    shard = ShareStateShard(10)
    shard.see(IMAGE)
    played = cast(Partition, partition)
    return Coordinator(shard, played, ManualClock(), commit_timeout_s=COMMIT_SECONDS)


async def with_a_cold_state(partition: PrunedPartition) -> Coordinator[ShareStateShard]:
    """Returns a coordinator that has committed all records: two old ones of COLD, and more than 1,000 of HOT.

    The next records are appended, but not committed.
    """
    coordinator = coordinate(partition)
    for key in (COLD, HOT):
        await committed(coordinator.run(partial(state_requests.initialize, key=key, state_epoch=1, start_offset=0)))
        await committed(coordinator.run(partial(state_requests.read, key=key, leader_epoch=0)))
    for offset in range(COLD_AFTER_RECORDS + 1):
        wanted = Write(1, 0, offset, 0, (StateBatch(offset, offset, RecordState.ACKNOWLEDGED, 1),))
        await committed(coordinator.run(partial(state_requests.write, key=HOT, wanted=wanted)))
    assert coordinator.machine.redundant_before() == 0
    partition.replicated = False
    return coordinator


def test_share_log_start_moves_only_after_the_copied_snapshots_are_committed() -> None:
    async def scenario() -> None:
        partition = PrunedPartition()
        coordinator = await with_a_cold_state(partition)
        before = partition.log_end_offset
        pruning = asyncio.ensure_future(prune(coordinator))
        await asyncio.sleep(COMMIT_SECONDS / 2)
        assert partition.log_end_offset == before + 1, "the snapshot of the cold state is appended"
        assert (partition.deleted, pruning.done()) == ((), False)
        partition.catch_up(before)
        await asyncio.sleep(COMMIT_SECONDS / 4)
        assert (partition.deleted, pruning.done()) == ((), False)
        partition.catch_up()
        await pruning
        [deleted] = partition.deleted
        assert COLD_AFTER_RECORDS - 20 < deleted <= before
        loaded = coordinate(partition)
        partition.batches = [each for each in partition.batches if int.from_bytes(each[:8], "big") >= deleted]
        assert loaded.active().remembered() == coordinator.machine.remembered()
        loaded.close()
        coordinator.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("lost", [None, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_share_log_is_not_pruned_if_the_copied_snapshots_are_never_committed(lost: ErrorCode | None) -> None:
    """The next leader may have the log without the copies, so it needs every record below them."""

    async def scenario() -> None:
        partition = PrunedPartition()
        coordinator = await with_a_cold_state(partition)
        pruning = asyncio.ensure_future(prune(coordinator))
        await asyncio.sleep(COMMIT_SECONDS / 2)
        if lost is not None:
            partition.fail(KafkaError(lost, "The copies are not committed."))
        for _ in range(3):
            await asyncio.sleep(COMMIT_SECONDS)
            assert pruning.done()
            if coordinator.phase is Phase.ACTIVE:
                pruning = asyncio.ensure_future(prune(coordinator))
                await asyncio.sleep(COMMIT_SECONDS)
        assert (partition.deleted, partition.log_start_offset) == ((), 0)
        assert coordinator.phase is (Phase.CLOSED if lost is ErrorCode.NOT_LEADER_OR_FOLLOWER else Phase.ACTIVE)
        coordinator.close()
        await asyncio.wait([pruning])
        assert partition.deleted == ()

    in_virtual_time(scenario)
