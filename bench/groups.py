"""Loads coordinators over plain sockets, with thousands of members that send heartbeats and with many offset commits.

Members share connections, unlike stock clients, because only the coordinator is measured. There are so many connections
that two heartbeats seldom arrive together on one. So each heartbeat wakes the broker up, as in production.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

from bench.raw import CLIENT, HEADER, SIZE, read_answer
from penstock.groups.partitioner import coordinator_partition
from penstock.net.loop import run
from penstock.protocol.apis import APIS, response_class
from penstock.protocol.codec import decode, encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.messages.api_09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from penstock.protocol.messages.api_10_find_coordinator import FindCoordinatorRequest
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.api_12_heartbeat import HeartbeatRequest
from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment

BEAT_S = 3.0
TICK_S = 0.005
LANES = 10  # groups that form at the same time, each over as many connections as it has members
SESSION_MS = 600_000  # longer than forming all of them takes
NOT_YET = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


def frame(request: Any, version: int) -> bytes:
    key: int = request.API_KEY
    since = APIS[key].flexible_since
    tags = b"\0" if since is not None and version >= since else b""
    body = HEADER.pack(key, version, 1, len(CLIENT)) + CLIENT + tags + encode(request, version)
    return SIZE.pack(len(body)) + body


def answer_to(request: Any, version: int, answer: bytes) -> Any:
    key: int = request.API_KEY
    since = APIS[key].flexible_since
    return decode(response_class(key), version, answer, 5 if since is not None and version >= since else 4)


# --- heartbeats ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Beats:
    answered: int
    seconds: float
    cpu_s: float
    latencies_ms: list[float]


@dataclass(slots=True)
class Lane:
    """Holds a connection. While groups form, it has one request in flight; afterwards requests are pipelined."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    sent_at: deque[float] = field(default_factory=deque)

    async def ask(self, request: Any, version: int) -> Any:
        self.writer.write(frame(request, version))
        return answer_to(request, version, await self.receive())

    async def receive(self) -> bytes:
        return await self.reader.readexactly(SIZE.unpack(await self.reader.readexactly(4))[0])


@dataclass(slots=True)
class Forming:
    """Represents a group that rebalances until all members are in one generation."""

    name: str
    size: int
    whole: int = 0  # the generation with all members; the leader sees the members


