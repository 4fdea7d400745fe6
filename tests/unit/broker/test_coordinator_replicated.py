"""Tests a coordinator whose partition has other replicas, which may be slow, too few, or follow another leader."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from test_coordinator_runtime import MemoryPartition, commit, coordinate, join, offset_of, passes, run

from penstock.broker.coordinators.runtime import Coordinator, Phase
from penstock.broker.replicas.partition import Partition
from penstock.clock import ManualClock
from penstock.groups.shard import GroupShard
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_08_offset_commit import OffsetCommitResponse
from penstock.protocol.messages.api_11_join_group import JoinGroupResponse
from penstock.transactions.config import TransactionConfig
from penstock.transactions.journal import JournalRecord
from penstock.transactions.shard import TransactionShard
from penstock.transactions.states import State
from penstock.transactions.transaction import Transaction
from penstock.transactions.turn import Markers

NOT_LEADER = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The leader is node 2.")


def written(coordinator: Coordinator[GroupShard], offset: int) -> "asyncio.Future[OffsetCommitResponse]":
    result = coordinator.run(commit(offset))
    assert isinstance(result, asyncio.Future)
    return result


async def refusal(future: "asyncio.Future[OffsetCommitResponse]") -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        await future
    return refused.value.code


def test_uncommitted_coordinator_writes_are_answered_in_order_as_the_high_watermark_passes_them() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        coordinator = coordinate(partition)
        answers = []
        for offset in range(3):
            answers.append(written(coordinator, offset))
            await passes()
        assert partition.log_end_offset == 3
        partition.catch_up(2)
        await passes()
        assert [answer.done() for answer in answers] == [True, True, False]
        partition.catch_up()
        await passes()
        assert answers[2].done()
        coordinator.close()

    run(scenario)


@pytest.mark.parametrize("step", ["decided", "appended", "half committed"])
def test_coordinator_that_loses_leadership_answers_all_waiting_requests(step: str) -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        coordinator = coordinate(partition)
        first = written(coordinator, 1)
        if step != "decided":
            await passes()
        second = written(coordinator, 2)
        if step == "half committed":
            await passes()
            partition.catch_up(1)
            await passes()
            assert first.done()
        partition.leader_epoch += 1
        partition.fail(NOT_LEADER)
        await passes(5)
        coordinator.close()
        if step != "half committed":
            assert await refusal(first) is ErrorCode.NOT_COORDINATOR
        assert await refusal(second) is ErrorCode.NOT_COORDINATOR
        with pytest.raises(KafkaError) as gone:
            coordinator.run(commit(3))
        assert gone.value.code is ErrorCode.NOT_COORDINATOR

    run(scenario)


def test_a_coordinator_writes_no_record_after_the_leader_epoch_changed() -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        zombie = coordinate(partition)
        await written(zombie, 1)
        partition.leader_epoch += 1
        late = written(zombie, 2)
        assert await refusal(late) is ErrorCode.NOT_COORDINATOR
        assert len(partition.batches) == 1
        assert zombie.phase is Phase.CLOSED
        following = coordinate(partition)
        following.load_now()
        assert offset_of(following) == 1
        await written(following, 3)

    run(scenario)


def test_a_coordinator_writes_no_marker_after_the_leader_epoch_changed() -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        zombie = coordinate(partition)
        await written(zombie, 1)
        partition.leader_epoch += 1
        with pytest.raises(KafkaError) as refused:
            zombie.write_marker(b"", 9, True, 2)
        assert refused.value.code is ErrorCode.FENCED_LEADER_EPOCH
        assert len(partition.batches) == 1

    run(scenario)


def test_coordinator_returns_loaded_state_only_once_it_is_committed() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        before = coordinate(partition)
        unanswered = written(before, 7)
        await passes()
        before.close()
        assert await refusal(unanswered) is ErrorCode.NOT_COORDINATOR
        after = coordinate(partition)
        seen = after.run(lambda shard, turn: offset_of(after))
        assert isinstance(seen, asyncio.Future)
        await passes()
        assert not seen.done()
        partition.catch_up()
        assert await seen == 7

    run(scenario)


def test_markers_of_a_loaded_transaction_are_sent_after_its_decision_is_committed() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        performed: list[tuple[object, object]] = []

        def coordinate_transactions() -> Coordinator[TransactionShard]:
            shard = TransactionShard(TransactionConfig(), lambda: 1)
            perform = cast("Callable[[object, object], None]", lambda *each: performed.append(each))
            return Coordinator(shard, cast(Partition, partition), ManualClock(), perform=perform)

        first = coordinate_transactions()
        txn = Transaction("tx", 5, 1, 60_000, State.PREPARE_COMMIT, frozenset({("t", 0)}), 1, 1)
        first.run(lambda shard, turn: turn.records.append(JournalRecord("tx", txn)))
        await passes()
        first.close()
        second = coordinate_transactions()
        second.active()
        await passes()
        assert performed == []
        partition.catch_up()
        await passes()
        [(performer, markers)] = performed
        assert performer is second
        assert isinstance(markers, Markers)
        assert markers.partitions == {("t", 0)}
        second.close()

    run(scenario)


def test_markers_are_sent_after_a_late_commit_even_if_the_client_already_got_a_timeout_error() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        performed: list[object] = []
        coordinator = Coordinator(
            TransactionShard(TransactionConfig(), lambda: 1),
            cast(Partition, partition),
            ManualClock(),
            perform=lambda _, markers: performed.append(markers),
            commit_timeout_s=0.01,
        )
        txn = Transaction("tx", 5, 1, 60_000, State.PREPARE_COMMIT, frozenset({("t", 0)}), 1, 1)
        answer = coordinator.run(lambda shard, turn: turn.write(txn))
        assert isinstance(answer, asyncio.Future)
        with pytest.raises(KafkaError) as refused:
            await answer
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert performed == []
        partition.catch_up()
        await passes()
        assert len(performed) == 1
        coordinator.close()

    run(scenario)


def test_coordinator_write_is_refused_and_changes_no_state_if_too_few_replicas_are_in_sync() -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        coordinator = coordinate(partition)
        await written(coordinator, 1)
        partition.isr = [1]
        assert await refusal(written(coordinator, 2)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert coordinator.run(lambda shard, turn: offset_of(coordinator)) == 1
        partition.isr = [1, 2]
        await written(coordinator, 3)
        assert offset_of(coordinator) == 3

    run(scenario)


def test_coordinator_keeps_a_write_and_the_client_gets_a_retriable_error_if_the_isr_shrinks_after_the_append() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        coordinator = coordinate(partition)
        answer = written(coordinator, 1)
        joining: asyncio.Future[JoinGroupResponse] = asyncio.get_running_loop().create_future()
        coordinator.post(join(joining))
        await passes()
        partition.fail(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "1 of 2."))
        assert await refusal(answer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        with pytest.raises(KafkaError):
            await joining
        assert coordinator.phase is Phase.ACTIVE
        partition.failing = None
        partition.catch_up()
        seen = coordinator.run(lambda shard, turn: offset_of(coordinator))
        assert (await seen if isinstance(seen, asyncio.Future) else seen) == 1
        coordinator.close()

    run(scenario)


def test_client_gets_a_retriable_error_if_a_coordinator_write_is_not_replicated_in_time() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        shard = coordinate(partition).machine
        coordinator = Coordinator(shard, cast(Partition, partition), ManualClock(), commit_timeout_s=0.01)
        answer = written(coordinator, 1)
        assert await refusal(answer) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        later = written(coordinator, 2)
        assert coordinator.phase is Phase.ACTIVE
        await passes()
        partition.catch_up()
        await later
        assert offset_of(coordinator) == 2
        coordinator.close()

    run(scenario)
