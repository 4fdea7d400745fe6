"""Tests the runtime of coordinators with a log whose high watermark the test moves."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from penstock.broker.coordinators.loading import INLINE_LOAD_BYTES
from penstock.broker.coordinators.runtime import Coordinator, Phase
from penstock.broker.replicas.partition import Partition
from penstock.clock import ManualClock
from penstock.groups import membership, offset_requests
from penstock.groups.config import GroupConfig
from penstock.groups.shard import GroupShard
from penstock.groups.turn import Caller, Turn
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from penstock.protocol.messages.api_14_sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn
from penstock.records.header import parse_header


@dataclass
class Slice:
    data: bytes

    def read_now(self) -> bytes:
        return self.data

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return self.data


@dataclass
class MemoryPartition:
    """Replaces a partition: keeps batches in memory, and with `replicated` commits an append at once."""

    replicated: bool = True
    refuse: KafkaError | None = None
    leader_epoch: int = 3
    batches: list[bytes] = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0
    high_watermark: int = 0
    isr: list[int] = field(default_factory=lambda: [1, 2])
    max_message_bytes: int = 1 << 20
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    failing: KafkaError | None = None

    @property
    def log(self) -> "MemoryPartition":
        return self

    @property
    def config(self) -> SimpleNamespace:
        return SimpleNamespace(max_message_bytes=self.max_message_bytes, min_insync_replicas=2)

    @property
    def image(self) -> SimpleNamespace:
        return SimpleNamespace(isr=[1, 2], replicas=[1, 2])  # as committed; `isr` is what the leader knows of it

    @property
    def size(self) -> int:
        return sum(map(len, self.batches))

    def leader_log(self, epoch: int = -1) -> "MemoryPartition":
        if epoch not in (-1, self.leader_epoch):
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"The leader epoch is {self.leader_epoch}.")
        return self

    def append(self, records: bytes, **_: object) -> None:
        if self.refuse is not None:
            raise self.refuse
        count = parse_header(records).last_offset_delta + 1
        self.batches.append(self.log_end_offset.to_bytes(8, "big") + records[8:])
        self.log_end_offset += count
        if self.replicated:
            self.high_watermark = self.log_end_offset

    def catch_up(self, offset: int | None = None) -> None:
        self.high_watermark = self.log_end_offset if offset is None else offset
        self._tell()

    def fail(self, error: KafkaError) -> None:
        self.failing = error
        self._tell()

    def _tell(self) -> None:
        moved, self.moved = self.moved, asyncio.Event()
        moved.set()

    async def committed(self, offset: int) -> None:
        while self.high_watermark < offset:
            if self.failing is not None:
                raise self.failing
            await self.moved.wait()

    def read(self, offset: int, max_bytes: int, *, upper_bound: int) -> "Slice":
        batches = [batch for batch in self.batches if int.from_bytes(batch[:8], "big") >= offset]
        return Slice(b"".join(batches)[: max(max_bytes, len(batches[0]))])


def coordinate(partition: MemoryPartition, config: GroupConfig | None = None) -> Coordinator[GroupShard]:
    shard = GroupShard(config or GroupConfig(initial_rebalance_delay_ms=0), Random(1))
    return Coordinator(shard, cast(Partition, partition), ManualClock())


def commit(offset: int, group: str = "g", metadata: str = "") -> Callable[[GroupShard, Turn], OffsetCommitResponse]:
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=offset, committed_metadata=metadata
                    )
                ],
            )
        ],
    )
    return lambda shard, turn: offset_requests.commit(shard, turn, request, 9)


def join(token: object) -> Callable[[GroupShard, Turn], None]:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=6000,
        rebalance_timeout_ms=6000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    return lambda shard, turn: membership.join(shard, turn, request, Caller("c", "/h", 3), token)


def sync(member_id: str, assignment: bytes, token: object) -> Callable[[GroupShard, Turn], None]:
    request = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=member_id,
        assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)],
    )
    return lambda shard, turn: membership.sync(shard, turn, request, token)


def offset_of(coordinator: Coordinator[GroupShard], group: str = "g") -> int:
    return coordinator.machine.offsets.of_group(group)["t", 0].offset


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 120)

    asyncio.run(bounded())


async def passes(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_all_coordinator_writes_of_one_event_loop_iteration_are_appended_as_one_batch() -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        coordinator = coordinate(partition)
        results = [coordinator.run(commit(offset)) for offset in range(100)]
        assert partition.batches == []
        for result in results:
            assert isinstance(result, asyncio.Future)
            await result
        assert [parse_header(batch).records_count for batch in partition.batches] == [100]
        assert offset_of(coordinator) == 99

    run(scenario)


def test_responses_and_reads_of_uncommitted_state_wait_for_the_high_watermark() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        coordinator = coordinate(partition)
        written = coordinator.run(commit(5))
        seen = coordinator.run(lambda shard, turn: offset_of(coordinator))
        await passes()
        assert isinstance(written, asyncio.Future)
        assert isinstance(seen, asyncio.Future)
        assert not written.done()
        assert not seen.done()
        partition.catch_up()
        await passes()
        assert written.result().topics[0].partitions[0].error_code == ErrorCode.NONE
        assert seen.result() == 5
        assert coordinator.run(lambda shard, turn: offset_of(coordinator)) == 5

    run(scenario)


def test_each_uncommitted_coordinator_write_is_answered_within_its_timeout() -> None:
    """Sends the second write after the first write was answered, while the high watermark still does not move."""

    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        shard = GroupShard(GroupConfig(), Random(1))
        coordinator = Coordinator(shard, cast(Partition, partition), ManualClock(), commit_timeout_s=0.01)
        for offset in (1, 2):
            waiting = coordinator.run(commit(offset))
            assert isinstance(waiting, asyncio.Future)
            with pytest.raises(KafkaError) as refused:
                await waiting
            assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        coordinator.close()

    run(scenario)


def test_replaying_the_log_restores_coordinator_state_and_member_sessions() -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        first = coordinate(partition)
        loop = asyncio.get_running_loop()
        joining: asyncio.Future[JoinGroupResponse] = loop.create_future()
        first.post(join(joining))
        member_id = (await joining).member_id
        syncing: asyncio.Future[SyncGroupResponse] = loop.create_future()
        first.post(sync(member_id, b"A", syncing))
        assert (await syncing).assignment == b"A"
        second = coordinate(partition)
        assert second.phase is Phase.UNLOADED
        shard = second.active()
        assert shard.remembered() == first.machine.remembered()
        assert membership.heartbeat(shard, "g", 1, member_id, None, second.now_ms) is ErrorCode.NONE
        first.close()
        second.close()

    run(scenario)


def test_a_marker_commits_or_drops_the_pending_offsets_of_its_transaction() -> None:
    async def scenario() -> None:
        for committed, expected in ((True, 7), (False, 1)):
            partition = MemoryPartition()
            coordinator = coordinate(partition)
            coordinator.run(commit(1))

            def in_transaction(shard: GroupShard, turn: Turn) -> OffsetCommitResponse:
                turn.producer = (9, 0)
                return commit(7)(shard, turn)

            result = coordinator.run(in_transaction)
            assert isinstance(result, asyncio.Future)
            await result
            assert [parse_header(batch).is_transactional for batch in partition.batches] == [False, True]
            partition.append(build_end_txn(EndTxn(committed, 0), producer_id=9, producer_epoch=0, timestamp=0))
            loaded = coordinate(partition)
            loaded.load_now()
            assert offset_of(loaded) == expected

    run(scenario)


def test_failed_append_fails_all_its_requests_and_coordinator_reloads_its_state() -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        coordinator = coordinate(partition)
        loop = asyncio.get_running_loop()
        joining: asyncio.Future[JoinGroupResponse] = loop.create_future()
        coordinator.post(join(joining))
        await joining
        waiting: asyncio.Future[JoinGroupResponse] = loop.create_future()
        coordinator.post(join(waiting))
        partition.refuse = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk is full.")
        written = coordinator.run(commit(5, group="other"))
        assert isinstance(written, asyncio.Future)
        with pytest.raises(KafkaError) as refused:
            await written
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        assert (await waiting).error_code == ErrorCode.NOT_COORDINATOR
        with pytest.raises(KafkaError) as gone:
            coordinator.run(commit(6))
        assert gone.value.code is ErrorCode.NOT_COORDINATOR

    run(scenario)


def test_coordinator_that_loses_its_partition_fails_uncommitted_requests() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        coordinator = coordinate(partition)
        written = coordinator.run(commit(5))
        joining: asyncio.Future[JoinGroupResponse] = asyncio.get_running_loop().create_future()
        coordinator.post(join(joining))
        await passes()
        coordinator.close()
        assert isinstance(written, asyncio.Future)
        for future in (written, joining):
            with pytest.raises(KafkaError) as error:
                await future
            assert error.value.code is ErrorCode.NOT_COORDINATOR

    run(scenario)


def test_coordinator_splits_a_write_larger_than_a_batch_and_refuses_a_record_larger_than_a_batch() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(max_message_bytes=1000)
        coordinator = coordinate(partition)
        results = [coordinator.run(commit(offset, metadata="x" * 300)) for offset in range(5)]
        for result in results:
            assert isinstance(result, asyncio.Future)
            await result
        assert len(partition.batches) == 3
        assert all(len(batch) <= 1000 for batch in partition.batches)
        before = coordinator.machine.remembered()
        too_large = coordinator.run(commit(9, metadata="x" * 1000))
        assert isinstance(too_large, asyncio.Future)
        with pytest.raises(KafkaError):
            await too_large
        assert coordinator.machine.remembered() == before
        assert coordinator.phase is Phase.ACTIVE

    run(scenario)


def test_coordinator_does_not_serve_a_partition_whose_log_cannot_be_read_completely() -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        key = b"\x00\x01" + b"\x00\x01g" + b"\x00\x09t"  # the length of the topic name is wrong
        partition.append(build_batch([(0, key, b"\x00\x04", ())]))
        coordinator = coordinate(partition)
        for _ in range(2):
            with pytest.raises(KafkaError) as refused:
                coordinator.active()
            assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert coordinator.failure is not None

    run(scenario)


def test_coordinator_answers_other_requests_while_it_loads_a_large_log() -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        writer = coordinate(partition)
        results = [writer.run(commit(offset, f"g{offset}", "x" * 4000)) for offset in range(100)]
        for result in results:
            assert isinstance(result, asyncio.Future)
            await result
        assert partition.size > INLINE_LOAD_BYTES
        loading = coordinate(partition)
        with pytest.raises(KafkaError) as refused:
            loading.active()
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        while loading.phase is not Phase.ACTIVE:
            await passes()
        assert loading.active().remembered() == writer.machine.remembered()

    run(scenario)


def test_coordinator_timer_fires_even_if_no_request_arrives() -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        config = GroupConfig(initial_rebalance_delay_ms=5)
        coordinator = coordinate(partition, config)
        joining: asyncio.Future[JoinGroupResponse] = asyncio.get_running_loop().create_future()
        coordinator.post(join(joining))
        assert not joining.done()
        assert (await joining).generation_id == 1
        coordinator.close()

    run(scenario)
