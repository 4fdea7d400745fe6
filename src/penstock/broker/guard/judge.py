"""Runs the guard on the active controller: examines suspected replicas, and puts faulty nodes in quarantine.

A suspicion of a broker only names the partition to examine. The controller asks the replicas itself and counts only its
own findings, so a node can't bring another node into quarantine by false reports. Nor can a node keep the controller
busy with them: each sender has a quota, senders take turns, and the suspicions of a node in quarantine are ignored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.broker.events.kinds import QuarantineRefused
from penstock.broker.tasks import RepeatedRequest
from penstock.guard.findings import NOBODY, Finding
from penstock.guard.ledger import Ledger
from penstock.metadata.controller.quarantine import quarantine_broker
from penstock.metadata.quarantine import quarantine_reason, quarantined
from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller import Controller
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.events import Observer
    from penstock.broker.guard.examiner import Examiner
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage
    from penstock.protocol.messages.api_63_broker_heartbeat import Suspicion

logger = logging.getLogger(__name__)

#: Suspicions of one sender that wait for an examination; more are dropped, and the sender sends them again.
MAX_OF_SENDER = 32
MAX_SENDERS = 200
#: A refused quarantine of a node gets no further event for this time.
REFUSAL_REPEAT_S = 600.0


#: A broker id, and the host that sent its heartbeat: another host that uses the id does not use up its quota.
Sender = tuple[int, str]
#: Accused node, topic id, partition and offset.
Subject = tuple[int, bytes, int, int]


class Judge:
    def __init__(
        self,
        examiner: Examiner,
        settings: Settings,
        *,
        controller: Controller,
        metadata: MetadataLog,
        report: Callable[[Finding], None],
        observer: Observer,
    ) -> None:
        """Creates the controller's part of the guard. `report` emits the event of a confirmed finding."""
        self._examiner = examiner
        self._settings = settings
        self._controller = controller
        self._metadata = metadata
        self._report = report
        self._observer = observer
        #: The suspicions of each sender in the order of their arrival. The sender whose turn is next is the first one.
        self._waiting: dict[Sender, dict[Subject, None]] = {}
        self._examinations = RepeatedRequest("examine suspicions", self._is_waiting, self._examine_next)
        self._refused_at: dict[int, float] = {}
        self.ledger = Ledger(self._threshold, settings.int("penstock.guard.window.ms"))

    @property
    def _threshold(self) -> int:
        return self._settings.int("penstock.guard.quarantine.threshold")

    def start(self) -> None:
        self._controller.on_suspicions = self.hear
        self._metadata.watch_leadership(self._leadership_changed)
        self._metadata.subscribe(self._apply)

    async def close(self) -> None:
        self._controller.on_suspicions = None
        await self._examinations.close()

    def hear(self, sender: Sender, suspicions: Sequence[Suspicion]) -> None:
        """Queues the suspicions that a broker has sent with its heartbeat. A task examines one suspicion at a time.

        Ignores the suspicions if the quarantine threshold is 0: then no node is put in quarantine.
        """
        if not suspicions or not self._threshold or self._is_quarantined(sender[0]):
            return
        if sender not in self._waiting and len(self._waiting) >= MAX_SENDERS:
            return
        waiting = self._waiting.setdefault(sender, {})
        for each in suspicions:
            if len(waiting) < MAX_OF_SENDER:
                waiting[each.node_id, each.topic_id, each.partition, each.offset] = None
        if self._is_waiting():
            self._examinations.start()

    def _leadership_changed(self, leads: bool) -> None:
        """Drops all queued suspicions and counted findings, because each active controller counts only its own.

        Called when this node becomes the active controller, and when its time as controller ends.
        """
        self._waiting.clear()
        self.ledger = Ledger(self._threshold, self._settings.int("penstock.guard.window.ms"))

    def _apply(self, old: MetadataImage, new: MetadataImage) -> None:
        if new.configs is old.configs:
            return
        for node_id in quarantined(old).keys() - quarantined(new).keys():
            self.ledger.forget(node_id)

    def _is_waiting(self) -> bool:
        return bool(self._waiting) and self._controller.active and not self._examinations.closed

    async def _examine_next(self) -> bool:
        accused, topic_id, partition, offset = self._take_next()
        found = self._examiner.find((topic_id, partition))
        if found is None or accused not in found[1].replicas or self._is_quarantined(accused):
            return True
        nodes = (accused,) if self._examiner.is_compacted(found[0].topic) else ()
        examination = await self._examiner.confirmed((topic_id, partition), max(0, offset), nodes)
        for finding in () if examination is None else examination.findings:
            if finding.accused != NOBODY and self._controller.active and not self._is_quarantined(finding.accused):
                await self._count(finding)
        return True

    def _take_next(self) -> Subject:
        """Removes the next suspicion from the queues of all senders and returns it. The senders take turns."""
        sender = next(iter(self._waiting))
        subject = next(iter(self._waiting[sender]))
        self._waiting[sender] = self._waiting.pop(sender)  # its next turn is after all others
        for each in self._waiting.values():
            each.pop(subject, None)
        self._waiting = {sender: waiting for sender, waiting in self._waiting.items() if waiting}
        return subject

    def _is_quarantined(self, node_id: int) -> bool:
        return quarantine_reason(self._metadata.image, node_id) is not None

    async def _count(self, finding: Finding) -> None:
        now = asyncio.get_running_loop().time()
        self._report(finding)
        self.ledger.threshold = self._threshold
        if self.ledger.enter(finding, int(now * 1000)):
            await self._quarantine(finding, now)

    async def _quarantine(self, finding: Finding, now: float) -> None:
        node_id, rules = finding.accused, self._controller.rules
        count = self.ledger.count(node_id, int(now * 1000))
        last = f"{finding.kind.value} ({finding.partition} at offset {finding.offset}): {finding.evidence}"
        reason = f"{count} confirmed findings, the last one {last}"
        try:
            refusal = await self._metadata.submit(lambda image: quarantine_broker(image, node_id, reason, rules))
        except KafkaError as error:
            logger.info("node %d could not be put in quarantine now: %s", node_id, error.message)
            return
        if refusal is not None and now - self._refused_at.get(node_id, -REFUSAL_REPEAT_S) >= REFUSAL_REPEAT_S:
            self._refused_at[node_id] = now
            self._observer(QuarantineRefused(node_id, refusal))
