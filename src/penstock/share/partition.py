"""Holds the acquisition state of one partition for one share group, on the partition's leader.

The window holds the offsets that the group has begun to deliver. Records after the window have not been fetched yet;
the delivery of records before the window is complete. Acknowledgements and releases have two steps. First `acknowledge`
or `release` returns a `Transition`, and the caller writes it to the share coordinator; its records can't be acquired
meanwhile. Then `commit` makes the transition final, or `rollback` undoes it. An expired lock changes the state in one
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import NamedTuple

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import Acknowledge
from penstock.share.locks import Lock, Locks
from penstock.share.states import (
    FINAL,
    AcknowledgedRange,
    Acquired,
    AcquireMode,
    FetchedBatch,
    RecordState,
    ShareLimits,
    StateBatch,
)
from penstock.share.window import NOBODY, Run, Window

AVAILABLE, ACQUIRED, PENDING = RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.PENDING
ARCHIVED, ACKNOWLEDGED = RecordState.ARCHIVED, RecordState.ACKNOWLEDGED
_RESULT = {
    Acknowledge.GAP: ARCHIVED,
    Acknowledge.ACCEPT: ACKNOWLEDGED,
    Acknowledge.RELEASE: AVAILABLE,
    Acknowledge.REJECT: ARCHIVED,
}


class _Undo(NamedTuple):
    first: int
    stop: int
    deliveries: int
    lock: int


@dataclass(slots=True)
class Transition:
    """A change of acquired records to a new state, while the new state is being written to the share coordinator."""

    number: int
    changes: list[StateBatch] = field(default_factory=list)
    undo: list[_Undo] = field(default_factory=list)
    max_deliveries: int = 0

    def add(self, run: Run, state: RecordState, count: int) -> None:
        """Adds the state change of one run of acquired records.

        Joins it with the previous run if both are adjacent and equal.
        """
        undo, changes = self.undo, self.changes
        if undo and undo[-1].stop == run.first and undo[-1][2:] == (run.deliveries, run.owner):
            undo[-1] = _Undo(undo[-1].first, run.stop, run.deliveries, run.owner)
        else:
            undo.append(_Undo(run.first, run.stop, run.deliveries, run.owner))
        if changes and changes[-1].last == run.first - 1 and changes[-1][2:] == (state, count):
            changes[-1] = StateBatch(changes[-1].first, run.stop - 1, state, count)
        else:
            changes.append(StateBatch(run.first, run.stop - 1, state, count))


class Wish(NamedTuple):
    """Holds the member that fetches, and the limits of its ShareFetch for one partition."""

    member: str
    max_records: int
    batch_size: int = 500
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class SharePartition:
    __slots__ = ("_next_transition", "_search_from", "locks", "window")

    def __init__(self, start_offset: int, batches: Iterable[StateBatch] = ()) -> None:
        """Restores the state that the share coordinator has stored. Offsets without a stored state become available."""
        self.window = Window(start_offset)
        self.locks = Locks()
        self._search_from = start_offset
        self._next_transition = 1
        for batch in sorted(batches):
            if batch.last < self.window.end:
                continue
            self.window.append(batch.first, AVAILABLE)
            state = AVAILABLE if batch.state in (ACQUIRED, PENDING) else batch.state
            self.window.append(batch.last + 1, state, batch.deliveries)
        self._advance()

    # --- what the state is

    @property
    def start_offset(self) -> int:
        return self.window.start

    @property
    def end_offset(self) -> int:
        """Returns the end of the window: the offset after the last record that the group has begun to deliver."""
        return self.window.end

    @property
    def complete_count(self) -> int:
        """Returns the number of records in the window that are acknowledged or archived."""
        return self.window.totals[ACKNOWLEDGED] + self.window.totals[ARCHIVED]

    def next_fetch_offset(self) -> int:
        found = self.window.first_in(AVAILABLE, self._search_from)
        if found is None:
            self._search_from = self.window.end
            return self.window.end
        self._search_from = found
        return found

    def can_acquire(self, limits: ShareLimits) -> bool:
        return self.window.totals[AVAILABLE] > 0 or self.window.size < limits.max_record_locks

    def next_deadline(self) -> int | None:
        return self.locks.next_deadline()

    def inspect(self) -> Iterator[tuple[Run, Lock | None]]:
        """Yields all runs of the window (ranges of records in the same state), and the lock of each acquired run."""
        for run in self.window.runs(self.window.start, self.window.end):
            yield run, self.locks.by_number.get(run.owner) if run.state == ACQUIRED else None

    # --- acquiring

    def acquire(
        self, wish: Wish, fetch_offset: int, batches: Iterable[FetchedBatch], limits: ShareLimits, now_ms: int
    ) -> list[Acquired]:
        """Acquires records from the batches, which the caller has read from the log at `fetch_offset`.

        Archives markers, aborted batches and offsets that are in no batch, because they have no record to deliver.
        """
        acquiring = _Acquiring(wish, limits, now_ms)
        position = max(fetch_offset, self.window.start)
        if position > self.window.end:
            return []  # the batches were read before the state was restored
        for batch in batches:
            if batch.last < position:
                continue
            if acquiring.done or not self._skip(position, batch.first, limits):
                break
            position = max(position, batch.first)
            if not batch.deliverable:
                if not self._skip(position, batch.last + 1, limits):
                    break
            elif not self._acquire_batch(acquiring, position, batch):
                break
            position = batch.last + 1
        self._advance()
        return acquiring.ranges

    def _skip(self, first: int, stop: int, limits: ShareLimits) -> bool:
        """Archives offsets without a record to deliver. Returns False if the window is full."""
        if first >= stop:
            return True
        window = self.window
        for run in [run for run in window.runs(first, stop) if run.state == AVAILABLE]:
            window.fill(run.first, run.stop, ARCHIVED, run.deliveries)
        if stop <= window.end:
            return True
        if window.size >= limits.max_record_locks:
            return False
        window.append(stop, ARCHIVED)
        return True

    def _acquire_batch(self, acquiring: _Acquiring, first: int, batch: FetchedBatch) -> bool:
        """Acquires the available records of a batch. Returns False if the ShareFetch may not acquire more batches."""
        window, limits = self.window, acquiring.limits
        for run in [run for run in window.runs(first, batch.last + 1) if run.state == AVAILABLE]:
            if run.deliveries >= limits.max_deliveries:  # the limit was lowered
                window.fill(run.first, run.stop, ARCHIVED, run.deliveries)
                continue
            size = acquiring.portion(run, batch.last - batch.first + 1)
            if size:
                lock = self._lock(acquiring, run.first, run.first + size)
                window.fill(run.first, run.first + size, ACQUIRED, run.deliveries + 1, lock)
                acquiring.add(run.first, run.first + size, run.deliveries + 1)
            if size < run.size or acquiring.stopped:
                acquiring.stopped = True
                return False
        fresh = max(first, window.end)
        room = limits.max_record_locks - window.size
        if batch.last < fresh:
            return True
        if room <= 0 or acquiring.throttling:
            return False
        stop = batch.last + 1
        if acquiring.wish.mode is AcquireMode.RECORD_LIMIT:
            stop = min(stop, fresh + acquiring.left, fresh + room)
        if stop > fresh:
            window.append(stop, ACQUIRED, 1, self._lock(acquiring, fresh, stop))
            acquiring.add(fresh, stop, 1)
        return stop == batch.last + 1

    def _lock(self, acquiring: _Acquiring, first: int, stop: int) -> int:
        duration_ms = acquiring.limits.lock_duration_ms
        return self.locks.take(acquiring.wish.member, first, stop, acquiring.now_ms, duration_ms).number

    # --- acknowledging

    def acknowledge(
        self, member: str, ranges: Sequence[AcknowledgedRange], limits: ShareLimits, now_ms: int
    ) -> Transition | None:
        """Applies a member's acknowledgements. Returns the transition to write; None if there is nothing to write.

        Raises KafkaError and changes nothing if the member has not acquired all of the records.
        """
        pieces = [piece for each in ranges for piece in self._pieces(member, each)]
        for (before, _), (run, _) in pairwise(pieces):
            if run.first < before.stop:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD_STATE, f"Offset {run.first} is answered twice: answer each record once."
                )
        transition = self._transition(limits)
        for run, kind in pieces:
            if kind == Acknowledge.RENEW:
                lock = self.locks.take(member, run.first, run.stop, now_ms, limits.lock_duration_ms)
                self.window.fill(run.first, run.stop, ACQUIRED, run.deliveries, lock.number)
                continue
            state = _RESULT[Acknowledge(kind)]
            if state is AVAILABLE and run.deliveries >= limits.max_deliveries:
                state = ARCHIVED
            transition.add(run, state, run.deliveries)
        return self._begun(transition)

    def _pieces(self, member: str, answer: AcknowledgedRange) -> Iterator[tuple[Run, int]]:
        """Splits an acknowledged range. Yields (run of acquired records, acknowledgement type).

        Raises KafkaError if the member has not acquired all records of the range.
        """
        first, last = max(answer.first, self.window.start), answer.last
        if last < first:
            return  # done before, or deleted from the log
        if answer.last >= self.window.end:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Offset {answer.last} has not been acquired: acknowledge acquired records."
            )
        for run in self.window.runs(first, last + 1):
            lock = self.locks.by_number.get(run.owner) if run.state == ACQUIRED else None
            if lock is None or lock.member != member:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD_STATE,
                    f"Member {member} does not hold offsets {run.first} to {run.stop - 1}: fetch them again.",
                )
            if len(answer.types) == 1:
                yield run, answer.types[0]
                continue
            own = answer.types[run.first - answer.first : run.stop - answer.first]
            position = run.first
            for kind, some in groupby(own):
                stop = position + sum(1 for _ in some)
                yield Run(position, stop, run.state, run.deliveries, run.owner), kind
                position = stop

    def release(self, member: str, limits: ShareLimits) -> Transition | None:
        """Releases all records that a member has acquired. Their last delivery is not counted, as in Kafka.

        Returns the transition to write; None if the member has acquired no records.
        """
        transition = self._transition(limits)
        for run in self._held(self.locks.held_by(member)):
            transition.add(run, AVAILABLE, max(0, run.deliveries - 1))
        return self._begun(transition)

    def _held(self, locks: Iterable[Lock]) -> list[Run]:
        """Returns the records that the locks hold, in the order of their offsets."""
        by_number = {lock.number: lock for lock in locks}
        if not by_number:
            return []
        first = min(lock.first for lock in by_number.values())
        stop = max(lock.stop for lock in by_number.values())
        return [run for run in self.window.runs(first, stop) if run.state == ACQUIRED and run.owner in by_number]

    def _transition(self, limits: ShareLimits) -> Transition:
        transition = Transition(self._next_transition, max_deliveries=limits.max_deliveries)
        self._next_transition += 1
        return transition

    def _begun(self, transition: Transition) -> Transition | None:
        """Marks the records of a transition as pending, so that their locks no longer hold them.

        Returns the transition; None if it has no records.
        """
        number = transition.number
        self.window.fill_all([Run(each.first, each.stop, PENDING, each.deliveries, number) for each in transition.undo])
        return transition if transition.changes else None

    def commit(self, transition: Transition) -> None:
        """Makes a transition final, after the share coordinator has stored it."""
        changes = transition.changes
        self.window.fill_all([Run(each.first, each.last + 1, each.state, each.deliveries, NOBODY) for each in changes])
        available = next((each.first for each in changes if each.state == AVAILABLE), self._search_from)
        self._search_from = min(self._search_from, available)
        self._advance()

    def rollback(self, transition: Transition) -> None:
        """Undoes a transition that could not be written. Records whose lock has expired meanwhile become available."""
        for each in transition.undo:
            if each.lock in self.locks.by_number:
                self.window.fill(each.first, each.stop, ACQUIRED, each.deliveries, each.lock)
            else:
                self._give_up(each.first, each.stop, each.deliveries, transition.max_deliveries)
        self._advance()

    # --- time and the log

    def expire(self, limits: ShareLimits, now_ms: int) -> list[StateBatch]:
        """Makes the records of expired locks available, or archives them after their last delivery.

        Returns the changes. They take effect at once, and the caller should write them.
        """
        changes = []
        for run in self._held(self.locks.due(now_ms)):
            state = self._give_up(run.first, run.stop, run.deliveries, limits.max_deliveries)
            changes.append(StateBatch(run.first, run.stop - 1, state, run.deliveries))
        self._advance()
        return changes

    def _give_up(self, first: int, stop: int, count: int, max_deliveries: int) -> RecordState:
        state = ARCHIVED if count >= max_deliveries else AVAILABLE
        self.window.fill(first, stop, state, count)
        if state is AVAILABLE:
            self._search_from = min(self._search_from, first)
        return state

    def log_start_moved(self, offset: int) -> None:
        """Drops the records before the new log start offset from the window, because they were deleted from the log."""
        self.window.drop_before(offset)
        self._advance()

    def after(self, changes: Sequence[StateBatch]) -> tuple[int, int]:
        """Returns the start offset and the number of complete records that the window will have after the changes."""
        start = self.window.start
        ends = {
            max(change.first, start): change.last + 1
            for change in changes
            if change.state in FINAL and change.last >= start
        }
        complete = self.complete_count + sum(stop - first for first, stop in ends.items())
        for run in self.window.runs(start, self.window.end):
            if run.state in FINAL:
                start = max(start, run.stop)
            while start < run.stop and start in ends:
                start = ends[start]
            if start < run.stop:
                break
        return start, complete - (start - self.window.start)

    def stored(self, batches: Iterable[StateBatch]) -> list[StateBatch]:
        """Returns the current state of the given records, so that the caller can write it again.

        Leaves out acquired and pending records.
        """
        return [
            StateBatch(run.first, run.stop - 1, run.state, run.deliveries)
            for batch in batches
            for run in self.window.runs(batch.first, batch.last + 1)
            if run.state not in (ACQUIRED, PENDING)
        ]

    def _advance(self) -> None:
        """Moves the start of the window past records that are acknowledged or archived."""
        window = self.window
        done = window.start
        if window.totals[ACKNOWLEDGED] or window.totals[ARCHIVED]:
            for run in window.runs(window.start, window.end):
                if run.state not in FINAL:
                    break
                done = run.stop
            window.drop_before(done)
        self._search_from = max(self._search_from, window.start)


class _Acquiring:
    """Holds the progress of one ShareFetch: the acquired records, and how many more it may acquire."""

    __slots__ = ("limits", "now_ms", "ranges", "stopped", "taken", "throttling", "wish")

    def __init__(self, wish: Wish, limits: ShareLimits, now_ms: int) -> None:
        self.wish = wish
        self.limits = limits
        self.now_ms = now_ms
        self.ranges: list[Acquired] = []
        self.taken = 0
        self.stopped = False
        self.throttling = False

    @property
    def left(self) -> int:
        return self.wish.max_records - self.taken

    @property
    def done(self) -> bool:
        return self.stopped or self.left <= 0

    def portion(self, run: Run, batch_size: int) -> int:
        """Returns how many records of an available run this ShareFetch may acquire."""
        limits = self.limits
        size = run.size if self.wish.mode is AcquireMode.BATCH_OPTIMIZED else min(run.size, self.left)
        if run.deliveries < limits.throttled_from:
            return size
        if self.taken:
            return 0  # delivered later, apart from other records
        self.throttling = True
        alone = limits.max_deliveries > 2 and run.deliveries == limits.max_deliveries - 1
        most = 1 if alone else max(1, batch_size >> (run.deliveries - limits.throttled_from + 1))
        if most <= size:
            self.stopped = True
        return min(size, most)

    def add(self, first: int, stop: int, count: int) -> None:
        self.taken += stop - first
        last = self.ranges[-1] if self.ranges else None
        if (
            last is not None
            and last.last == first - 1
            and last.deliveries == count
            and first - last.first < self.wish.batch_size
        ):
            self.ranges[-1] = Acquired(last.first, stop - 1, count)
        else:
            self.ranges.append(Acquired(first, stop - 1, count))
