"""Tests the guard on the active controller: only findings of its own examinations count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from penstock.broker.events import NodeEvent
from penstock.broker.events.kinds import QuarantineRefused
from penstock.broker.guard.examiner import Examination
from penstock.broker.guard.judge import MAX_OF_SENDER, MAX_SENDERS, Judge
from penstock.broker.guard.probe import Place
from penstock.guard.comparison import Comparison
from penstock.guard.findings import NOBODY, Finding, Kind
from penstock.metadata.configs.settings import Settings
from penstock.metadata.controller.partition_change import Rules
from penstock.metadata.decision import Decision
from penstock.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionImage
from penstock.metadata.quarantine import QUARANTINED
from penstock.protocol.messages.api_63_broker_heartbeat import Suspicion
from penstock.protocol.vocabulary import ResourceType

ID = bytes(range(16))
WHOLE = PartitionImage((1, 2, 3), (1, 2, 3), 1)


class Observed:
    """Replaces the examiner: every examination returns the findings that the test gives."""

    def __init__(self, *findings: Finding) -> None:
        self.findings = findings
        self.asked: list[tuple[Any, int]] = []

    def find(self, key: Any) -> Any:
        return Place("t", key[0], key[1], 0), WHOLE

    def is_compacted(self, topic: str) -> bool:
        return False

    async def confirmed(self, key: Any, offset: int, nodes: Any = ()) -> Examination:
        self.asked.append((key, offset))
        return Examination(Comparison(offset, offset), self.findings, 0)


class Court:
    """Runs the controller's part of the guard with a metadata log that counts the requested quarantines."""

    def __init__(self, examiner: Observed, threshold: int = 1) -> None:
        self.controller = SimpleNamespace(active=True, rules=Rules(), on_suspicions=None)
        self.submitted = 0
        self.reported: list[Finding] = []
        self.events: list[NodeEvent] = []
        self.image = EMPTY_IMAGE
        settings = Settings({"node.id": "1", "penstock.guard.quarantine.threshold": str(threshold)})
        self.judge = Judge(
            examiner,  # type: ignore[arg-type]
            settings,
            controller=self.controller,  # type: ignore[arg-type]
            metadata=self,  # type: ignore[arg-type]
            report=self.reported.append,
            observer=self.events.append,
        )

    async def submit(self, decide: Callable[[MetadataImage], Decision[Any]]) -> Any:
        self.submitted += 1
        return decide(self.image).reply

    def hear(self, *suspicions: Suspicion, sender: int = 1) -> None:
        self.hear_all(((sender, "h"), suspicions))

    def hear_all(self, *heartbeats: tuple[tuple[int, str], Sequence[Suspicion]]) -> None:
        async def work() -> None:
            for sender, suspicions in heartbeats:
                self.judge.hear(sender, suspicions)
            for _ in range(20 * sum(len(each) for _, each in heartbeats)):
                await asyncio.sleep(0)
            await self.judge.close()

        asyncio.run(work())


def suspicion(partition: int = 0, *, node_id: int = 2, offset: int = 0) -> Suspicion:
    return Suspicion(node_id=node_id, topic_id=ID, partition=partition, offset=offset)


def finding(accused: int = 2, kind: Kind = Kind.CONTENT) -> Finding:
    return Finding(kind, accused, "t-0", 0, "evidence")


def test_suspicion_has_no_effect_if_the_examination_by_the_controller_finds_nothing() -> None:
    court = Court(Observed())
    court.hear(suspicion())
    assert (court.reported, court.submitted) == ([], 0)


def test_controller_requests_a_quarantine_when_its_findings_reach_the_threshold() -> None:
    court = Court(Observed(finding()))
    court.hear(suspicion())
    assert court.reported == [finding()]
    assert court.submitted == 1
    assert court.events == [QuarantineRefused(2, "broker 2 is not registered")]


def test_controller_reports_findings_below_the_threshold_but_requests_no_quarantine() -> None:
    court = Court(Observed(finding()), threshold=2)
    court.hear(suspicion())
    assert (court.reported, court.submitted) == ([finding()], 0)


def test_finding_without_an_accused_node_does_not_count_towards_a_quarantine() -> None:
    court = Court(Observed(finding(NOBODY)))
    court.hear(suspicion())
    assert (court.reported, court.submitted) == ([], 0)


def test_finding_counts_against_the_node_that_the_controller_found_wrong_even_if_another_node_was_suspected() -> None:
    court = Court(Observed(finding(3)))
    court.hear(suspicion(node_id=2))
    assert [each.accused for each in court.reported] == [3]
    assert court.judge.ledger.count(2, 0) == 0


def test_suspicion_against_a_node_without_a_replica_of_the_partition_is_not_examined() -> None:
    observed = Observed(finding())
    Court(observed).hear(suspicion(node_id=9))
    assert observed.asked == []


def test_suspicion_is_not_examined_if_the_quarantine_threshold_is_zero() -> None:
    observed = Observed(finding())
    Court(observed, threshold=0).hear(suspicion())
    assert observed.asked == []


def test_inactive_controller_does_not_examine_suspicions() -> None:
    observed = Observed(finding())
    court = Court(observed)
    court.controller.active = False
    court.hear(suspicion())
    assert observed.asked == []


def test_controller_queues_a_limited_number_of_suspicions_per_sender_and_each_suspicion_once() -> None:
    observed = Observed()
    many = [suspicion(partition) for partition in range(MAX_OF_SENDER + 50)]
    Court(observed).hear(*many, *many)
    assert len(observed.asked) == MAX_OF_SENDER


def test_broker_that_sends_many_suspicions_does_not_delay_suspicions_of_other_brokers() -> None:
    observed = Observed()
    many = [suspicion(partition) for partition in range(MAX_OF_SENDER)]
    heartbeats = [((3, "h3"), many), ((1, "h3"), many), ((1, "h1"), [suspicion(100), suspicion(101)])]
    Court(observed).hear_all(*heartbeats)
    examined = [key[1] for key, _ in observed.asked]
    assert (examined.index(100), examined.index(101)) == (2, 5)
    assert len(examined) == MAX_OF_SENDER + 2


def test_controller_queues_suspicions_of_a_limited_number_of_senders() -> None:
    observed = Observed()
    Court(observed).hear_all(*(((number, "h"), [suspicion(number)]) for number in range(MAX_SENDERS + 50)))
    assert len(observed.asked) == MAX_SENDERS


def test_controller_ignores_suspicions_from_a_node_in_quarantine() -> None:
    observed = Observed(finding())
    court = Court(observed)
    configs = {QUARANTINED: "it lies"}
    court.image = replace(court.image, configs={(ResourceType.BROKER, "3"): configs})
    court.hear(suspicion(), sender=3)
    assert observed.asked == []
    Court(observed).hear(suspicion(), sender=3)
    assert len(observed.asked) == 1


def test_a_suspicion_with_a_negative_offset_is_examined_at_offset_0() -> None:
    observed = Observed()
    Court(observed).hear(suspicion(offset=-1))
    assert observed.asked == [((ID, 0), 0)]
