"""Tests how a node writes its events to the event topic, and how it reads them. The test plays the topic's leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.broker.controlplane import event_topic
from penstock.broker.controlplane.event_topic import BATCH, MAX_WAITING, NO_EVENT, SLOTS, EventTopic, last_slot
from penstock.broker.events.history import EventHistory
from penstock.broker.events.kinds import MajorityLost
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_00_produce import ProduceRequest
from penstock.protocol.messages.api_01_fetch import FetchRequest, PartitionData
from penstock.protocol.messages.api_02_list_offsets import ListOffsetsRequest
from penstock.protocol.vocabulary import EVENT_TOPIC
from penstock.records import excerpts
from penstock.records.batches import split_batches
from penstock.records.build import build_batch
from penstock.records.record import read_records
from penstock.sim.engine.loop import Timeline

LEADER = 7


class Stage:
    """Replaces the metadata log, the creation of topics and the leader of the event topic."""

    def __init__(self, brokers: int = 2) -> None:
        self.history = EventHistory(1, lambda: 5)
        self.topic = SimpleNamespace(topic_id=bytes([1] * 16), partitions={0: SimpleNamespace(leader=LEADER)})
        self.image = SimpleNamespace(brokers=dict.fromkeys(range(brokers)), topics={EVENT_TOPIC: self.topic})
        self.batches: list[tuple[int, bytes]] = []
        self.end = 0
        self.start_offset = 0
        self.most_batches = 100
        self.errors: list[ErrorCode] = []
        self.asked: list[tuple[str, int]] = []
        self.gate: asyncio.Event | None = None
        self.fetch_error = self.list_error = self.whole_fetch_error = ErrorCode.NONE
        parts = cast(Any, self)
        self.events = EventTopic(self.history, metadata=parts, peers=parts, topics=parts)

    async def ensure(self, name: str) -> Any:
        assert name == EVENT_TOPIC
        return self.topic

    async def ask(self, node_id: int, request: Any, *, lane: str = "", timeout_ms: int | None = None) -> Any:
        assert node_id == LEADER
        self.asked.append((type(request).__name__, len(self.asked)))
        if isinstance(request, FetchRequest):
            part = self._fetched(request.topics[0].partitions[0].fetch_offset)
            return SimpleNamespace(error_code=self.whole_fetch_error, responses=[SimpleNamespace(partitions=[part])])
        if isinstance(request, ListOffsetsRequest):
            listed = SimpleNamespace(error_code=self.list_error, offset=self.start_offset)
            return SimpleNamespace(topics=[SimpleNamespace(partitions=[listed])])
        assert isinstance(request, ProduceRequest)
        assert request.acks == -1
        if self.gate is not None:
            await self.gate.wait()
        code = self.errors.pop(0) if self.errors else ErrorCode.NONE
        if not code:
            self.append(bytes(request.topic_data[0].partition_data[0].records or b""))
        result = SimpleNamespace(error_code=code, error_message=None)
        return SimpleNamespace(responses=[SimpleNamespace(partition_responses=[result])])

    def _fetched(self, offset: int) -> PartitionData:
        if self.fetch_error:
            return PartitionData(error_code=self.fetch_error)
        if offset < self.start_offset:
            return PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        found = [batch for first, batch in self.batches if first >= offset][: self.most_batches]
        return PartitionData(records=b"".join(found))

    def append(self, batch: bytes) -> None:
        data = bytearray(batch)
        data[:8] = self.end.to_bytes(8, "big")
        self.batches.append((self.end, bytes(data)))
        ((header, _),) = split_batches(batch)
        self.end += header.records_count

    def write(self, *values: tuple[bytes | None, bytes | None]) -> None:
        self.append(build_batch([(1, key, value, ()) for key, value in values]))

    def emit(self, count: int = 1) -> None:
        for _ in range(count):
            self.history.observe(MajorityLost(epoch=self.history.counts.total()))

    def written(self) -> list[bytes]:
        """Returns the keys of all records in the topic."""
        return [bytes(record.key or b"") for _, batch in self.batches for record in read_records(memoryview(batch))]


def play(script: Callable[[], Awaitable[None]]) -> None:
    timeline = Timeline(Random(1))
    timeline.run(script(), timeline.process("node"))  # type: ignore[arg-type]
    timeline.end()


def keys(first: int, last: int) -> list[bytes]:
    return [f"1/{number % SLOTS}".encode() for number in range(first, last + 1)]


# --- writing ---------------------------------------------------------------------------------------------------


def test_events_before_and_after_the_start_are_written_once_and_in_order() -> None:
    async def script() -> None:
        for before, after in ((0, 1), (2, 0), (3, 2), (BATCH, 1), (2 * BATCH + 1, BATCH)):
            stage = Stage()
            stage.emit(before)
            stage.events.start()
            await asyncio.sleep(1)
            assert stage.written() == keys(1, before)
            stage.emit(after)
            await asyncio.sleep(1)
            assert stage.written() == keys(1, before + after)
            assert all(header.records_count <= BATCH for _, b in stage.batches for header, _ in split_batches(b))
            await stage.events.close()

    play(script)


@pytest.mark.parametrize("brokers", [0, 1, 2, 3])
def test_events_wait_until_the_cluster_has_several_brokers(brokers: int) -> None:
    async def script() -> None:
        stage = Stage(brokers)
        stage.events.apply()
        stage.emit(2)
        stage.events.start()
        await asyncio.sleep(5)
        assert len(stage.written()) == (2 if brokers > 1 else 0)
        stage.image.brokers = dict.fromkeys(range(2))
        stage.events.apply()
        await asyncio.sleep(5)
        assert stage.written() == keys(1, 2)
        await stage.events.close()

    play(script)


def test_refused_write_is_repeated_and_no_event_is_lost() -> None:
    async def script() -> None:
        stage = Stage()
        stage.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS]
        stage.events.start()
        stage.emit(3)
        await asyncio.sleep(5)
        assert stage.written() == keys(1, 3)
        stage.topic.partitions[0].leader = -1
        stage.emit(2)
        await asyncio.sleep(5)
        assert stage.written() == keys(1, 3)
        stage.topic.partitions[0].leader = LEADER
        await asyncio.sleep(5)
        assert stage.written() == keys(1, 5)
        await stage.events.close()

    play(script)


def test_oldest_waiting_events_are_dropped_and_counted_beyond_the_limit() -> None:
    async def script() -> None:
        stage = Stage(brokers=1)
        stage.events.start()
        stage.emit(MAX_WAITING)
        assert stage.events.dropped == 0
        stage.emit(3)
        assert stage.events.dropped == 3
        stage.image.brokers = dict.fromkeys(range(2))
        stage.events.apply()
        await asyncio.sleep(5)
        assert stage.written() == keys(4, MAX_WAITING + 3)
        await stage.events.close()

    play(script)


@pytest.mark.parametrize("more", [1, BATCH - 1, BATCH, BATCH + 1, MAX_WAITING])
def test_events_dropped_during_a_write_are_not_taken_from_the_events_after_them(more: int) -> None:
    async def script() -> None:
        stage = Stage()
        stage.gate = asyncio.Event()
        stage.emit(MAX_WAITING)
        stage.events.start()
        await asyncio.sleep(1)
        stage.emit(more)  # drops the oldest events while the first batch is being written
        assert stage.events.dropped == more
        stage.gate.set()
        await asyncio.sleep(5)
        first_kept = max(BATCH, more) + 1
        assert stage.written() == [*keys(1, BATCH), *keys(first_kept, MAX_WAITING + more)]
        await stage.events.close()

    play(script)


def test_closed_event_topic_writes_nothing_more() -> None:
    async def script() -> None:
        stage = Stage()
        stage.gate = asyncio.Event()
        stage.events.start()
        stage.emit()
        await asyncio.sleep(1)
        await stage.events.close()
        stage.gate.set()
        stage.emit()
        await asyncio.sleep(5)
        assert stage.written() == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    play(script)


def test_slots_continue_after_the_last_event_of_the_previous_process() -> None:
    async def script() -> None:
        stage = Stage()
        stage.write((b"1/498", b"{}"), (b"2/3", b"{}"))
        stage.write((b"1/499", b"{}"), (None, None))
        before = len(stage.written())
        stage.events.start()
        stage.emit(2)
        await asyncio.sleep(1)
        assert stage.written()[before:] == [b"1/0", b"1/1"]
        await stage.events.close()

    play(script)


def test_last_slot_is_the_number_in_the_newest_key_of_the_node() -> None:
    for found, slot in (
        ([], 0),
        ([b"1/7"], 7),
        ([b"1/7", b"1/3"], 3),
        ([b"1/7", b"2/9", b"11/4"], 7),
        ([b"1/7", b"1/x", b"1/", b"1", None, b"\xff", b"1/-2", "1/²".encode(), "1/٣".encode()], 7),
        ([b"1/507"], 7),
    ):
        assert last_slot(1, found) == slot, found


# --- reading ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most_batches", [1, 2, 100])
def test_all_records_are_read_in_order_however_many_batches_a_fetch_returns(most_batches: int) -> None:
    async def script() -> None:
        stage = Stage()
        stage.most_batches = most_batches
        assert await stage.events.read() == []
        expected: list[bytes | None] = []
        for count in (1, 3, 2, 100):
            values = [f"{len(expected) + index}".encode() for index in range(count)]
            stage.write(*((b"k", value) for value in values))
            expected += values
        assert await stage.events.read() == expected
        stage.image.topics.clear()
        assert await stage.events.read() == []

    play(script)


def test_reading_begins_at_the_first_record_that_is_left() -> None:
    async def script() -> None:
        stage = Stage()
        for value in (b"a", b"b", b"c"):
            stage.write((b"k", value))
        stage.start_offset = 1
        assert await stage.events.read() == [b"b", b"c"]
        for field, code in (
            ("list_error", ErrorCode.NOT_LEADER_OR_FOLLOWER),
            ("fetch_error", ErrorCode.NOT_LEADER_OR_FOLLOWER),
            ("whole_fetch_error", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ):
            setattr(stage, field, code)
            with pytest.raises(KafkaError) as refused:
                await stage.events.read()
            assert refused.value.code is code
            setattr(stage, field, ErrorCode.NONE)
        stage.topic.partitions[0].leader = -1
        with pytest.raises(KafkaError) as refused:
            await stage.events.read()
        assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE

    play(script)


def test_offset_that_stays_out_of_range_is_an_error() -> None:
    async def script() -> None:
        stage = Stage()
        stage.fetch_error = ErrorCode.OFFSET_OUT_OF_RANGE
        for first in (0, -1):
            stage.start_offset = first
            with pytest.raises(KafkaError) as refused:
                await stage.events.read()
            assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE

    play(script)


def test_records_of_clients_that_are_too_large_or_damaged_have_no_event() -> None:
    async def script() -> None:
        stage = Stage()
        stage.write((b"1/1", b"first"))
        stage.write(*[(b"k", b"v")] * (BATCH + 1))
        stage.write(*[(b"k", b"v")] * BATCH)
        stage.write((b"k", bytes(event_topic.MAX_RECORD_BYTES + 1)), (b"k", b"small"))
        stage.write((b"1/2", b"last"))
        expected = [b"first", NO_EVENT, *[b"v"] * BATCH, NO_EVENT, b"small", b"last"]
        assert await stage.events.read() == expected

    play(script)


def test_reading_ends_when_the_room_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        stage = Stage()
        for number in range(4):
            stage.write((b"k", str(number).encode()))
        size = len(stage.batches[0][1])
        for room in (1, size - 1, size, size + 1, 2 * size, 4 * size, 9 * size):
            for most_batches in (1, 100):
                stage.most_batches = most_batches
                monkeypatch.setattr(event_topic, "MAX_READ_BYTES", room)
                expected = [str(number).encode() for number in range(min(4, -(-room // size)))]
                assert await stage.events.read() == expected, (room, most_batches)

    play(script)


def test_every_record_of_a_large_batch_is_read_and_counts_with_its_unpacked_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [str(number).encode() * 9_000 for number in range(10)]
    data = build_batch([(1, b"k", value, ()) for value in values], compression=1)
    monkeypatch.setattr(excerpts, "STEP_WORK", 1)
    ((header, batch),) = split_batches(data)
    found, size = event_topic._records(header, batch)
    assert found == [(b"k", value) for value in values]
    assert size >= sum(map(len, values)) > 10 * len(data)


def test_batch_that_unpacks_to_more_than_the_limit_has_no_event_and_the_batches_around_it_are_read() -> None:
    async def script() -> None:
        stage = Stage()
        stage.write((b"1/1", b"first"))
        for most in (event_topic.MAX_BATCH_BYTES // 2, event_topic.MAX_BATCH_BYTES):
            values = [bytes(most // 50)] * 50  # with their lengths more than the limit, or half of it
            stage.append(build_batch([(1, b"k", value, ()) for value in values], compression=1))
        stage.write((b"1/2", b"last"))
        half = bytes(event_topic.MAX_BATCH_BYTES // 2 // 50)
        assert await stage.events.read() == [b"first", *[half] * 50, NO_EVENT, b"last"]

    play(script)


def test_unpacked_bytes_of_all_batches_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        stage = Stage()
        for number in range(10):
            value = str(number).encode() * 1000
            stage.append(build_batch([(1, b"k", value, ()), (1, b"k", value, ())], compression=1))
        assert len(stage.batches[0][1]) < 500
        for limit, batches in ((1, 1), (1_900, 1), (5_900, 3), (1 << 20, 10)):
            monkeypatch.setattr(event_topic, "MAX_READ_BYTES", limit)
            for stage.most_batches in (1, 100):
                assert len(await stage.events.read()) == 2 * batches, limit

    play(script)


def test_other_tasks_run_while_many_batches_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        stage = Stage()
        for number in range(20):
            stage.write((b"k", str(number).encode()))
        turns, reading = 0, True

        async def count() -> None:
            nonlocal turns
            while reading:
                turns += 1
                await asyncio.sleep(0)

        for limit, least, most in ((1, 19, 99), (event_topic.PAUSE_BYTES, 0, 3)):
            monkeypatch.setattr(event_topic, "PAUSE_BYTES", limit)
            turns, reading = 0, True
            counting = asyncio.ensure_future(count())
            assert len(await stage.events.read()) == 20
            assert least <= turns <= most
            reading = False
            await counting

    play(script)
