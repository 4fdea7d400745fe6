"""Measures a replica that moves between two log directories of a broker: the time, the CPU, and the latency of produce.

Rounds alternate: a phase without a move, then a move of the same partition to the other directory. Both phases have the
same load and ask the broker equally often for its log directories, so they differ in the move alone. Numbers are
medians over the rounds.
"""

from __future__ import annotations

import asyncio
import statistics
import struct
import time
from collections import deque
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from bench import raw
from bench.brokers import Peer
from bench.cells import Cell, Numbers, Scale, fresh_topic
from bench.load import latency_summary
from bench.process import cpu_seconds
from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.client.cluster_admin import ClusterAdmin
from penstock.net.loop import run
from penstock.protocol.vocabulary import ConfigOperation, ResourceType, TopicPartition

NODE = 1
THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
#: Records of 1 KiB in a batch of the log: a batch has the size that Java's producer fills by default.
RECORDS_PER_BATCH = 16
#: Requests of one record that the load sends each second, in an open loop.
REQUESTS_PER_S = 500
LOOK_EVERY_S = 0.02
#: The shortest phase without a move.
QUIET_S = 2.0
#: The time after a move in which the broker's work for it ends; its CPU counts.
SETTLE_S = 0.5
LIMIT_S = 300.0
#: Old logs go soon, so that the disk does not fill up.
OLD_LOG_DELAY_MS = "1000"
#: The time that a throttled move takes: the throttle follows from it.
THROTTLED_S = 10


@dataclass(slots=True)
class Load:
    """Sends produce requests with acks=all in an open loop: each request is sent at its time, even if responses are
    late."""

    port: int
    partition: TopicPartition
    #: The time at which each answered request was due, and its latency from then on in milliseconds.
    answered: list[tuple[float, float]] = field(default_factory=list)

    async def run(self) -> None:
        """Sends requests until the task is cancelled."""
        topic, index = self.partition
        frame = raw.produce_frame(topic, index, 1, 1024, acks=-1)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        due: deque[float] = deque()
        receiving = asyncio.create_task(self._receive(reader, due, topic))
        try:
            at = time.perf_counter()
            while not receiving.done():
                at += 1 / REQUESTS_PER_S
                await asyncio.sleep(max(0.0, at - time.perf_counter()))
                due.append(at)
                writer.write(frame)
            receiving.result()
        finally:
            receiving.cancel()
            writer.close()

    async def stop(self, running: asyncio.Task[None]) -> None:
        """Ends the task of `run`. If an error had already ended the task, raises that error."""
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    async def _receive(self, reader: asyncio.StreamReader, due: deque[float], topic: str) -> None:
        while True:
            head = await reader.readexactly(4)
            answer = await reader.readexactly(struct.unpack(">i", head)[0])
            code = raw.error_code(answer, topic)
            if code:
                raise RuntimeError(f"the broker refused a record with error {code}")
            at = due.popleft()
            self.answered.append((at, (time.perf_counter() - at) * 1000))

    def p99(self, began: float, ended: float) -> float:
        return latency_summary([latency for at, latency in self.answered if began <= at < ended])["p99"]


@dataclass(slots=True)
class Mover:
    """Moves a partition between the log directories of a broker, and waits for the end of each move."""

    admin: ClusterAdmin
    partition: TopicPartition

    async def move(self) -> None:
        """Moves the replica to another directory of its node. Returns when it is there."""
        before = await self.admin.holdings(NODE)
        source = before.replicas[self.partition].directory
        target = next(each.path for each in before.directories if each.path != source)
        failures = await self.admin.move_replicas(NODE, {self.partition: target})
        if failures:
            raise RuntimeError(f"the broker refused the move: {failures[self.partition].name}")
        async with asyncio.timeout(LIMIT_S):
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                held = await self.admin.holdings(NODE)
                replica = held.replicas.get(self.partition)
                if replica is not None and replica.directory == target and self.partition not in held.futures:
                    return

    async def look(self, seconds: float) -> None:
        """Requests the log directories as often as `move` does, but moves no replica."""
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.admin.holdings(NODE)


