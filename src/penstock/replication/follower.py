"""What a follower does with what its leader says. Offsets and epochs in, a step out; the shell takes it.

Logs part where an unclean leader, or one that nobody followed far enough, wrote what others never got. The leader
tells the last epoch that both may share and where it ended there (KIP-101); a follower that doesn't know that epoch
goes back to the end of its own largest one below and asks again (KIP-279), until both agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.protocol.errors import ErrorCode

UNDEFINED = -1
FIRST_PAUSE_MS = 10


@dataclass(frozen=True, slots=True)
class Truncate:
    """Drop everything from `offset` on. `done`: else the next fetch will tell whether more has to go."""

    offset: int
    done: bool


def truncation(
    leader_epoch: int, leader_end: int, own_epoch: int, own_epoch_end: int, log_end: int, high_watermark: int
) -> Truncate:
    """The leader's `leader_epoch` ends at `leader_end`; here the largest epoch up to it is `own_epoch`, and it ends at
    `own_epoch_end` (-1, -1 if there is none so small).
    """
    if leader_end == UNDEFINED:
        return Truncate(min(high_watermark, log_end), True)  # it knows nothing of ours: only what is committed stays
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
    """Our offset is not in the leader's log."""
    if leader_end < log_end:
        return Reset(ResetKind.TRUNCATE, leader_end)
    if leader_start > log_end:
        return Reset(ResetKind.START_OVER, leader_start)
    return Reset(ResetKind.STAY, log_end)


class Trouble(Enum):
    """Kinds of errors by what helps."""

    OUT_OF_RANGE = "out of range"
    SOON = "soon"  # the other side hasn't heard yet what we have, or we not yet what it has
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


def pause_ms(kind: Trouble, failures: int, backoff_ms: int) -> int:
    """Leaders change within milliseconds, so the first pauses are short; `replica.fetch.backoff.ms` is the longest."""
    if kind is Trouble.SOON:
        return min(backoff_ms, FIRST_PAUSE_MS << min(failures, 20))
    return backoff_ms
