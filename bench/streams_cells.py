"""Measures streams groups (KIP-1071): the assignment of many tasks to many members, and the cost of their heartbeats.

Members are simulated: each owns the tasks that it was assigned, and sends its next heartbeat at once. A third client
sends small requests: its longest wait shows for how long the broker stood still.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from uuid import uuid4

from bench import raw
from bench.brokers import Peer
from bench.cells import Cell, Numbers, Scale, create_topic
from bench.load import latency_summary
from bench.probe import Probe
from bench.process import cpu_seconds
from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.net.loop import run
from penstock.protocol.vocabulary import ConfigOperation, ResourceType
from penstock.sim.run.streams_commands import StreamMember

#: Group configs with which each change of members is assigned at once.
EAGER = {"streams.initial.rebalance.delay.ms": "0", "streams.assignment.interval.ms": "0"}
CREATE_LIMIT_S = 120.0
CHECKED_PARTITIONS = 100  # all partitions of a topic come up together, so a sample is enough
ASSIGN_LIMIT_S = 120.0
AT_ONCE = 10


def streams_cell(tasks: int, members: int, beats: int) -> Cell:
    def measure(peer: Peer) -> Numbers:
        topic = f"streams-{time.monotonic_ns()}"
        create_topic(peer, topic, tasks)
        raw.wait_for_writes(peer.port, topic, CHECKED_PARTITIONS, time.monotonic() + CREATE_LIMIT_S)
        with Probe(peer.port) as probe:
            numbers = run(_measure(peer, topic, tasks, members, beats))
        return {**numbers, "others_p99_ms": probe.p99_ms, "others_longest_ms": probe.longest_ms}

    return Cell(f"streams/{tasks}t/{members}m", measure, fresh=True, repeat=False)


async def _measure(peer: Peer, topic: str, tasks: int, members: int, beats: int) -> Numbers:
    group = f"group-{topic}"
    async with AsyncClient(peer.bootstrap) as client:
        changes = [(name, ConfigOperation.SET, value) for name, value in EAGER.items()]
        await Admin(client).alter_configs(ResourceType.GROUP, group, changes)
        all_members = [StreamMember(str(uuid4()), group, topic, stateful=False) for _ in range(members)]
        began, cpu_before = time.monotonic(), cpu_seconds(peer.pid)
        while not _settled(all_members, tasks):
            if time.monotonic() - began > ASSIGN_LIMIT_S:
                raise RuntimeError(f"the members have only {sum(len(each.active) for each in all_members)} tasks")
            await _round(client, all_members)
        assigned_s, cpu_assigned = time.monotonic() - began, cpu_seconds(peer.pid)
        latencies: list[float] = []
        for _ in range(beats // members):
            latencies += await _round(client, all_members)
        cpu_beats = cpu_seconds(peer.pid) - cpu_assigned
    summary = latency_summary(latencies)
    return {
        "assigned_s": assigned_s,
        "cpu_s_assign": cpu_assigned - cpu_before,
        "cpu_us_per_heartbeat": cpu_beats / len(latencies) * 1e6,
        "p50_ms": summary["p50"],
        "p99_ms": summary["p99"],
    }


def _settled(members: list[StreamMember], tasks: int) -> bool:
    """Returns True if all tasks are assigned evenly (counts differ by at most one) and all members have one epoch."""
    counts = [len(each.active) for each in members]
    return sum(counts) == tasks and max(counts) - min(counts) <= 1 and len({each.epoch for each in members}) == 1


async def _round(client: AsyncClient, members: list[StreamMember]) -> list[float]:
    """Sends one heartbeat of each member. Returns their response times in milliseconds."""

    async def beat(member: StreamMember) -> float:
        began = time.monotonic()
        error = await member.beat(client)
        if error:
            raise RuntimeError(f"a heartbeat was refused: {error}")
        return (time.monotonic() - began) * 1000

    latencies: list[float] = []
    for first in range(0, len(members), AT_ONCE):
        latencies += await asyncio.gather(*map(beat, members[first : first + AT_ONCE]))
    return latencies


def cells(scale: Scale) -> Iterator[Cell]:
    yield streams_cell(*((500, 20, 2000) if scale.quick else (2000, 100, 10_000)))
