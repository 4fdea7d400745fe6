"""Starts and stops the parts of the guard on one node, and emits the guard's events.

The guard searches for replicas that serve damaged or wrong records. This node's suspicions about other nodes are sent
to the controller with its heartbeats.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.events.kinds import GuardFinding
from penstock.broker.guard.claim_watch import ClaimWatch
from penstock.broker.guard.examiner import Examiner
from penstock.broker.guard.judge import Judge
from penstock.broker.guard.probe import Probe
from penstock.broker.guard.repairs import Repairs
from penstock.broker.guard.scrubber import Scrubber
from penstock.broker.tasks import Tasks
from penstock.guard.findings import NOBODY, Finding, Kind

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller import Controller
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.controlplane.suspicions import Suspicions
    from penstock.broker.events import Observer
    from penstock.broker.guard.examiner import Examination, Key
    from penstock.broker.peers.peers import Peers
    from penstock.broker.replicas.partitions import Partitions
    from penstock.clock import Clock
    from penstock.log.manager import LogManager
    from penstock.metadata.configs.settings import Settings

#: A finding that is made again within this time gets no further event.
REPEAT_S = 600.0
#: Findings remembered to leave out repeated events; beyond, the oldest is forgotten.
MAX_REMEMBERED = 1000


class Guard:
    """Examines the replicas of this node. Create it on every node where `penstock.guard.enable` is true."""

    def __init__(
        self,
        node_id: int,
        settings: Settings,
        clock: Clock,
        *,
        logs: LogManager,
        partitions: Partitions,
        peers: Peers,
        metadata: MetadataLog,
        controller: Controller,
        suspicions: Suspicions,
        beat_now: Callable[[], None],
        observer: Observer,
    ) -> None:
        """Creates the guard. `beat_now` sends a heartbeat to the controller at once, with the new suspicions."""
        self.suspicions = suspicions
        self._beat_now = beat_now
        self._partitions = partitions
        self._observer = observer
        self._reported: dict[tuple[Kind, int, str, bool], float] = {}
        self._tasks = Tasks()
        #: Findings of this node by kind, repeated ones included.
        self.findings: Counter[Kind] = Counter()
        self.examiner = Examiner(
            Probe(peers, self._login_failed),
            settings,
            clock,
            image=lambda: metadata.image,
            in_thread=logs.environment.disk.run,
        )
        self.judge = Judge(
            self.examiner,
            settings,
            controller=controller,
            metadata=metadata,
            report=lambda finding: self.report(finding, confirmed=True),
            observer=observer,
        )
        self.repairs = Repairs(node_id, partitions, self.examiner, settings, logs=logs, observer=observer)
        self.scrubber = Scrubber(node_id, partitions, self.examiner, settings, self._examined)
        self._watch = ClaimWatch(node_id, partitions, self.examiner, settings, self._claimed)

    def start(self) -> None:
        self.judge.start()
        self._tasks.start(self.scrubber.run(), "compare replicas")
        self._tasks.start(self._watch.run(), "check claims of replicas")

    async def close(self) -> None:
        await self.judge.close()
        await self._tasks.close()

    def corruption_found(self, topic: str, index: int) -> None:
        """Schedules an examination of the partition, because a damaged batch was read from this node's replica."""
        partition = self._partitions.find(topic, index)
        if partition is not None:
            self.scrubber.visit_soon((partition.topic_id, partition.index))

    # --- findings

    async def _examined(self, key: Key, examination: Examination) -> None:
        for finding in examination.findings:
            self._claimed(key, finding)
        await self.repairs.repair(key, examination)

    def _claimed(self, key: Key, finding: Finding) -> None:
        if finding.kind is not Kind.EPOCH:  # this node's metadata may be old: only the controller knows the last epoch
            self.report(finding)
        if finding.accused != NOBODY and self.suspicions.add(finding.accused, *key, finding.offset):
            self._beat_now()

    def _login_failed(self, node_id: int, reason: str) -> None:
        self.report(Finding(Kind.AUTHENTICATION, node_id, "", -1, reason))

    def report(self, finding: Finding, *, confirmed: bool = False) -> None:
        """Emits the event of a finding, unless an event for the same finding was emitted a short time ago."""
        self.findings[finding.kind] += 1
        now = asyncio.get_running_loop().time()
        key = (*finding.subject, confirmed)
        if now - self._reported.get(key, -REPEAT_S) < REPEAT_S:
            return
        self._reported.pop(key, None)
        if len(self._reported) >= MAX_REMEMBERED:
            del self._reported[next(iter(self._reported))]
        self._reported[key] = now
        self._observer(
            GuardFinding(
                finding.kind.value, finding.accused, finding.partition, finding.offset, finding.evidence, confirmed
            )
        )
