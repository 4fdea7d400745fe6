"""Examines a partition: compares the records that its in-sync replicas serve, and the roles that they claim.

An election, a truncation or a late image can make correct replicas differ for a moment. So a finding is reported only
if a second examination has the same finding, CONFIRM_S seconds later and in the same leader epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.broker.guard.probe import Place, Probe
from penstock.guard.claims import Role, judge_claims, judge_marks
from penstock.guard.comparison import NO_LIMIT, Comparison, Rules, compare
from penstock.guard.samples import Sample, Status

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.guard.findings import Finding
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage, PartitionImage

CONFIRM_S = 1.0
#: Bytes of the second request to a replica without the asked offset: only its answer counts.
LEAST_BYTES = 1

Key = tuple[bytes, int]  # topic id, partition
RunInThread = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Examination:
    comparison: Comparison
    findings: tuple[Finding, ...]
    bytes_read: int


class Examiner:
    def __init__(
        self,
        probe: Probe,
        settings: Settings,
        clock: Clock,
        *,
        image: Callable[[], MetadataImage],
        in_thread: RunInThread,
    ) -> None:
        """Creates the examiner. `in_thread` runs slow functions, such as checksums of records, in a thread."""
        self.probe = probe
        self._settings = settings
        self._clock = clock
        self._image = image
        self._in_thread = in_thread

    def find(self, key: Key) -> tuple[Place, PartitionImage] | None:
        """Returns the partition in the newest image; None if it is deleted or has no leader."""
        topic = self._image().topics_by_id.get(key[0])
        partition = None if topic is None else topic.partitions.get(key[1])
        if topic is None or partition is None or partition.leader < 0:
            return None
        return Place(topic.name, key[0], key[1], partition.leader_epoch), partition

    def is_compacted(self, topic: str) -> bool:
        """Returns True if the topic is compacted: each broker compacts its own replica, so the replicas may differ."""
        return self._settings.log_config(self._image(), topic).compact

    async def examine(self, key: Key, offset: int, nodes: Iterable[int] = ()) -> Examination | None:
        """Examines the in-sync replicas, or only the replicas on `nodes`.

        Returns None if the partition has no leader or no longer exists.
        """
        found = self.find(key)
        if found is None:
            return None
        place, partition = found
        asked = sorted(nodes) or sorted(partition.isr)
        rules = Rules(str(place), len(partition.replicas), place.leader_epoch, self._latest_ms())
        samples = await asyncio.gather(*(self.probe.sample(node, place, offset) for node in asked))
        samples = await self._find_lacking(place, samples)
        comparison: Comparison = await self._in_thread(compare, offset, samples, rules)
        size = sum(len(memoryview(each.records)) for each in samples)
        return Examination(comparison, (*comparison.findings, *await self._claims(place, partition, samples)), size)

    async def confirmed(self, key: Key, offset: int, nodes: Iterable[int] = ()) -> Examination | None:
        """Examines the partition. If there is a finding, examines the partition a second time.

        Returns only findings that both examinations have.
        """
        first = await self.examine(key, offset, nodes)
        before = self.find(key)
        if first is None or not first.findings or before is None:
            return first
        await asyncio.sleep(CONFIRM_S)
        second = await self.examine(key, offset, nodes)
        after = self.find(key)
        if second is None or after is None:
            return None
        size = first.bytes_read + second.bytes_read
        if after[0].leader_epoch != before[0].leader_epoch:
            nothing = replace(second.comparison, findings=(), good=())
            return Examination(nothing, (), size)
        seen = {each.subject for each in first.findings}
        kept = tuple(each for each in second.findings if each.subject in seen)
        differences = tuple(each for each in second.comparison.findings if each.subject in seen)
        comparison = replace(second.comparison, findings=differences)
        return Examination(comparison, kept, size)

    async def _find_lacking(self, place: Place, samples: list[Sample]) -> list[Sample]:
        """Finds the replicas that lack committed records, and gives their samples the status LACKING.

        A replica without records at the examined offset may have deleted them. So it is asked for newer records, at the
        high watermark of the other replicas. If it does not have this offset either, it lacks committed records.
        """
        marks = [each.high_watermark for each in samples if each.has_records]
        found = []
        for each in samples:
            if each.status is Status.ABSENT and marks:
                again = await self.probe.sample(each.node_id, place, min(marks), LEAST_BYTES)
                if again.status is Status.ABSENT:
                    each = replace(each, status=Status.LACKING)
            found.append(each)
        return found

    async def _claims(self, place: Place, partition: PartitionImage, samples: list[Sample]) -> list[Finding]:
        asked = sorted(partition.replicas)
        claims = [(await self.probe.claims(node, [place]))[place] for node in asked]
        found = list(judge_claims(str(place), partition.leader, place.leader_epoch, claims))
        end = next((each.end_offset for each in claims if each.node_id == partition.leader), -1)
        leads = any(each.role is Role.LEADS and each.node_id == partition.leader for each in claims)
        marks = {each.node_id: each.high_watermark for each in samples if each.status is Status.SERVED}
        if leads:
            found += judge_marks(str(place), partition.leader, end, marks)
        return found

    def _latest_ms(self) -> int:
        limit_ms = self._settings.int("penstock.guard.timestamp.max.future.ms")
        return NO_LIMIT if limit_ms < 0 else self._clock.wall_ms() + limit_ms