@dataclass(slots=True)
class Phase:
    """Holds the CPU time of a broker and the latency of produce in one phase, with a move or without."""

    seconds: float
    cpu_s: float
    p99_ms: float


async def _measured(peer: Peer, load: Load, work: Awaitable[None]) -> Phase:
    before, began = cpu_seconds(peer.pid), time.perf_counter()
    await work
    ended = time.perf_counter()
    await asyncio.sleep(SETTLE_S)
    return Phase(ended - began, cpu_seconds(peer.pid) - before, load.p99(began, ended))


async def _rounds(peer: Peer, partition: TopicPartition, rounds: int, *, loaded: bool, throttle: int) -> Numbers:
    async with AsyncClient(peer.bootstrap) as client:
        await _configure(Admin(client), partition[0], throttle)
        mover = Mover(ClusterAdmin(client), partition)
        load = Load(peer.port, partition)
        loading = asyncio.create_task(load.run()) if loaded else None
        await mover.look(QUIET_S)
        await mover.move()  # not counted: a JVM compiles the code of a move
        quiet: list[Phase] = []
        moving: list[Phase] = []
        for _ in range(rounds):
            quiet.append(await _measured(peer, load, mover.look(max(QUIET_S, moving[-1].seconds if moving else 0.0))))
            moving.append(await _measured(peer, load, mover.move()))
        if loading is not None:
            await load.stop(loading)
    return _numbers(quiet, moving, loaded=loaded)


def _numbers(quiet: list[Phase], moving: list[Phase], *, loaded: bool) -> Numbers:
    def extra(without: Phase, during: Phase) -> float:
        """Returns the CPU seconds of the move itself: subtracts the broker's other work, at its rate in the quiet
        phase."""
        return during.cpu_s - without.cpu_s / (without.seconds + SETTLE_S) * (during.seconds + SETTLE_S)

    middle = statistics.median
    numbers = {
        "move_s": middle(each.seconds for each in moving),
        "cpu_s": middle(extra(*pair) for pair in zip(quiet, moving)),
    }
    if loaded:
        without, during = middle(each.p99_ms for each in quiet), middle(each.p99_ms for each in moving)
        numbers |= {"p99_without_ms": without, "p99_during_ms": during, "p99_during_over_without": during / without}
    return numbers


async def _configure(admin: Admin, topic: str, throttle: int) -> None:
    changes = [("file.delete.delay.ms", ConfigOperation.SET, OLD_LOG_DELAY_MS)]
    await admin.alter_configs(ResourceType.TOPIC, topic, changes)
    if throttle:
        await admin.alter_configs(ResourceType.BROKER, str(NODE), [(THROTTLE, ConfigOperation.SET, str(throttle))])


def move_cell(kind: str, gib: float, rounds: int, *, loaded: bool, throttle: int = 0) -> Cell:
    """Measures moves of a log of this size; `throttle` is Kafka's throttle in bytes per second, 0 for none."""

    def measure(peer: Peer) -> Numbers:
        topic = fresh_topic(peer, "moved", 1)
        raw.fill(peer.port, topic, 1, int(gib * 2**30), records=RECORDS_PER_BATCH, in_flight=64)
        return run(_rounds(peer, (topic, 0), rounds, loaded=loaded, throttle=throttle))

    return Cell(f"move/{kind}/{gib:g}GiB", measure, fresh=True, repeat=False)


def cells(scale: Scale) -> Iterator[Cell]:
    gib, rounds = scale.move_gib, scale.move_rounds
    yield move_cell("idle", gib, rounds, loaded=False)
    yield move_cell("load", gib, rounds, loaded=True)
    yield move_cell("throttled", gib, rounds, loaded=True, throttle=int(gib * 2**30 / THROTTLED_S))
