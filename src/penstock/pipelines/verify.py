"""Compares replicas in Spark tasks, for clusters that are too large for one process.

The client compares (`penstock.client.comparison`), and Spark distributes the work. A first job finds the offset range
and the replicas of every partition. A second job compares the ranges of all partitions, several ranges in each task.
This module combines the results. The results, including the digests, are the same as without Spark (`penstock cluster
verify`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.client.comparison import (
    Comparison,
    Found,
    Share,
    Target,
    at_rate,
    compare_share,
    gathered,
    outline,
    shares,
    unread,
)
from penstock.client.connection import ConnectionSettings
from penstock.client.sync import Client
from penstock.pipelines.spread import cores_of, spread
from penstock.protocol.errors import KafkaError

#: Tasks for each core: with many short tasks, all cores end at about the same time.
TASKS_PER_CORE = 4
#: Most ranges of one task. An executor that dies loses the work of its task.
MOST_RANGES = 100
#: Partitions that one task outlines at the same time; most of the time it waits for responses.
AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Reach:
    """Holds the settings with which a task connects to the brokers."""

    bootstrap: str
    timeout_s: float
    rate: float | None

    def client(self) -> Client:
        settings = ConnectionSettings(
            client_id="penstock-verify",
            connect_timeout_s=min(self.timeout_s, 10.0),
            request_timeout_s=self.timeout_s,
        )
        return Client(self.bootstrap, settings=settings)


def verify(
    spark: Any,
    bootstrap: str,
    targets: Sequence[Target],
    *,
    range_offsets: int,
    rate: float | None = None,
    timeout_s: float = 30.0,
) -> list[Comparison]:
    """Compares the replicas of each target partition, and returns the results in the order of the targets.

    `rate` is the limit in bytes per second for the sum of all tasks.
    """
    cores = cores_of(spark)
    reach = Reach(bootstrap, timeout_s, rate / cores if rate else None)
    count = max(1, min(len(targets), cores * TASKS_PER_CORE))
    slices = [targets[at::count] for at in range(count)]
    looked = spread(spark, slices, partial(look, reach)) if targets else []
    outlines = [looked[at % count][at // count] for at in range(len(targets))]
    parts = shared_out(targets, outlines, range_offsets, cores * TASKS_PER_CORE)
    found: dict[Target, list[Found | str]] = defaultdict(list)
    for part, result in zip(parts, spread(spark, parts, partial(compare, reach))):
        found[part.target].append(result)
    return [put_together(target, seen, found[target]) for target, seen in zip(targets, outlines)]


def look(reach: Reach, targets: Sequence[Target]) -> list[Comparison | str]:
    """Returns for each partition the offsets and replicas to compare, or the reason why it can't be compared.

    Runs in a Spark task.
    """

    async def each(client: Client, target: Target, room: asyncio.Semaphore) -> Comparison | str:
        async with room:
            try:
                return await outline(client.asynchronous, target, at_rate(reach.rate))
            except KafkaError as error:
                return error.message or error.code.name

    async def all_of_them(client: Client) -> list[Comparison | str]:
        room = asyncio.Semaphore(AT_ONCE)
        return await asyncio.gather(*(each(client, target, room) for target in targets))

    with reach.client() as client:
        return client.run(all_of_them(client))


def compare(reach: Reach, share: Share) -> Found | str:
    """Compares the ranges in `share`. Returns the result, or the reason why the comparison failed.

    Runs in a Spark task.
    """
    with reach.client() as client:
        try:
            return client.run(compare_share(client.asynchronous, share, at_rate(reach.rate)))
        except KafkaError as error:
            return error.message or error.code.name


def shared_out(
    targets: Sequence[Target], outlines: Sequence[Comparison | str], range_offsets: int, tasks: int
) -> list[Share]:
    """Divides the offset ranges of all partitions into about `tasks` shares. A Spark task compares one share.

    There are more shares if a share would have more than MOST_RANGES ranges.
    """
    known = [(target, seen) for target, seen in zip(targets, outlines) if isinstance(seen, Comparison)]
    ranges = sum((seen.end - seen.first) // range_offsets + 1 for _, seen in known)
    most = min(MOST_RANGES, max(1, -(-ranges // tasks)))
    return [
        share for target, seen in known for share in shares(target, seen, range_offsets=range_offsets, most_ranges=most)
    ]


def put_together(target: Target, seen: Comparison | str, parts: Sequence[Found | str]) -> Comparison:
    for each in (seen, *parts):
        if isinstance(each, str):
            return unread(target, each)
    assert isinstance(seen, Comparison)
    return gathered(seen, [each for each in parts if isinstance(each, Found)])
