"""Defines `Transition`, a change of acquired records that is being written, and the reasons to give up a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from penstock.protocol.vocabulary import Acknowledge
from penstock.share.states import RecordState, ShareLimits, StateBatch
from penstock.share.window import NOBODY, Run


class Reason(IntEnum):
    """Lists the reasons for which a record is given up.

    The window stores the reason in the owner field of an archiving record, because such a record has no owner.
    """

    UNKNOWN = NOBODY  # the record was given up under an earlier leader
    REJECTED = 1
    EXCEEDED = 2
    BY_OPERATOR = 3


class Undo(NamedTuple):
    first: int
    stop: int
    deliveries: int
    lock: int


@dataclass(slots=True)
class Transition:
    """Holds a change of acquired records to a new state, while the new state is being written to the share
    coordinator."""

    number: int
    limits: ShareLimits
    at_once: bool = False  # True if released records are available without a back-off
    changes: list[StateBatch] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)  # one for each change
    undo: list[Undo] = field(default_factory=list)

    def add(self, run: Run, state: RecordState, count: int, reason: Reason = Reason.UNKNOWN) -> None:
        """Adds the state change of one range of acquired records.

        Joins the change with the previous change if both are equal and their records are adjacent.
        """
        undo, changes = self.undo, self.changes
        if undo and undo[-1].stop == run.first and undo[-1][2:] == (run.deliveries, run.owner):
            undo[-1] = Undo(undo[-1].first, run.stop, run.deliveries, run.owner)
        else:
            undo.append(Undo(run.first, run.stop, run.deliveries, run.owner))
        adjacent = bool(changes) and changes[-1].last == run.first - 1 and self.reasons[-1] is reason
        if adjacent and changes[-1][2:] == (state, count):
            changes[-1] = StateBatch(changes[-1].first, run.stop - 1, state, count)
        else:
            changes.append(StateBatch(run.first, run.stop - 1, state, count))
            self.reasons.append(reason)


def outcome(kind: int, deliveries: int, limits: ShareLimits) -> tuple[RecordState, int, Reason]:
    """Returns the new state of an acknowledged record, its delivery count, and the reason if the record is given up."""
    match kind:
        case Acknowledge.ACCEPT:
            return RecordState.ACKNOWLEDGED, deliveries, Reason.UNKNOWN
        case Acknowledge.REJECT:
            return limits.given_up, deliveries, Reason.REJECTED if limits.dead_letters else Reason.UNKNOWN
        case Acknowledge.RELEASE if deliveries < limits.max_deliveries:
            return RecordState.AVAILABLE, deliveries, Reason.UNKNOWN
        case Acknowledge.RELEASE:
            return limits.given_up, deliveries, Reason.EXCEEDED if limits.dead_letters else Reason.UNKNOWN
        case _:
            return RecordState.ARCHIVED, deliveries, Reason.UNKNOWN  # a gap: there is no record at this offset
