"""Tests each step of one coordinator decision: records, replies, effects, follow-up decisions, markers and timers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from plain_coordinator import (
    REFUSED,
    PlainMachine,
    PlainTurn,
    RefusingPartition,
    code_of,
    end_marker,
    future_of,
    in_virtual_time,
    log_of,
    plain,
    read,
    token,
    write,
)
from test_coordinator_runtime import MemoryPartition

from penstock.broker.coordinators.runtime import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Phase,
)
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.header import parse_header

# --- decisions


def test_all_records_of_a_decision_are_applied_with_their_offsets_and_producer_before_the_next_decision() -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        coordinator = plain(partition)
        first = future_of(coordinator.run(write(b"a", b"b")))
        second = future_of(coordinator.run(write(b"c", b"d", producer=(7, 2))))
        third = future_of(coordinator.run(write(b"e", b"f")))
        assert coordinator.machine.applied == [
            ((value, value), offset, producer)
            for offset, (value, producer) in enumerate(
                [(b"a", -1), (b"b", -1), (b"c", 7), (b"d", 7), (b"e", -1), (b"f", -1)]
            )
        ]
        assert [await first, await second, await third] == [b"b", b"d", b"f"]
        headers = [parse_header(batch) for batch in partition.batches]
        assert [(one.base_offset, one.records_count, one.producer_id, one.producer_epoch) for one in headers] == [
            (0, 2, -1, -1),
            (2, 2, 7, 2),
            (4, 2, -1, -1),
        ]
        loaded = plain(partition)
        loaded.load_now()
        assert sorted(loaded.machine.applied) == sorted(coordinator.machine.applied)

    in_virtual_time(scenario)


@pytest.mark.parametrize("how", ["run", "post"])
@pytest.mark.parametrize("writes", [True, False])
@pytest.mark.parametrize("uncommitted", [True, False])
def test_replies_effects_and_follow_up_decisions_wait_only_for_uncommitted_records(
    how: str, writes: bool, uncommitted: bool
) -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        performed: list[Any] = []
        coordinator = plain(partition, performed=performed)
        coordinator.active()
        if uncommitted:
            coordinator.run(write(b"earlier"))
        tokens = [token(), token()]
        called: list[ErrorCode] = []

        def decide(machine: PlainMachine, turn: PlainTurn) -> str:
            if writes:
                turn.records.append((b"k", b"v"))
            turn.replies += [(tokens[0], 1), (tokens[1], KafkaError(ErrorCode.INVALID_REQUEST, "no"))]
            turn.effects += ["first", "second"]
            turn.after += [lambda _, code: called.append(code)] * 2
            return "result"

        result: object = "result"
        if how == "run":
            result = coordinator.run(decide)
        else:
            coordinator.post(lambda machine, turn: (decide(machine, turn), None)[1])
        waits = writes or uncommitted
        await asyncio.sleep(1)
        if waits:
            assert not any(one.done() for one in tokens)
            assert (performed, called) == ([], [])
            if how == "run":
                assert not future_of(result).done()
            partition.catch_up()
            await asyncio.sleep(1)
        assert tokens[0].result() == 1
        assert code_of(tokens[1]) is ErrorCode.INVALID_REQUEST
        assert performed == ["first", "second"]
        assert called == [ErrorCode.NONE] * 2
        assert (future_of(result).result() if waits and how == "run" else result) == "result"
        assert coordinator.machine.values == [b"earlier"] * uncommitted + [b"v"] * writes
        coordinator.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("cause", ["too few replicas", "too large"])
@pytest.mark.parametrize("how", ["run", "post"])
def test_refused_decision_is_undone_in_reverse_and_all_its_callers_get_the_error(cause: str, how: str) -> None:
    async def scenario() -> None:
        partition = MemoryPartition(max_message_bytes=1000)
        performed: list[Any] = []
        coordinator = plain(partition, performed=performed)
        coordinator.active()
        if cause == "too few replicas":
            partition.isr = [1]
            expected = ErrorCode.COORDINATOR_NOT_AVAILABLE
        else:
            expected = ErrorCode.UNKNOWN_SERVER_ERROR
        undone: list[int] = []
        called: list[ErrorCode] = []
        tokens = [token(), token()]

        def decide(machine: PlainMachine, turn: PlainTurn) -> None:
            turn.records += [(b"small", b""), (b"k", b"x" * (1000 if cause == "too large" else 1))]
            turn.replies += [(one, "fine") for one in tokens]
            turn.effects.append("effect")
            turn.undo += [lambda: undone.append(1), lambda: undone.append(2)]
            turn.after.append(lambda _, code: called.append(code))

        if how == "run":
            assert code_of(future_of(coordinator.run(decide))) is expected
        else:
            coordinator.post(decide)
        await asyncio.sleep(1)
        assert [code_of(one) for one in tokens] == [expected] * 2
        assert undone == [2, 1]
        assert called == [expected]
        assert performed == []
        assert coordinator.machine.applied == []
        assert partition.batches == []
        assert coordinator.phase is Phase.ACTIVE

    in_virtual_time(scenario)


def test_decisions_without_records_are_accepted_while_too_few_replicas_are_in_sync() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        coordinator = plain(partition)
        written = future_of(coordinator.run(write(b"a")))
        await asyncio.sleep(0)
        partition.isr = [1]
        seen = future_of(coordinator.run(read))
        partition.catch_up()
        assert await written == b"a"
        assert await seen == [b"a"]

    in_virtual_time(scenario)


@pytest.mark.parametrize("sizes", [[100], [100, 100], [101, 99], [60, 40, 100], [60, 41, 59], [50, 50, 50, 50, 1]])
@pytest.mark.parametrize("one_decision", [True, False])
def test_a_batch_has_as_many_records_as_fit_into_a_message_and_a_larger_record_is_refused(
    sizes: list[int], one_decision: bool
) -> None:
    """A size of 100 is a record that exactly fills one message."""
    scale = 10
    limit = 100 * scale

    async def scenario() -> None:
        partition = MemoryPartition(max_message_bytes=limit + BATCH_OVERHEAD_BYTES)
        coordinator = plain(partition)
        values = [bytes([65 + i]) * (size * scale - RECORD_OVERHEAD_BYTES - 1) for i, size in enumerate(sizes)]

        def decide(*wanted: bytes) -> Any:
            def records(_: PlainMachine, turn: PlainTurn) -> None:
                turn.records += [(b"k", value) for value in wanted]

            return records

        decisions = [values] if one_decision else [[value] for value in values]
        results = [future_of(coordinator.run(decide(*each))) for each in decisions]
        await asyncio.sleep(1)
        fitting = [each for each in decisions if all(len(value) < limit - RECORD_OVERHEAD_BYTES for value in each)]
        assert [one.exception() is None for one in results] == [each in fitting for each in decisions]
        expected: list[list[bytes]] = []
        room = 0
        for value in (value for each in fitting for value in each):
            size = len(value) + 1 + RECORD_OVERHEAD_BYTES
            if size > room:
                expected.append([])
                room = limit
            expected[-1].append(value)
            room -= size
        assert [parse_header(batch).records_count for batch in partition.batches] == [len(one) for one in expected]
        assert coordinator.machine.values == [value for one in expected for value in one]

    in_virtual_time(scenario)


@pytest.mark.parametrize(("refused", "stored"), [(1, 0), (2, 1)])
def test_all_decisions_get_an_error_if_the_append_of_a_full_batch_is_refused(refused: int, stored: int) -> None:
    """The last decision's own records do not fit into the batch, so the batch is appended within that decision."""

    async def scenario() -> None:
        partition = RefusingPartition(max_message_bytes=1000)
        coordinator = plain(partition)
        coordinator.active()
        results = []
        for number in range(refused + 1):
            if number == refused:
                partition.refusals = 1
            results.append(future_of(coordinator.run(write(bytes([65 + number]) * 400))))
        await asyncio.sleep(1)
        assert len(partition.batches) == stored
        assert coordinator.phase is Phase.CLOSED
        assert [code_of(one) for one in results] == [ErrorCode.NOT_COORDINATOR] * (refused + 1)

    in_virtual_time(scenario)


