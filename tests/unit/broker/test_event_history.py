"""Tests the events that a node keeps: log lines, counts, the last events, and events of the quorum."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest

from penstock.broker.events import NodeEvent, kinds, log_event_as_json
from penstock.broker.events.history import MAX_EVENTS, EventHistory
from penstock.broker.events.kinds import (
    BrokerFenced,
    MajorityLost,
    MajorityRegained,
    MoveChanged,
    QuorumElected,
    QuorumRoleChanged,
    QuorumSteppedDown,
    ReplicaTruncated,
)
from penstock.broker.events.quorum_changes import QuorumChanges

EVERY_KIND = [each for each in vars(kinds).values() if isinstance(each, type) and issubclass(each, NodeEvent)]


def test_every_kind_of_event_has_its_own_name() -> None:
    names = [each.KIND for each in EVERY_KIND if each is not NodeEvent]
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("kind", [each for each in EVERY_KIND if each is not NodeEvent], ids=lambda each: each.__name__)
def test_every_kind_of_event_is_one_line_of_text_and_valid_json(kind: type[NodeEvent]) -> None:
    examples = {"int": 7, "str": "x", "bool": True, "int | None": None}
    values = [examples.get(str(each.type), ("a",)) for each in dataclasses.fields(kind)]
    event = kind(*values)
    assert str(event)
    assert "\n" not in str(event)
    assert json.loads(json.dumps(event.fields())).keys() == {each.name for each in dataclasses.fields(kind)}


def test_event_history_counts_all_events_and_keeps_only_the_newest() -> None:
    history = EventHistory(3, iter(range(10_000)).__next__)
    heard: list[int] = []
    history.listeners.append(lambda entry: heard.append(entry.number))
    for epoch in range(MAX_EVENTS + 5):
        history.observe(MajorityLost(epoch))
    assert history.counts == {"quorum.majority_lost": MAX_EVENTS + 5}
    assert len(history.entries) == MAX_EVENTS
    assert heard == list(range(1, MAX_EVENTS + 6))
    assert history.entries[0].as_json() == {
        "at_ms": 5,
        "node": 3,
        "kind": "quorum.majority_lost",
        "text": "the quorum's leader of epoch 5 resigns: a majority of the voters stopped fetching",
        "fields": {"epoch": 5},
    }


def test_an_event_can_be_logged_as_one_json_object(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "penstock.broker.events"):
        log_event_as_json(BrokerFenced(2, 5, "was silent", None, 100, 120, 7))
    assert json.loads(caplog.messages[0])["event"] == "broker.fenced"
    assert json.loads(caplog.messages[0])["partitions"] == 7
    assert caplog.records[0].levelno == logging.WARNING


def test_a_truncation_below_the_high_watermark_is_a_warning_that_names_the_lost_offsets() -> None:
    harmless, harmful = ReplicaTruncated("t-0", 4, 9, 7, 7), ReplicaTruncated("t-0", 4, 9, 5, 7)
    assert (harmless.level, harmful.level) == (logging.INFO, logging.WARNING)
    assert "lost" not in str(harmless)
    assert "lost the committed offsets 5 to 7" in str(harmful)


def test_event_of_a_failed_replica_move_is_logged_as_an_error() -> None:
    failed = MoveChanged("t-0", "/a", "/b", "failed", 10, "no space left")
    assert failed.level == logging.ERROR
    assert str(failed) == "the move of t-0 from /a to /b: failed, 10 bytes copied (no space left)"


class Quorum:
    """Sends role changes to `QuorumChanges` and collects its events, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.events: list[NodeEvent] = []
        self.changes = QuorumChanges(1, self.events.append, lambda: self.now_ms)

    def changed(
        self, role: str, epoch: int, leader: int, *, stopping: bool = False, is_voter: bool = True
    ) -> list[str]:
        self.events.clear()
        self.changes.role_changed(role, epoch, leader, stopping=stopping, is_voter=is_voter)
        return [each.KIND for each in self.events]


def test_resignation_of_a_running_quorum_leader_is_reported_as_a_lost_majority() -> None:
    quorum = Quorum()
    quorum.changed("leader", 3, 1)
    kinds = quorum.changed("resigned", 3, -1)
    assert kinds == ["quorum.majority_lost", "network.suspected", "quorum.stepped_down", "quorum.role"]
    assert QuorumSteppedDown(3, "a majority of the voters stopped fetching") in quorum.events


@pytest.mark.parametrize(("stopping", "is_voter"), [(True, True), (False, False)])
def test_resignation_of_a_stopping_or_removed_quorum_leader_is_not_reported_as_a_lost_majority(
    stopping: bool, is_voter: bool
) -> None:
    quorum = Quorum()
    quorum.changed("leader", 3, 1)
    kinds = quorum.changed("resigned", 3, -1, stopping=stopping, is_voter=is_voter)
    assert kinds == ["quorum.stepped_down", "quorum.role"]


def test_quorum_election_is_reported_with_the_time_without_a_leader() -> None:
    quorum = Quorum()
    quorum.changed("follower", 1, 2)
    quorum.now_ms = 100
    quorum.changed("prospective", 1, -1)
    quorum.now_ms = 150
    quorum.changed("candidate", 2, -1)
    quorum.now_ms = 400
    assert quorum.changed("leader", 2, 1) == ["quorum.role", "quorum.elected", "quorum.majority_regained"]
    assert QuorumElected(2, 300) in quorum.events


def test_quorum_leader_that_learns_of_a_newer_epoch_steps_down_and_reports_the_reason() -> None:
    quorum = Quorum()
    quorum.changed("leader", 3, 1)
    assert quorum.changed("follower", 5, 2) == ["quorum.stepped_down", "quorum.role"]
    assert quorum.events[0] == QuorumSteppedDown(3, "node 2 leads epoch 5")
    quorum.changed("leader", 6, 1)
    quorum.changed("unattached", 7, -1)
    assert quorum.events[0] == QuorumSteppedDown(6, "epoch 7 began")


def test_event_history_measures_the_time_without_a_quorum_leader() -> None:
    quorum = Quorum()
    assert quorum.changed("unattached", 1, -1) == ["quorum.role"]
    assert quorum.changed("follower", 1, 2) == ["quorum.role"], "the first leader is not a leader again"
    quorum.now_ms = 100
    quorum.changed("prospective", 1, -1)
    quorum.now_ms = 150
    quorum.changed("candidate", 2, -1)
    quorum.now_ms = 400
    quorum.changed("follower", 2, 3)
    assert quorum.events == [QuorumRoleChanged(1, "follower", 2, 3), MajorityRegained(2, 3, 300)]
