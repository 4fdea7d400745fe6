"""Lists planted bugs of moves between log directories."""

from __future__ import annotations

from typing import Any

from penstock.broker.replicas import replica_move
from penstock.log import appending
from penstock.log.future_log import FutureLog
from penstock.log.producers import ProducerStateManager
from penstock.log.segment import Segment
from penstock.replication.directory_move import Bounds, Step, StepKind


def _swapped_early(old: Any) -> Any:
    def copy_tail(self: FutureLog, max_bytes: int) -> bool:
        log = self.log
        if self.cut_at is not None or self.records_left > 3:
            return bool(old(self, max_bytes))
        self.current.log_end_offset = log.log_end_offset  # what the copy lacks is forgotten
        return True

    return copy_tail


def _epochs_forgotten(old: Any) -> Any:
    def hand_over_state(self: FutureLog) -> None:
        old(self)
        self.log.epochs.clear()

    return hand_over_state


def _producers_forgotten(old: Any) -> Any:
    def hand_over_state(self: FutureLog) -> None:
        old(self)
        end = self.log.log_end_offset
        self.log.producers = ProducerStateManager()
        self.log.producers.clear(end)

    return hand_over_state


def _aborted_not_copied(old: Any) -> Any:
    def account_run(log: Any, segment: Segment, run: list[Any]) -> None:
        if not log.path.endswith("-future"):
            old(log, segment, run)
            return
        append, Segment.append_aborted = Segment.append_aborted, lambda *_: None  # type: ignore[method-assign]
        try:
            old(log, segment, run)
        finally:
            Segment.append_aborted = append  # type: ignore[method-assign]

    return account_run


def _copy_not_synced(old: Any) -> Any:
    async def make_durable(self: FutureLog) -> None:
        log, durability = self.log, self.log.durability
        for segment in log.segments:
            segment.synced_size = segment.size
        durability.recovery_point = durability.flushed_offset = log.log_end_offset
        await old(self)

    return make_durable


def _not_truncated(old: Any) -> Any:
    def next_step(current: Bounds, future: Bounds, cut_at: int | None = None) -> Step:
        step: Step = old(current, future, None)  # the truncation is forgotten if the log has grown again
        return Step(StepKind.NOTHING, current.end) if step.kind is StepKind.TRUNCATE else step

    return next_step


def _never_cut(old: Any) -> Any:
    def note_truncation(self: FutureLog, offset: int) -> None:
        """Planted bug: does not truncate the copy when the current log is truncated."""

    return note_truncation


#: name → (about, profile, replacements, number of machines)
MOVE_BUGS: dict[str, tuple[str, str, tuple[tuple[Any, str, Any], ...], int]] = {
    "swap-before-caught-up": (
        "a copy replaces the log before it has the last records",
        "moves",
        ((FutureLog, "copy_tail", _swapped_early),),
        1,
    ),
    "epochs-not-moved": (
        "a moved log has no leader epochs",
        "moves",
        ((FutureLog, "hand_over_state", _epochs_forgotten),),
        1,
    ),
    "producers-not-moved": (
        "a moved log has forgotten its producers: a retried batch is written twice",
        "moves",
        ((FutureLog, "hand_over_state", _producers_forgotten),),
        1,
    ),
    "aborted-not-moved": (
        "the transaction index is not copied: records of aborted transactions are visible after a move",
        "moves",
        ((appending, "account_run", _aborted_not_copied),),
        1,
    ),
    "old-log-removed-before-sync": (
        "the old log is removed although its copy is not on disk",
        "moves",
        ((FutureLog, "make_durable", _copy_not_synced),),
        1,
    ),
    "copy-not-truncated": (
        "a copy keeps records that were truncated from the log that it copies",
        "moves",
        ((replica_move, "next_step", _not_truncated), (FutureLog, "note_truncation", _never_cut)),
        3,
    ),
}

#: Bug → a seed that finds it, and the length of that run in seconds.
MOVE_BUGS_FOUND_BY: dict[str, tuple[int, float]] = {
    "swap-before-caught-up": (1, 25),
    "epochs-not-moved": (1, 25),
    "producers-not-moved": (2, 25),
    "aborted-not-moved": (1, 25),
    "old-log-removed-before-sync": (2, 25),
    "copy-not-truncated": (10, 25),
}