def test_transactional_decision_gets_an_error_if_the_earlier_records_are_refused() -> None:
    async def scenario() -> None:
        partition = RefusingPartition()
        coordinator = plain(partition)
        first = future_of(coordinator.run(write(b"a")))
        partition.refusals = 1
        second = future_of(coordinator.run(write(b"b", producer=(7, 0))))
        await asyncio.sleep(1)
        assert [code_of(first), code_of(second)] == [ErrorCode.NOT_COORDINATOR] * 2
        assert partition.batches == []
        assert coordinator.machine.values == [b"a"]

    in_virtual_time(scenario)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_clients_of_a_coordinator_get_a_coordinator_error_for_each_error_of_its_log(
    code: ErrorCode, expected: ErrorCode
) -> None:
    async def scenario() -> None:
        coordinator = plain(MemoryPartition(refuse=KafkaError(code, "no")))
        coordinator.active()
        written = future_of(coordinator.run(write(b"a")))
        await asyncio.sleep(1)
        assert code_of(written) is expected

    in_virtual_time(scenario)


# --- markers


def test_marker_is_written_after_the_earlier_decisions_and_readers_wait_until_it_is_committed() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        coordinator = plain(partition)
        written = future_of(coordinator.run(write(b"a", b"b")))
        coordinator.write_marker(end_marker(), 9, True, 2)
        assert log_of(partition) == [(2, False), (1, True)]
        assert coordinator.machine.markers == [(9, True)]
        seen = future_of(coordinator.run(read))
        partition.catch_up(2)
        await asyncio.sleep(1)
        assert written.done()
        assert not seen.done()
        partition.catch_up()
        assert await seen == [b"a", b"b"]
        coordinator.close()

    in_virtual_time(scenario)


