"""Tests how a share coordinator prunes its log, with a partition whose deletion the test completes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.coordinators.runtime import Phase
from penstock.broker.coordinators.share_states import ShareCoordinator, prune
from penstock.protocol.errors import ErrorCode, KafkaError


class Deleting:
    """Imitates a partition with 100 records whose followers have deleted no records yet."""

    def __init__(self) -> None:
        self.deletion: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.before = 0
        self.asked = asyncio.Event()

    def leader_log(self, epoch: int) -> Any:
        return SimpleNamespace(high_watermark=100, log_start_offset=0)

    def delete_before(self, offset: int) -> asyncio.Future[None]:
        self.before = offset
        self.asked.set()
        return self.deletion


async def start(partition: Deleting) -> asyncio.Task[None]:
    coordinator = SimpleNamespace(
        phase=Phase.ACTIVE,
        epoch=1,
        partition=partition,
        machine=SimpleNamespace(redundant_before=lambda: 60),
        run=lambda decide: None,
    )
    task = asyncio.ensure_future(prune(cast(ShareCoordinator, coordinator)))
    await partition.asked.wait()
    return task


def test_pruning_of_the_share_coordinator_log_ends_without_an_error_if_the_deletion_fails() -> None:
    async def scenario() -> None:
        partition = Deleting()
        task = await start(partition)
        assert partition.before == 60
        partition.deletion.set_exception(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The leader is node 3."))
        await task
        assert not partition.deletion._log_traceback

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("needed", "high_watermark", "start", "deleted"),
    [(60, 100, 0, 60), (100, 60, 0, 60), (60, 60, 59, 60), (60, 100, 60, None), (60, 100, 61, None)],
)
@pytest.mark.parametrize("phase", [Phase.ACTIVE, Phase.LOADING])
def test_share_coordinator_deletes_committed_records_before_the_oldest_needed_snapshot(
    needed: int, high_watermark: int, start: int, deleted: int | None, phase: Phase
) -> None:
    async def scenario() -> None:
        steps: list[object] = []
        log = SimpleNamespace(high_watermark=high_watermark, log_start_offset=start)
        shard = SimpleNamespace(redundant_before=lambda: needed, copy_cold=lambda turn: steps.append("copied"))
        partition = SimpleNamespace(leader_log=lambda epoch: log, delete_before=lambda offset: steps.append(offset))
        coordinator = SimpleNamespace(
            phase=phase, epoch=1, partition=partition, machine=shard, run=lambda decide: decide(shard, None)
        )
        await prune(cast(ShareCoordinator, coordinator))
        expected: list[object] = [] if phase is not Phase.ACTIVE else ["copied"]
        if expected and deleted is not None:
            expected.append(deleted)
        assert steps == expected

    asyncio.run(scenario())
