"""Samples end offsets and committed offsets in the background, so that a console shows history when it is opened.

The replicas and groups of this node are read from memory. For partitions without a replica on this node, and for groups
that other nodes coordinate, the sampler sends small requests to these nodes. The cost does not depend on the number of
records, and all loops yield to the event loop between slices.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.client.cluster_admin import ClusterAdmin
from penstock.client.group_admin import GroupAdmin
from penstock.http.cluster import ASK_S, ClusterFacts
from penstock.http.local_groups import committed_here
from penstock.http.rates import Rate, Sums
from penstock.http.view import View
from penstock.net.yielding import yield_between_slices
from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.client.group_admin import Offsets
    from penstock.protocol.vocabulary import TopicPartition

logger = logging.getLogger(__name__)
T = TypeVar("T")

#: Partitions of one request to another node, and groups of one request to their coordinator.
PARTITIONS_A_REQUEST = 200
GROUPS_A_REQUEST = 10
#: Partitions without a replica on this node that are sampled.
ASKED_MAX = 20_000
#: Groups of other coordinators that are sampled, and partitions of such a group: a larger group is not asked for again.
GROUPS_MAX = 2_000
GROUP_PARTITIONS_MAX = 1_000


class Position(NamedTuple):
    """Holds the end offset, the high watermark and the size in bytes of a partition, as this node last saw them."""

    end: int
    high_watermark: int
    size: int


class Sampler:
    def __init__(self, view: View, interval_s: float) -> None:
        self._view = view
        self._interval_s = interval_s
        self._facts = ClusterFacts(view)
        self._before: tuple[float, dict[str, Sums]] | None = None
        self._large: set[str] = set()
        """Groups with more than GROUP_PARTITIONS_MAX partitions."""

    async def run(self) -> None:
        """Takes a sample in each interval until the task is cancelled. A failed sample leaves a gap in the history."""
        failing = False
        while True:
            try:
                await self.sample()
                failing = False
            except Exception:
                if not failing:
                    logger.exception(
                        "a sample for the console's history failed: the next sample is taken after the usual interval"
                    )
                failing = True
            await asyncio.sleep(self._interval_s)

    async def close(self) -> None:
        await self._facts.close()

    async def sample(self) -> None:
        positions = await self._own()
        await self._ask_positions(positions)
        at_s, at_ms = asyncio.get_running_loop().time(), self._view.broker.clock.wall_ms()
        sums = await _sums(positions)
        rates = await self._rates(at_s, sums)
        if rates is not None:
            self._view.history.rates.add_sample(at_ms, rates)
        await self._sample_lags(at_ms, positions)

    # --- partitions

    async def _own(self) -> dict[TopicPartition, Position]:
        found: dict[TopicPartition, Position] = {}
        for number, partition in enumerate(list(self._view.broker.partitions)):
            await yield_between_slices(number)
            if partition.is_open:
                log = partition.log
                found[partition.topic, partition.index] = Position(log.log_end_offset, log.high_watermark, log.size)
        return found

    async def _ask_positions(self, positions: dict[TopicPartition, Position]) -> None:
        """Adds the positions of partitions without a replica on this node. Requests them from the leaders."""
        by_leader: dict[int, list[TopicPartition]] = {}
        number = asked = 0
        for name, topic in self._view.broker.metadata.image.topics.items():
            for index, partition in topic.partitions.items():
                await yield_between_slices(number)
                number += 1
                if (name, index) not in positions and partition.leader >= 0 and asked < ASKED_MAX:
                    by_leader.setdefault(partition.leader, []).append((name, index))
                    asked += 1
        by_leader.pop(self._view.broker.node_id, None)  # a replica that is not open
        for leader, partitions in by_leader.items():
            for part in _parts(partitions, PARTITIONS_A_REQUEST):
                if not await self._ask_leader(leader, part, positions):
                    break

    async def _ask_leader(
        self, leader: int, part: Sequence[TopicPartition], positions: dict[TopicPartition, Position]
    ) -> bool:
        """Requests the positions of partitions from their leader and adds them. Returns False without a response."""
        admin = ClusterAdmin(await self._facts.fresh_client())
        try:
            async with asyncio.timeout(ASK_S):
                ends = await admin.end_offsets(leader, part)
                held = (await admin.holdings(leader, ends)).replicas
        except (KafkaError, TimeoutError):
            self._facts.note_silence()
            return False
        for key, end in ends.items():
            positions[key] = Position(end, end, held[key].size if key in held else 0)
        return True

    async def _rates(self, at_s: float, sums: dict[str, Sums]) -> dict[str, Rate] | None:
        """Returns the growth rate of each topic since the last sample; None if there is no earlier sample."""
        before, self._before = self._before, (at_s, sums)
        if before is None or at_s <= before[0]:
            return None
        found: dict[str, Rate] = {}
        for number, (topic, now) in enumerate(sums.items()):
            await yield_between_slices(number)
            rate = now.rate_since(before[1].get(topic), at_s - before[0])
            if rate is not None:
                found[topic] = rate
        return found

    # --- groups

    async def _sample_lags(self, at_ms: int, positions: dict[TopicPartition, Position]) -> None:
        history = self._view.history.lags
        group, lags = "", Counter[str]()
        async for each in committed_here(self._view.broker):
            if each.group != group:
                history.add_sample(group, at_ms, lags)
                group, lags = each.group, Counter()
            _add_lag(lags, each.partition, each.offset, positions)
        history.add_sample(group, at_ms, lags)
        others = [each for each in self._view.broker.metadata.image.brokers.values() if not each.fenced]
        room = GROUPS_MAX
        for node in (each.broker_id for each in others if each.broker_id != self._view.broker.node_id):
            room -= await self._sample_groups_of(node, at_ms, positions, room)

    async def _sample_groups_of(
        self, node: int, at_ms: int, positions: dict[TopicPartition, Position], room: int
    ) -> int:
        """Samples the lags of groups that another node coordinates. Returns the number of groups whose
        offsets it requested."""
        admin, asked = GroupAdmin(await self._facts.fresh_client()), 0
        try:
            async with asyncio.timeout(ASK_S):
                rows = await admin.list_on(node)
            groups = [row["group"] for row in rows if row["group"] not in self._large][:room]
            for part in _parts(groups, GROUPS_A_REQUEST):
                asked += len(part)
                async with asyncio.timeout(ASK_S):
                    found = await admin.committed_on(node, part)
                for group, offsets in found.items():
                    await asyncio.sleep(0)
                    self._add(group, at_ms, offsets, positions)
        except (KafkaError, TimeoutError):
            self._facts.note_silence()  # a gap in the history of the node's groups
        return asked

    def _add(self, group: str, at_ms: int, offsets: Offsets, positions: dict[TopicPartition, Position]) -> None:
        if len(offsets) > GROUP_PARTITIONS_MAX:
            self._large.add(group)
        lags = Counter[str]()
        for partition, offset in offsets.items():
            _add_lag(lags, partition, offset, positions)
        self._view.history.lags.add_sample(group, at_ms, lags)


def _add_lag(
    lags: Counter[str], partition: TopicPartition, offset: int, positions: Mapping[TopicPartition, Position]
) -> None:
    """Adds the lag of a committed offset to the lag of its topic. Leaves out partitions whose position is unknown."""
    position = positions.get(partition)
    if position is not None:
        lags[partition[0]] += max(0, position.high_watermark - offset)


async def _sums(positions: dict[TopicPartition, Position]) -> dict[str, Sums]:
    found: dict[str, Sums] = {}
    for number, ((topic, _), each) in enumerate(positions.items()):
        await yield_between_slices(number)
        known = found.get(topic, Sums(0, 0, 0))
        found[topic] = Sums(known.partitions + 1, known.end + each.end, known.size + each.size)
    return found


def _parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields lists of at most `size` items."""
    left = iter(items)
    while part := list(islice(left, size)):
        yield part