def test_readers_wait_for_a_marker_that_is_the_only_uncommitted_record() -> None:
    async def scenario() -> None:
        partition = MemoryPartition(replicated=False)
        coordinator = plain(partition)
        coordinator.write_marker(end_marker(), 9, True, 2)
        seen = future_of(coordinator.run(read))
        await asyncio.sleep(1)
        assert not seen.done()
        partition.catch_up()
        assert await seen == []
        coordinator.close()

    in_virtual_time(scenario)


def test_coordinator_has_nothing_to_wait_for_once_its_marker_is_committed() -> None:
    async def scenario() -> None:
        partition = MemoryPartition()
        coordinator = plain(partition)
        coordinator.write_marker(end_marker(), 9, False, 2)
        assert coordinator.machine.loads == 1
        assert coordinator.machine.markers == [(9, False)]
        assert coordinator.run(read) == []

    in_virtual_time(scenario)


@pytest.mark.parametrize("cause", ["append", "epoch"])
def test_no_marker_is_written_if_the_earlier_decisions_are_refused(cause: str) -> None:
    async def scenario() -> None:
        partition = RefusingPartition()
        coordinator = plain(partition)
        written = future_of(coordinator.run(write(b"a")))
        if cause == "append":
            partition.refusals = 1
        else:
            partition.leader_epoch += 1
        with pytest.raises(KafkaError) as refused:
            coordinator.write_marker(end_marker(), 9, True, 2)
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        assert code_of(written) is ErrorCode.NOT_COORDINATOR
        assert partition.batches == []
        assert coordinator.machine.markers == []

    in_virtual_time(scenario)


def test_refused_marker_changes_no_state_and_the_coordinator_stays_active() -> None:
    async def scenario() -> None:
        partition = RefusingPartition()
        coordinator = plain(partition)
        coordinator.active()
        partition.refusals = 1
        with pytest.raises(KafkaError) as refused:
            coordinator.write_marker(end_marker(), 9, True, 2)
        assert refused.value is REFUSED
        assert coordinator.machine.markers == []
        assert coordinator.run(read) == []
        assert coordinator.phase is Phase.ACTIVE

    in_virtual_time(scenario)
