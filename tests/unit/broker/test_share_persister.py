"""Tests where the state of a share partition is read and written, and how long requests are repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from plain_coordinator import in_virtual_time

from penstock.broker.coordinators.share_persister import (
    GIVE_UP_SECONDS,
    LANE,
    MAX_RETRY_SECONDS,
    REQUEST_TIMEOUT_MS,
    RETRIABLE,
    RETRY_SECONDS,
    SharePersister,
)
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_84_read_share_group_state as reading
from penstock.protocol.vocabulary import SHARE_GROUP_STATE
from penstock.share import state_requests
from penstock.share.state_journal import ShareKey
from penstock.share.state_requests import Read, Summary, Write
from penstock.share.states import RecordState, StateBatch

HERE = 1
KEY = ShareKey("g", bytes([7]) * 16, 3)
BATCHES = (StateBatch(4, 6, RecordState.AVAILABLE, 1), StateBatch(7, 7, RecordState.ACKNOWLEDGED, 2))
WRITE = Write(5, 6, 4, 1, BATCHES)


@dataclass
class World:
    """Holds the leader of the share coordinator, and the errors of the next requests; later requests succeed."""

    leader: int | None = 2
    errors: list[ErrorCode] = field(default_factory=list)
    refused_topics: list[KafkaError] = field(default_factory=list)
    asked: list[tuple[float, int, Any]] = field(default_factory=list)
    ensured: list[str] = field(default_factory=list)
    decided: list[ShareKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.coordinators = self
        self.image = self
        self.persister = SharePersister(
            HERE, states=cast(Any, self), metadata=cast(Any, self), peers=cast(Any, self), topics=cast(Any, self)
        )

    async def ensure(self, name: str) -> None:
        self.ensured.append(name)
        if self.refused_topics:
            raise self.refused_topics.pop(0)

    def partition_of(self, key: str) -> int:
        assert key == KEY.coordinator_key
        return 12

    def partition(self, topic: str, index: int) -> Any:
        assert (topic, index) == (SHARE_GROUP_STATE, 12)
        return None if self.leader is None else SimpleNamespace(leader=self.leader)

    def run(self, key: ShareKey, decide: Callable[[Any, Any], Any]) -> Any:
        self.decided.append(key)
        return decide("shard", "turn")

    async def ask(self, node_id: int, request: Any, *, lane: str = "", timeout_ms: int | None = None) -> Any:
        assert (lane, timeout_ms) == (LANE, REQUEST_TIMEOUT_MS)
        self.asked.append((asyncio.get_running_loop().time(), node_id, request))
        code = self.errors.pop(0) if self.errors else ErrorCode.NONE
        result = SimpleNamespace(
            error_code=int(code),
            error_message=f"refused {len(self.asked)}",
            state_epoch=5,
            leader_epoch=6,
            start_offset=4,
            delivery_complete_count=1,
            state_batches=[
                reading.StateBatch(first_offset=4, last_offset=6, delivery_state=0, delivery_count=1),
                reading.StateBatch(first_offset=7, last_offset=7, delivery_state=2, delivery_count=2),
            ],
        )
        return SimpleNamespace(results=[SimpleNamespace(partitions=[result])])


Call = Callable[[SharePersister], Any]
CALLS: dict[str, tuple[Call, tuple[Any, ...], Any]] = {
    "initialize": (lambda one: one.initialize(KEY, 5, 4), ("turn", KEY, 5, 4), None),
    "read": (lambda one: one.read(KEY, 6), ("turn", KEY, 6), Read(5, 4, BATCHES)),
    "write": (lambda one: one.write(KEY, WRITE), ("turn", KEY, WRITE), None),
    "summary": (lambda one: one.summary(KEY, 6), (KEY,), Summary(5, 6, 4, 1)),
    "delete": (lambda one: one.delete(KEY), ("turn", KEY), None),
}
FIELDS = {
    "initialize": {"partition": 3, "state_epoch": 5, "start_offset": 4},
    "read": {"partition": 3, "leader_epoch": 6},
    "write": {
        "partition": 3,
        "state_epoch": 5,
        "leader_epoch": 6,
        "start_offset": 4,
        "delivery_complete_count": 1,
    },
    "summary": {"partition": 3, "leader_epoch": 6},
    "delete": {"partition": 3},
}


@pytest.mark.parametrize("name", CALLS)
def test_share_state_of_another_coordinator_is_reached_by_one_request_with_all_fields(name: str) -> None:
    call, _, expected = CALLS[name]

    async def scenario() -> None:
        world = World(leader=0)
        assert await call(world.persister) == expected
        [(_, node_id, request)] = world.asked
        assert (node_id, request.group_id) == (0, "g")
        [topic] = request.topics
        [partition] = topic.partitions
        assert topic.topic_id == KEY.topic_id
        assert {field: getattr(partition, field) for field in FIELDS[name]} == FIELDS[name]
        if name == "write":
            batches = [(b.first_offset, b.last_offset, b.delivery_count) for b in partition.state_batches]
            assert batches == [(4, 6, 1), (7, 7, 2)]
        assert world.decided == []
        assert world.ensured == [SHARE_GROUP_STATE]

    in_virtual_time(scenario)


@pytest.mark.parametrize("name", CALLS)
def test_share_state_of_this_nodes_coordinator_is_decided_without_a_request(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, arguments, expected = CALLS[name]
    seen: list[tuple[Any, ...]] = []

    def decide(*given: Any) -> Any:
        seen.append(given)
        return expected

    monkeypatch.setattr(state_requests, name, decide)

    async def scenario() -> None:
        world = World(leader=HERE)
        assert await call(world.persister) == expected
        assert (world.asked, world.decided) == ([], [KEY])
        assert seen == [("shard", *arguments)]

    in_virtual_time(scenario)


@pytest.mark.parametrize("code", sorted(RETRIABLE))
def test_retriable_request_to_a_share_coordinator_is_repeated_with_growing_pauses_until_the_limit(
    code: ErrorCode,
) -> None:
    async def scenario() -> None:
        world = World(errors=[code] * 1000)
        with pytest.raises(KafkaError) as refused:
            await world.persister.delete(KEY)
        moments, pause = [0.0], RETRY_SECONDS
        while moments[-1] + pause <= GIVE_UP_SECONDS:
            moments.append(moments[-1] + pause)
            pause = min(2 * pause, MAX_RETRY_SECONDS)
        assert [at for at, _, _ in world.asked] == pytest.approx(moments)
        kept = code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert refused.value.code is (code if kept else ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert refused.value.message == f"refused {len(moments)}"

    in_virtual_time(scenario)


def test_request_to_a_share_coordinator_with_a_final_error_is_not_repeated() -> None:
    async def scenario() -> None:
        world = World(errors=[ErrorCode.NOT_COORDINATOR, ErrorCode.FENCED_LEADER_EPOCH])
        with pytest.raises(KafkaError) as refused:
            await world.persister.read(KEY, 6)
        assert (refused.value.code, refused.value.message) == (ErrorCode.FENCED_LEADER_EPOCH, "refused 2")
        assert len(world.asked) == 2

    in_virtual_time(scenario)


@pytest.mark.parametrize("attempts", [1, 3])
def test_write_of_a_dropped_share_state_is_not_repeated(attempts: int) -> None:
    async def scenario() -> None:
        world = World(errors=[ErrorCode.NOT_COORDINATOR] * 9)
        with pytest.raises(KafkaError) as refused:
            await world.persister.write(KEY, WRITE, lambda: len(world.asked) < attempts)
        assert refused.value.code is ErrorCode.FENCED_STATE_EPOCH
        assert len(world.asked) == attempts

    in_virtual_time(scenario)


@pytest.mark.parametrize("missing", [None, -1, "topic"])
def test_request_waits_until_the_share_coordinator_has_a_topic_and_a_leader(missing: int | str | None) -> None:
    async def scenario() -> None:
        world = World()
        if missing == "topic":
            world.refused_topics = [KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "too few brokers")]
        else:
            world.leader = cast(Any, missing)
        reading_ = asyncio.get_running_loop().create_task(world.persister.read(KEY, 6))
        await asyncio.sleep(RETRY_SECONDS / 2)
        assert world.asked == []
        world.leader = 4
        await reading_
        assert [(at, node_id) for at, node_id, _ in world.asked] == [(RETRY_SECONDS, 4)]

    in_virtual_time(scenario)
