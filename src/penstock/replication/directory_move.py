"""Decides the steps of a replica's move to another log directory of its node (KIP-113).

    REQUESTED ──► COPYING ◄──► CAUGHT_UP ──► SWAPPING ──► DONE
        └────────────┴────────────┴─────────────┴──────► FAILED
        └────────────┴────────────┴────────────────────► CANCELLED

A future log in the target directory gets the batches of the current log until it has caught up. Then the broker reports
the new directory to the controller, and the future log becomes the current log. A swap can't be cancelled: it ends as
DONE or FAILED. The broker copies, renames and reports; this module uses no file and no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from penstock.protocol.errors import ErrorCode

#: Limits of the tail.
MIN_TAIL_BYTES, MAX_TAIL_BYTES = 1024, 256 * 1024
#: A name of a directory may have this many bytes, as in Kafka.
MAX_NAME_BYTES = 255
#: Length of the time over which the rate of a copy is averaged.
RATE_SECONDS = 10.0
SAMPLE_SECONDS = 0.25


class MoveState(Enum):
    REQUESTED = "requested"
    COPYING = "copying"
    CAUGHT_UP = "caught up"
    SWAPPING = "swapping"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class MoveEvent(Enum):
    STARTED = "a copier is free"
    REACHED = "the future log lacks at most the tail"
    BEHIND = "the future log lacks more than the tail"
    CONFIRMED = "the controller has the new directory, and the copied records are on disk"
    SWAPPED = "the future log has become the current log"
    FAILED = "a step failed"
    CANCELLED = "an administrator cancelled or replaced the move, or the replica is removed"


TRANSITIONS: dict[tuple[MoveState, MoveEvent], MoveState] = {
    (MoveState.REQUESTED, MoveEvent.STARTED): MoveState.COPYING,
    (MoveState.COPYING, MoveEvent.REACHED): MoveState.CAUGHT_UP,
    (MoveState.CAUGHT_UP, MoveEvent.BEHIND): MoveState.COPYING,
    (MoveState.CAUGHT_UP, MoveEvent.CONFIRMED): MoveState.SWAPPING,
    (MoveState.SWAPPING, MoveEvent.SWAPPED): MoveState.DONE,
    **{
        (state, MoveEvent.FAILED): MoveState.FAILED
        for state in (MoveState.REQUESTED, MoveState.COPYING, MoveState.CAUGHT_UP, MoveState.SWAPPING)
    },
    **{
        (state, MoveEvent.CANCELLED): MoveState.CANCELLED
        for state in (MoveState.REQUESTED, MoveState.COPYING, MoveState.CAUGHT_UP)
    },
}


def after(state: MoveState, event: MoveEvent) -> MoveState:
    """Returns the state after an event. Raises ValueError if the event is impossible in this state."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ValueError(f"a move in the state {state.value!r} can't have the event {event.value!r}") from None


# Requests.


class Action(Enum):
    """Names the action that the broker takes after a request to move a replica."""

    NOTHING = "nothing"
    REMEMBER = "create the replica in this directory once it is assigned"
    START = "start the move"
    REPLACE = "cancel the move under way, then start the new move"
    CANCEL = "cancel the move under way"


@dataclass(frozen=True, slots=True)
class Replica:
    """Describes a replica at the time of a request to move it. Directories are canonical paths."""

    directory: str
    offline: bool = False
    moves_to: str | None = None
    swapping: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    error: ErrorCode = ErrorCode.NONE


