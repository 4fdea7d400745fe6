"""Runs a coordinator with a plain state machine in virtual time.

Each record is a key and a value; a decision is what the test says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar, cast

from test_coordinator_runtime import MemoryPartition

from penstock.broker.coordinators.runtime import Coordinator
from penstock.broker.replicas.partition import Partition
from penstock.clock import ManualClock
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.control import EndTxn, build_end_txn
from penstock.records.header import parse_header
from penstock.sim.engine.loop import Timeline

T = TypeVar("T")
Pair = tuple[bytes, bytes]


@dataclass
class PlainTurn:
    now_ms: int
    wall_ms: int
    records: list[Any] = field(default_factory=list)
    replies: list[tuple[Any, Any]] = field(default_factory=list)
    after: list[Any] = field(default_factory=list)
    producer: tuple[int, int] | None = None
    undo: list[Callable[[], None]] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)


class PlainMachine:
    """Notes all calls: applied records with offset and producer id, markers, loads, and the times of its timers."""

    incremental = False

    def __init__(self) -> None:
        self.applied: list[tuple[Pair, int, int]] = []
        self.markers: list[tuple[int, bool]] = []
        self.loads = 0
        self.timers: list[int] = []
        self.deadline: int | None = None
        self.effects_of_load: list[Any] = []
        self.abandoned: list[tuple[Any, Any]] = []

    def turn(self, now_ms: int, wall_ms: int) -> PlainTurn:
        return PlainTurn(now_ms, wall_ms)

    def encode(self, record: Pair) -> tuple[bytes, bytes | None]:
        return record

    def decode(self, key: bytes | None, value: bytes | None) -> Any:
        return (bytes(key or b""), bytes(value or b""))

    def apply(self, record: Pair, log_offset: int, producer_id: int) -> None:
        self.applied.append((record, log_offset, producer_id))

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        self.markers.append((producer_id, commit))

    def loaded(self, turn: PlainTurn) -> None:
        self.loads += 1
        turn.effects += self.effects_of_load

    def abandon(self, turn: PlainTurn) -> None:
        turn.replies += self.abandoned

    def on_timers(self, turn: PlainTurn) -> None:
        self.timers.append(turn.now_ms)
        self.deadline = None

    def next_deadline(self) -> int | None:
        return self.deadline

    @property
    def values(self) -> list[bytes]:
        return [value for (_, value), _, _ in self.applied]


def in_virtual_time(scenario: Callable[[], Coroutine[Any, Any, T]], *, until: float = 3600.0) -> T:
    timeline = Timeline(Random(1))
    try:
        result = timeline.run(scenario(), timeline.process("main"), until=until)
    finally:
        timeline.end()
    assert timeline.failures == []
    return result


def plain(
    partition: MemoryPartition,
    machine: PlainMachine | None = None,
    *,
    performed: list[Any] | None = None,
    commit_timeout_s: float = 5.0,
) -> Coordinator[PlainMachine]:
    return Coordinator(
        machine or PlainMachine(),
        cast(Partition, partition),
        ManualClock(),
        perform=None if performed is None else lambda _, effect: performed.append(effect),
        commit_timeout_s=commit_timeout_s,
    )


def write(*values: bytes, producer: tuple[int, int] | None = None) -> Callable[[PlainMachine, PlainTurn], bytes]:
    """Returns a decision that writes one record for each value, with the value as its key; its result is the last."""

    def decide(_: PlainMachine, turn: PlainTurn) -> bytes:
        turn.records += [(value, value) for value in values]
        turn.producer = producer
        return values[-1]

    return decide


def read(machine: PlainMachine, _: PlainTurn) -> list[bytes]:
    return machine.values


REFUSED = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "The disk is full.")


def future_of(result: object) -> asyncio.Future[Any]:
    assert isinstance(result, asyncio.Future)
    return result


def code_of(future: asyncio.Future[Any]) -> ErrorCode:
    error = future.exception()
    assert isinstance(error, KafkaError)
    return error.code


def token() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


class RefusingPartition(MemoryPartition):
    """Refuses only the next `refusals` appends."""

    refusals = 0

    def append(self, records: bytes, **options: object) -> None:
        if self.refusals:
            self.refusals -= 1
            raise REFUSED
        super().append(records, **options)


def end_marker(producer_id: int = 9) -> bytes:
    return bytes(build_end_txn(EndTxn(True, 0), producer_id=producer_id, producer_epoch=0, timestamp=0))


def log_of(partition: MemoryPartition) -> list[tuple[int, bool]]:
    """Returns the record count of each batch, and whether it is a marker."""
    return [(parse_header(batch).records_count, parse_header(batch).is_control) for batch in partition.batches]
