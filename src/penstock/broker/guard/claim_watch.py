"""Asks the other brokers, at an interval, which role they have in the partitions that they share with this node.

Each check sends one request to every other broker, about a limited number of partitions; the next check continues with
further partitions. Each check also looks for followers of this node whose fetch offset went back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from penstock.guard.claims import Claim, Retreat, judge_claims, judge_retreat

if TYPE_CHECKING:
    from penstock.broker.guard.examiner import Examiner, Key
    from penstock.broker.guard.probe import Place
    from penstock.broker.replicas.partitions import Partitions
    from penstock.guard.findings import Finding
    from penstock.metadata.configs.settings import Settings

#: Partitions in one request to a node.
BATCH = 200
#: Partitions that are visited in one pass of the event loop.
SLICE = 500


class ClaimWatch:
    def __init__(
        self,
        node_id: int,
        partitions: Partitions,
        examiner: Examiner,
        settings: Settings,
        found: Callable[[Key, Finding], None],
    ) -> None:
        self._node_id = node_id
        self._partitions = partitions
        self._examiner = examiner
        self._settings = settings
        self._found = found
        #: The position in the list of partitions, by node: each check continues after the last one.
        self._next: dict[int, int] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.int("penstock.guard.check.interval.ms") / 1000)
            await self.check_retreats()
            for node_id, keys in sorted((await self._shared()).items()):
                await self._check(node_id, keys)

    async def check_retreats(self) -> None:
        """Reports the followers of this node whose fetch offset went back since the last check."""
        for number, partition in enumerate(list(self._partitions)):
            await yield_now_and_then(number)
            leading = partition.leading
            for follower in () if leading is None else leading.followers.values():
                retreat, follower.retreat = follower.retreat, None
                if retreat is not None and leading is not None:
                    was, now = retreat
                    finding = judge_retreat(
                        f"{partition.topic}-{partition.index}",
                        Retreat(follower.broker_id, leading.leader_epoch, was, now),
                    )
                    self._found((partition.topic_id, partition.index), finding)

    async def _shared(self) -> dict[int, list[Key]]:
        shared: dict[int, list[Key]] = {}
        for number, partition in enumerate(list(self._partitions)):
            await yield_now_and_then(number)
            for node_id in partition.image.replicas:
                if node_id != self._node_id:
                    shared.setdefault(node_id, []).append((partition.topic_id, partition.index))
        return shared

    async def _check(self, node_id: int, keys: list[Key]) -> None:
        start = self._next.get(node_id, 0) % len(keys)
        some = [*islice(keys[start:] + keys[:start], BATCH)]
        self._next[node_id] = start + len(some)
        places = [found[0] for key in some if (found := self._examiner.find(key)) is not None]
        claims = await self._examiner.probe.claims(node_id, places)
        for place, claim in claims.items():
            for finding in self._judged(place, claim):
                self._found((place.topic_id, place.partition), finding)

    def _judged(self, place: Place, claim: Claim) -> Iterator[Finding]:
        now = self._examiner.find((place.topic_id, place.partition))
        if now is not None and now[0] == place:  # the leader epoch is still the one that the request named
            yield from judge_claims(str(place), now[1].leader, place.leader_epoch, [claim])


async def yield_now_and_then(number: int) -> None:
    """Yields to the event loop after every SLICE partitions. `number` is the index of the current partition."""
    if number % SLICE == SLICE - 1:
        await asyncio.sleep(0)
