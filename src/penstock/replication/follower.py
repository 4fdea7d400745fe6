"""Decides how a follower reacts to its leader's answers. The caller passes offsets and epochs, and carries out the
returned step.

Two logs diverge after an unclean election, or if the old leader wrote records that the new leader had not fetched. The
leader's answer then names an epoch that both logs may have, and the end of this epoch in the leader's log (KIP-101). If
the follower's log lacks this epoch, the follower truncates its log to the end of the last earlier epoch in the log, and
fetches again (KIP-279). It repeats this until both logs agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import NO_LEADER_EPOCH

UNDEFINED = -1
FIRST_PAUSE_MS = 10


class Answer(Enum):
    """Names the next step of a follower after a Fetch response without an error for its partition."""

    APPEND = "append"
    TRUNCATE = "truncate"
    STALE = "stale"


def answer(asked: int, log_end: int, diverging_epoch: int, diverging_end: int) -> Answer:
    """Returns the follower's next step after a Fetch response.

    `asked` is the offset that the Fetch asked for. `log_end` is the current end of the follower's log.
    """
    if asked != log_end:
        return Answer.STALE  # the answer to an earlier request, perhaps to this leader in an earlier epoch
    if diverging_epoch != NO_LEADER_EPOCH or diverging_end != UNDEFINED:
        return Answer.TRUNCATE
    return Answer.APPEND


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tells the follower to truncate its log to `offset`. `done` is False if the next fetch may require another
    truncation."""

    offset: int
    done: bool


def truncation(
    leader_epoch: int, leader_end: int, own_epoch: int, own_epoch_end: int, log_end: int, high_watermark: int
) -> Truncate:
    """Returns how to truncate the follower's log if, in the leader's log, `leader_epoch` ends at `leader_end`.

    `own_epoch` is the follower's largest epoch that is not above `leader_epoch`. `own_epoch_end` is the end of that
    epoch in the follower's log. Both are -1 if the follower's log has no such epoch.
    """
    if leader_end == UNDEFINED:
        return Truncate(min(high_watermark, log_end), True)  # no shared epoch: keep only the committed records
    if leader_epoch == UNDEFINED or own_epoch_end == UNDEFINED:
        return Truncate(min(leader_end, log_end), True)
    if own_epoch != leader_epoch:
        return Truncate(min(own_epoch_end, log_end), False)
    return Truncate(min(own_epoch_end, leader_end, log_end), True)


class ResetKind(Enum):
    TRUNCATE = "truncate"
    START_OVER = "start over"
    STAY = "stay"


@dataclass(frozen=True, slots=True)
class Reset:
    kind: ResetKind
    offset: int


def reset(log_end: int, leader_start: int, leader_end: int) -> Reset:
    """Decides how the follower continues after OFFSET_OUT_OF_RANGE: the leader's log does not contain the follower's
    log end.
    """
    if leader_end < log_end:
        return Reset(ResetKind.TRUNCATE, leader_end)
    if leader_start > log_end:
        return Reset(ResetKind.START_OVER, leader_start)
    return Reset(ResetKind.STAY, log_end)


class Trouble(Enum):
    """Groups fetch errors by the way in which the follower recovers."""

    OUT_OF_RANGE = "out of range"
    SOON = "soon"  # the leader or this follower has not received the latest metadata yet
    LATER = "later"


_SOON = frozenset(
    {
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)


def trouble(code: ErrorCode) -> Trouble:
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        return Trouble.OUT_OF_RANGE
    return Trouble.SOON if code in _SOON else Trouble.LATER


def is_final(code: ErrorCode) -> bool:
    """Returns True for an error in the follower's own log that a retry cannot solve: a failed disk or a closed log."""
    return code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def pause_ms(kind: Trouble, failures: int, backoff_ms: int) -> int:
    """Returns the pause before the next fetch. It is short at first, because elections take milliseconds, and grows up
    to `replica.fetch.backoff.ms`.
    """
    if kind is Trouble.SOON:
        return min(backoff_ms, FIRST_PAUSE_MS << min(failures, 20))
    return backoff_ms
