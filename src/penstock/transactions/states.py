"""Defines the states of a transactional id, and the transitions between them.

    Empty ──add──► Ongoing ──end──► PrepareCommit ──markers written──► CompleteCommit ──add──► Ongoing …
                      │    └─end──► PrepareAbort ───markers written──► CompleteAbort ───add──► Ongoing …
                      └─ PrepareEpochFence ─► PrepareAbort      a new producer, or the timeout, ends it

PrepareEpochFence exists only during a decision and is never written: the record has PrepareAbort. Dead is a tombstone.
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """Lists the states of a transactional id, with the numbers that Kafka's records use."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Returns the state's name as requests and tools write it."""
        return LABELS[self]


LABELS: dict[State, str] = {state: state.name.title().replace("_", "") for state in State}
BY_LABEL: dict[str, State] = {label: state for state, label in LABELS.items()}

#: No transaction is open and no marker is to be written.
AT_REST = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
#: The outcome is decided, and markers are to be written.
DECIDED = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})

COMES_FROM: dict[State, frozenset[State]] = {
    State.EMPTY: AT_REST,
    State.ONGOING: AT_REST | {State.ONGOING},
    State.PREPARE_COMMIT: frozenset({State.ONGOING}),
    # Aborts from a state at rest: since transaction version 2 a producer may abort a transaction that it may not have
    # started.
    State.PREPARE_ABORT: AT_REST | {State.ONGOING, State.PREPARE_EPOCH_FENCE},
    State.COMPLETE_COMMIT: frozenset({State.PREPARE_COMMIT}),
    State.COMPLETE_ABORT: frozenset({State.PREPARE_ABORT}),
    State.DEAD: AT_REST,
    State.PREPARE_EPOCH_FENCE: frozenset({State.ONGOING}),
}