def decide(
    target: str | None, target_offline: bool, replica: Replica | None, future_name_bytes: int, *, exists: bool = True
) -> Decision:
    """Decides on a request to move a replica. Returns the action or Kafka's error code; the checks have Kafka's order.

    `target` is None if no directory of this node has the requested path. `exists` is False if the metadata has no such
    partition. `replica` is None if this node has no replica of the partition; the broker then remembers the request,
    because the replica may be created on this node later.
    """
    if future_name_bytes > MAX_NAME_BYTES:
        return Decision(Action.NOTHING, ErrorCode.INVALID_TOPIC_EXCEPTION)
    if target is None:
        return Decision(Action.NOTHING, ErrorCode.LOG_DIR_NOT_FOUND)
    if target_offline or (replica is not None and replica.offline):
        return Decision(Action.NOTHING, ErrorCode.KAFKA_STORAGE_ERROR)
    if replica is None:
        code = ErrorCode.REPLICA_NOT_AVAILABLE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return Decision(Action.REMEMBER, code)
    if replica.moves_to == target:
        return Decision(Action.NOTHING)
    if replica.swapping:  # ends within moments and can't be undone: the client asks again, as after any disk trouble
        return Decision(Action.NOTHING, ErrorCode.KAFKA_STORAGE_ERROR)
    if replica.directory == target:
        return Decision(Action.NOTHING if replica.moves_to is None else Action.CANCEL)
    return Decision(Action.START if replica.moves_to is None else Action.REPLACE)


# Copying.


def tail_bytes(log_bytes: int) -> int:
    """Returns how many bytes the future log may lack when the swap begins.

    `log_bytes` is the size of the current log. The swap copies these last bytes while no other task runs, so they must
    be few.
    """
    return min(MAX_TAIL_BYTES, max(MIN_TAIL_BYTES, log_bytes // 4))


class StepKind(Enum):
    TRUNCATE = "truncate"
    START_OVER = "start over"
    ADVANCE_START = "advance the start"
    COPY = "copy"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Step:
    """Describes the next change of the future log, such as a truncation to `offset` or a copy from `offset` on."""

    kind: StepKind
    offset: int


@dataclass(frozen=True, slots=True)
class Bounds:
    start: int
    end: int


def next_step(current: Bounds, future: Bounds, cut_at: int | None = None) -> Step:
    """Returns the next change that brings the future log closer to the current log; NOTHING if both logs have the same
    start and end.

    `cut_at` is the lowest offset to which the current log was truncated since the copy began. From this offset on, the
    records of the future log may differ from the current log, even if the current log has grown again.
    """
    cut = current.end if cut_at is None else min(cut_at, current.end)
    if future.end > max(cut, future.start):
        return Step(StepKind.TRUNCATE, max(cut, future.start))
    if future.end > cut or not future.start <= current.start <= future.end:
        return Step(StepKind.START_OVER, current.start)
    if current.start > future.start:
        return Step(StepKind.ADVANCE_START, current.start)
    if future.end < current.end:
        return Step(StepKind.COPY, future.end)
    return Step(StepKind.NOTHING, current.end)


# Progress.


@dataclass(slots=True)
class CopyRate:
    """Measures the bytes per second that a move has copied in the last seconds."""

    _samples: deque[tuple[float, int]] = field(default_factory=deque)
    copied: int = 0

    def add(self, size: int, now_s: float) -> None:
        samples = self._samples
        if not samples:
            samples.append((now_s, self.copied))
        self.copied += size
        if len(samples) > 1 and now_s - samples[-2][0] < SAMPLE_SECONDS:
            samples.pop()
        samples.append((now_s, self.copied))
        while len(samples) > 2 and samples[1][0] <= now_s - RATE_SECONDS:
            samples.popleft()

    def per_second(self, now_s: float) -> float:
        """Returns the bytes per second copied recently; 0.0 before the first copy."""
        if not self._samples:
            return 0.0
        began, before = self._samples[0]
        return (self.copied - before) / max(now_s - began, 0.001)


@dataclass(frozen=True, slots=True)
class MoveFigures:
    """Holds the progress of one move, for DescribeLogDirs, metrics, the console and the command line."""

    topic: str
    partition: int
    source: str
    target: str
    state: MoveState
    copied_bytes: int
    bytes_left: int
    records_left: int
    bytes_per_second: float
    #: The reason of a failure or cancellation; empty otherwise.
    reason: str = ""

    @property
    def seconds_left(self) -> float | None:
        """Returns the estimated time until the copy has caught up; None if nothing is being copied."""
        if not self.bytes_left:
            return 0.0
        return self.bytes_left / self.bytes_per_second if self.bytes_per_second > 0 else None