async def _member(group: Forming, lane: Lane) -> bytes:
    """Joins until the group has all members. Returns the frame of this member's heartbeats."""
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")
    member_id = ""
    while True:
        joined = await lane.ask(
            JoinGroupRequest(
                group_id=group.name,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[protocol],
            ),
            3,  # the last version in which the first join gives a member its id
        )
        _expect(joined.error_code, ErrorCode.NONE)
        member_id, generation = joined.member_id, joined.generation_id
        if len(joined.members) == group.size:
            group.whole = generation
        shares = [SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"") for each in joined.members]
        sync = SyncGroupRequest(group_id=group.name, generation_id=generation, member_id=member_id, assignments=shares)
        code = (await lane.ask(sync, 3)).error_code
        _expect(code, ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
        beat = HeartbeatRequest(group_id=group.name, generation_id=generation, member_id=member_id)
        while code == ErrorCode.NONE:
            if generation == group.whole:
                return frame(beat, 4)
            await asyncio.sleep(0.005)
            code = (await lane.ask(beat, 4)).error_code
            _expect(code, ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)


def _expect(code: int, *good: ErrorCode) -> None:
    if code not in good:
        raise RuntimeError(f"the coordinator answered {ErrorCode(code).name}")


def beating(port: int, cpu: Callable[[], float], groups: int, members: int, seconds: float) -> Beats:
    """Runs `groups` groups of `members` each, with a heartbeat every 3 s; `cpu` returns the broker's CPU seconds."""
    return run(_beating(port, cpu, groups, members, seconds))


async def _beating(port: int, cpu: Callable[[], float], groups: int, members: int, seconds: float) -> Beats:
    lanes = [[Lane(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(members)] for _ in range(LANES)]
    wanted = iter([Forming(f"beat-{time.monotonic_ns()}-{index}", members) for index in range(groups)])
    await asyncio.to_thread(wait_for_coordinator, port, "beat")
    beats: list[tuple[Lane, bytes]] = []

    async def form(mine: list[Lane]) -> None:
        for group in wanted:  # a shared iterator: each free lane takes the next group
            frames = await asyncio.gather(*(_member(group, lane) for lane in mine))
            beats.extend(zip(mine, frames))

    await asyncio.gather(*(form(mine) for mine in lanes))
    done = await _beat(beats, [lane for mine in lanes for lane in mine], cpu, seconds)
    for mine in lanes:
        for lane in mine:
            lane.writer.close()
    return done


async def _beat(beats: list[tuple[Lane, bytes]], lanes: list[Lane], cpu: Callable[[], float], seconds: float) -> Beats:
    latencies: list[float] = []

    async def listen(lane: Lane) -> None:
        while True:
            code = int.from_bytes((await lane.receive())[9:11], "big", signed=True)
            _expect(code, ErrorCode.NONE)
            latencies.append((time.perf_counter() - lane.sent_at.popleft()) * 1000)

    listeners = [asyncio.create_task(listen(lane)) for lane in lanes]
    turns = random.Random(0).sample(beats, len(beats))  # in random order, not group by group
    try:
        await _send(turns, BEAT_S)  # a first round, to warm up
        latencies.clear()
        began, before = time.perf_counter(), cpu()
        await _send(turns, seconds)
        while any(lane.sent_at for lane in lanes):
            if failed := next((each for each in listeners if each.done()), None):
                failed.result()
            await asyncio.sleep(TICK_S)
        return Beats(len(latencies), time.perf_counter() - began, cpu() - before, latencies)
    finally:
        for each in listeners:
            each.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)


async def _send(turns: list[tuple[Lane, bytes]], seconds: float) -> None:
    """Sends the heartbeat of every member once in BEAT_S seconds, evenly distributed."""
    began, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        due = int(passed / BEAT_S * len(turns))
        for index in range(sent, due):
            lane, beat = turns[index % len(turns)]
            lane.sent_at.append(time.perf_counter())
            lane.writer.write(beat)
        sent = due
        await asyncio.sleep(TICK_S)


# --- many committed offsets ---------------------------------------------------------------------------------------


def wait_for_coordinator(port: int, group: str, limit_s: float = 60.0) -> None:
    """Waits until the group's coordinator has loaded. The first request creates `__consumer_offsets`."""
    request = FindCoordinatorRequest(key=group)
    _ask_until(port, request, 3, lambda found: ErrorCode(found.error_code), limit_s)
    fetch = OffsetFetchRequest(group_id=group, topics=None)
    _ask_until(port, fetch, 7, lambda found: ErrorCode(found.error_code), limit_s)


def _ask_until(port: int, request: Any, version: int, code_of: Callable[[Any], ErrorCode], limit_s: float) -> Any:
    """Repeats the request while the coordinator loads. Returns the first other response."""
    question, deadline = frame(request, version), time.monotonic() + limit_s
    while True:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            with socket.create_connection(("127.0.0.1", port), limit_s) as connection:
                while time.monotonic() < deadline:
                    connection.sendall(question)
                    answer = answer_to(request, version, read_answer(connection))
                    code = code_of(answer)
                    if code not in NOT_YET:
                        _expect(code, ErrorCode.NONE)
                        return answer
                    time.sleep(0.005)
        except OSError:
            time.sleep(0.005)
        if time.monotonic() > deadline:
            raise TimeoutError(f"the coordinator still answers {code.name}")


def groups_of_one_coordinator(partition_count: int, wanted: int) -> list[str]:
    """Returns group names that all map to partition 0 of `__consumer_offsets`."""
    names: Iterator[str] = (f"load-{index}" for index in count())
    return list(islice((name for name in names if coordinator_partition(name, partition_count) == 0), wanted))


def commit(port: int, topic: str, partitions: int, groups: list[str], *, in_flight: int = 8) -> None:
    """Commits an offset of every partition for every group."""
    with socket.create_connection(("127.0.0.1", port), 60.0) as connection:
        for start in range(0, len(groups), in_flight):
            requests = [_commit_request(name, topic, partitions) for name in groups[start : start + in_flight]]
            connection.sendall(b"".join(frame(request, 8) for request in requests))
            for request in requests:
                [told] = answer_to(request, 8, read_answer(connection)).topics
                for each in told.partitions:
                    _expect(each.error_code, ErrorCode.NONE)


def _commit_request(group: str, topic: str, partitions: int) -> OffsetCommitRequest:
    offsets = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index + 1, committed_metadata="")
        for index in range(partitions)
    ]
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=offsets)])


def wait_for_offset(port: int, topic: str, partition: int, group: str, limit_s: float) -> None:
    """Waits until the coordinator returns a committed offset. Raises RuntimeError if it differs from the one that
    `commit` wrote."""
    wanted = [OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])]
    request = OffsetFetchRequest(group_id=group, topics=wanted, require_stable=True)
    told = _ask_until(port, request, 7, lambda found: ErrorCode(found.error_code), limit_s)
    offset = told.topics[0].partitions[0].committed_offset
    if offset != partition + 1:
        raise RuntimeError(f"offset {partition + 1} was committed, but OffsetFetch returned {offset}")
