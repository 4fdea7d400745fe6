"""Holds the acquisition state of one partition for one share group, on the partition's leader.

The window holds the offsets that the group has begun to deliver. Records after the window have not been fetched yet;
the delivery of records before the window is complete. Acknowledgements and releases have two steps. First `acknowledge`
or `release` returns a `Transition`, and the caller writes it to the share coordinator; its records can't be acquired
meanwhile. Then `commit` makes the transition final, or `rollback` undoes it. An expired lock changes the state in one
step.

In a group with a dead-letter topic, a record that is given up gets the state ARCHIVING first. When the share
coordinator has stored this state, `dying` returns the record. The caller writes its dead letter, and then calls
`buried`, which archives the record. No leader delivers an ARCHIVING record again, so no member can acknowledge a record
that has a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import Acknowledge
from penstock.share.acquiring import Acquiring, Wish
from penstock.share.locks import Lock, Locks, held
from penstock.share.portions import PORTION
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
from penstock.share.transitions import Reason, Transition, Undo, outcome
from penstock.share.window import NOBODY, Run, Window

AVAILABLE, ACQUIRED, PENDING = RecordState.AVAILABLE, RecordState.ACQUIRED, RecordState.PENDING
ARCHIVED, ARCHIVING, ACKNOWLEDGED = RecordState.ARCHIVED, RecordState.ARCHIVING, RecordState.ACKNOWLEDGED
DELAYED = RecordState.DELAYED
NO_BACKOFF = ShareLimits()
#: Runs of records in the same state that one call looks at: they take about 10 ms.
MAX_RUNS = 1000
#: Records of a batch that one call acquires. If a batch has more, the window does not contain the rest of it yet.
MAX_BATCH_RECORDS = 10_000


class SharePartition:
    __slots__ = ("_next_transition", "_search_from", "_unsaved", "delays", "locks", "window")

    def __init__(
        self, start_offset: int, batches: Iterable[StateBatch] = (), limits: ShareLimits = NO_BACKOFF, now_ms: int = 0
    ) -> None:
        """Restores the state that the share coordinator has stored. Offsets without a stored state become available.

        The back-offs of released records begin again, because the start of a back-off is not stored. So a record may be
        delivered later than its back-off requires, but never earlier.
        """
        self.window = Window(start_offset)
        self.locks = Locks()
        #: The back-offs of released records, one for each number of deliveries and moment.
        self.delays = Locks()
        self._search_from = start_offset
        self._next_transition = 1
        self._unsaved: list[StateBatch] = []
        for batch in sorted(batches):
            if batch.last < self.window.end:
                continue
            first, stop, count = batch.first, batch.last + 1, batch.deliveries
            self.window.append(first, AVAILABLE)
            if batch.state in (AVAILABLE, ACQUIRED, PENDING):
                self.window.append(stop, *self._retried(first, stop, count, limits, now_ms))
            else:
                self.window.append(stop, batch.state, count)
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
        deadlines = (self.locks.next_deadline(), self.delays.next_deadline())
        return min((each for each in deadlines if each is not None), default=None)

    def inspect(self) -> Iterator[tuple[Run, Lock | None]]:
        """Yields each range of records in the same state, with its lock. The lock is None if no member holds the
        records.

        Delayed records also have a lock, which ends with their back-off.
        """
        for run in self.window.runs(self.window.start, self.window.end):
            locks = self.delays if run.state == DELAYED else self.locks
            yield run, locks.by_number.get(run.owner) if run.state in (ACQUIRED, DELAYED) else None

    # --- acquiring

    def acquire(
        self, wish: Wish, fetch_offset: int, batches: Iterable[FetchedBatch], limits: ShareLimits, now_ms: int
    ) -> list[Acquired]:
        """Acquires records for a member and returns their ranges.

        The caller has read `batches` from the log at `fetch_offset`. Markers, aborted batches and offsets that are in
        no batch are archived, because they have no record to deliver.
        """
        acquiring = Acquiring(wish, limits, now_ms)
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
        """Archives the offsets in [first, stop), because they have no record to deliver. Returns False if some are
        left.

        Offsets are left if the group holds its maximum number of records, or if there are too many ranges for one call.
        """
        if first >= stop:
            return True
        window = self.window
        near = min(stop, window.reach(first, MAX_RUNS))
        for run in [run for run in window.runs(first, near) if run.state == AVAILABLE]:
            window.fill(run.first, run.stop, ARCHIVED, run.deliveries)
        if near < stop:
            return False
        if stop <= window.end:
            return True
        if window.size >= limits.max_record_locks:
            return False
        window.append(stop, ARCHIVED)
        return True

    def _acquire_batch(self, acquiring: Acquiring, first: int, batch: FetchedBatch) -> bool:
        """Acquires the available records of a batch. Returns False if the ShareFetch may not acquire more batches."""
        window, limits = self.window, acquiring.limits
        near = min(batch.last + 1, window.reach(first, MAX_RUNS))
        for run in [run for run in window.runs(first, near) if run.state == AVAILABLE]:
            if run.deliveries >= limits.max_deliveries:  # the limit was lowered
                self._give_up(run, limits, acquiring.now_ms)
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
        if near <= batch.last:
            return False
        if batch.last < fresh:
            return True
        if room <= 0 or acquiring.throttling:
            return False
        stop = min(batch.last + 1, fresh + MAX_BATCH_RECORDS)
        if acquiring.wish.mode is AcquireMode.RECORD_LIMIT:
            stop = min(stop, fresh + acquiring.left, fresh + room)
        if stop > fresh:
            window.append(stop, ACQUIRED, 1, self._lock(acquiring, fresh, stop))
            acquiring.add(fresh, stop, 1)
        return stop == batch.last + 1

    def _lock(self, acquiring: Acquiring, first: int, stop: int) -> int:
        duration_ms = acquiring.limits.lock_duration_ms
        return self.locks.take(acquiring.wish.member, first, stop, acquiring.now_ms, duration_ms).number

    # --- acknowledging

    def acknowledge(
        self, member: str, ranges: Sequence[AcknowledgedRange], limits: ShareLimits, now_ms: int
    ) -> Transition | None:
        """Applies a member's acknowledgements. Returns the state change to write; None if there is nothing to write.

        Raises KafkaError and changes nothing if the member has not acquired all of the records.
        """
        pieces = [piece for each in ranges for piece in self._pieces(member, each)]
        for (before, _), (run, _) in pairwise(pieces):
            if run.first < before.stop:
                raise _twice(run.first)
        transition = self._transition(limits)
        for run, kind in pieces:
            if kind == Acknowledge.RENEW:
                lock = self.locks.take(member, run.first, run.stop, now_ms, limits.lock_duration_ms)
                self.window.fill(run.first, run.stop, ACQUIRED, run.deliveries, lock.number)
                continue
            transition.add(run, *outcome(kind, run.deliveries, limits))
        return self._begun(transition)

    def _pieces(self, member: str, answer: AcknowledgedRange) -> Iterator[tuple[Run, int]]:
        """Splits an acknowledged range. Yields (range of records with equal state, acknowledgement type).

        Raises KafkaError if the member has not acquired all records of the range.
        """
        first, last = max(answer.first, self.window.start), answer.last
        if last < first:
            return  # acknowledged before, or deleted from the log
        if answer.last >= self.window.end:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Offset {answer.last} has not been acquired: acknowledge only acquired records.",
            )
        for run in self.window.runs(first, last + 1):
            self._check_held(member, run)
            if len(answer.types) == 1:
                yield run, answer.types[0]
                continue
            own = answer.types[run.first - answer.first : run.stop - answer.first]
            position = run.first
            for kind, some in groupby(own):
                stop = position + sum(1 for _ in some)
                yield Run(position, stop, run.state, run.deliveries, run.owner), kind
                position = stop

    def check(self, member: str, ranges: Iterable[AcknowledgedRange]) -> None:
        """Raises KafkaError unless the member may acknowledge all of these records. Does not change the state."""
        after = self.window.start
        for each in ranges:
            for run, _ in self._pieces(member, each._replace(types=each.types[:1])):
                if run.first < after:
                    raise _twice(run.first)
                after = run.stop

    def _check_held(self, member: str, run: Run) -> None:
        lock = self.locks.by_number.get(run.owner) if run.state == ACQUIRED else None
        if lock is None or lock.member != member:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                f"Member {member} does not hold offsets {run.first} to {run.stop - 1}: fetch them again.",
            )

    def abandon(self, member: str) -> None:
        """Ends a member's locks, because its session is closed. Later calls of `release` release the records."""
        self.locks.abandon(member)

    def release(self, limits: ShareLimits, most: int = PORTION) -> Transition | None:
        """Releases records of members whose sessions are closed: at most `most` ranges of records in the same state.

        As in Kafka, the last delivery of these records is not counted. Returns the state change to write; None if there
        is nothing to write. `has_due` returns True while there are more records to release.
        """
        transition = self._transition(limits, at_once=True)
        abandoned = self.locks.abandoned
        for run in held(self.window, abandoned.values(), ACQUIRED, most):
            transition.add(run, AVAILABLE, max(0, run.deliveries - 1))
        for lock in [lock for lock in abandoned.values() if lock.is_empty]:
            del abandoned[lock.number]
        return self._begun(transition)

    def has_due(self, now_ms: int) -> bool:
        """Returns True if there are records to release or locks that have expired."""
        deadline = self.next_deadline()
        return bool(self.locks.abandoned) or (deadline is not None and deadline <= now_ms)

    def operate(self, first: int, stop: int, kind: int, limits: ShareLimits) -> Transition | None:
        """Releases or archives the records in [first, stop) for an operator, no matter which member holds them.

        A released record is available immediately, and its last delivery does not count. Returns the state change to
        write; None if the records only waited for the end of a back-off. Raises KafkaError if no record can be changed,
        or if an acknowledgement of one of the records is being written.
        """
        runs = list(self.window.runs(first, stop))
        if any(run.state == PENDING for run in runs):
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE, "An acknowledgement of one of these records is being written: retry."
            )
        states = (ACQUIRED, DELAYED) if kind == Acknowledge.RELEASE else (ACQUIRED, DELAYED, AVAILABLE)
        runs = [run for run in runs if run.state in states]
        if not runs:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                f"None of these records is in flight: the group delivers offsets {self.start_offset} to "
                f"{self.end_offset - 1}.",
            )
        transition = self._transition(limits, at_once=True)
        for run in runs:
            if kind == Acknowledge.REJECT:
                owner = run.owner if run.state == ACQUIRED else NOBODY
                reason = Reason.BY_OPERATOR if limits.dead_letters else Reason.UNKNOWN
                transition.add(run._replace(owner=owner), limits.given_up, run.deliveries, reason)
            elif run.state == ACQUIRED:
                transition.add(run, AVAILABLE, max(0, run.deliveries - 1))
            else:
                self.window.fill(run.first, run.stop, AVAILABLE, run.deliveries)
                self._search_from = min(self._search_from, run.first)
        return self._begun(transition)

    def _transition(self, limits: ShareLimits, *, at_once: bool = False) -> Transition:
        transition = Transition(self._next_transition, limits, at_once)
        self._next_transition += 1
        return transition

    def _begun(self, transition: Transition) -> Transition | None:
        """Marks the records of the transition as pending, so that no lock holds them any more.

        Returns the transition; None if it changes no records.
        """
        number = transition.number
        self.window.fill_all([Run(each.first, each.stop, PENDING, each.deliveries, number) for each in transition.undo])
        return transition if transition.changes else None

    def commit(self, transition: Transition, now_ms: int) -> None:
        """Makes the state change of a transition final, after the share coordinator has stored it."""
        limits = transition.limits
        delays = limits.retry_ms > 0 and not transition.at_once
        runs = []
        for (first, last, state, count), reason in zip(transition.changes, transition.reasons):
            if delays and state == AVAILABLE:
                runs.append(Run(first, last + 1, *self._retried(first, last + 1, count, limits, now_ms)))
            else:
                runs.append(Run(first, last + 1, state, count, reason))
        self.window.fill_all(runs)
        available = next((run.first for run in runs if run.state == AVAILABLE), self._search_from)
        self._search_from = min(self._search_from, available)
        self._advance()

    def _retried(self, first: int, stop: int, count: int, limits: ShareLimits, now_ms: int) -> tuple[int, int, int]:
        """Returns the new state, delivery count and owner of released records.

        Released records are available immediately, or after a back-off.
        """
        backoff_ms = limits.backoff_ms(count)
        if not backoff_ms:
            return AVAILABLE, count, NOBODY
        return DELAYED, count, self.delays.take(str(count), first, stop, now_ms, backoff_ms).number

    def rollback(self, transition: Transition, now_ms: int) -> None:
        """Undoes a state change that could not be written. Records whose lock has expired meanwhile become available.

        Records of a closed session stay acquired until their lock expires, because an immediate retry would probably
        fail, too.
        """
        for each in transition.undo:
            lock = self.locks.by_number.get(each.lock)
            if lock is not None:
                self.window.fill(each.first, each.stop, ACQUIRED, each.deliveries, each.lock)
                lock.cover(each.first, each.stop)
            else:
                self._give_up(each, transition.limits, now_ms)
        self._advance()

    # --- time and the log

    def expire(self, limits: ShareLimits, now_ms: int, most: int = PORTION) -> list[StateBatch]:
        """Makes the records of expired locks available, or archives them if they have reached the delivery limit.

        Also makes delayed records available when their back-off has ended. Returns the changes. They take effect
        immediately, and the caller should write them.
        """
        for run in self._due(self.locks, now_ms, ACQUIRED, most):
            self._give_up(run, limits, now_ms)
        for run in self._due(self.delays, now_ms, DELAYED, most):
            self.window.fill(run.first, run.stop, AVAILABLE, run.deliveries)
            self._search_from = min(self._search_from, run.first)
        self._advance()
        return self.take_unsaved()

    def _due(self, locks: Locks, now_ms: int, state: RecordState, most: int) -> list[Run]:
        """Returns up to `most` ranges of records whose locks have expired. The next call returns further ranges."""
        due = locks.due(now_ms)
        runs = held(self.window, due, state, most)
        for lock in due:
            if not lock.is_empty:
                locks.put_back(lock)
        return runs

    def _give_up(self, run: Run | Undo, limits: ShareLimits, now_ms: int) -> None:
        """Ends a delivery that was not acknowledged.

        The records become available again, or are archived if they have reached the delivery limit.
        """
        first, stop, count = run.first, run.stop, run.deliveries
        if count >= limits.max_deliveries:
            stored = limits.given_up
            self.window.fill(first, stop, stored, count, -Reason.EXCEEDED if stored is ARCHIVING else NOBODY)
        else:
            stored = AVAILABLE
            self.window.fill(first, stop, *self._retried(first, stop, count, limits, now_ms))
            self._search_from = min(self._search_from, first)
        self._unsaved.append(StateBatch(first, stop - 1, stored, count))

    def take_unsaved(self) -> list[StateBatch]:
        """Returns the changes that have taken effect but are not written yet, and clears the list of them."""
        unsaved, self._unsaved = self._unsaved, []
        return unsaved

    # --- dead letters

    def saved(self, changes: Iterable[StateBatch]) -> None:
        """Notes that the share coordinator has stored these changes. Dead letters may now be written for the records
        that the changes archive."""
        for change in changes:
            if change.state != ARCHIVING:
                continue
            for run in list(self.window.runs(change.first, change.last + 1)):
                if run.state == ARCHIVING and run.owner < NOBODY:
                    self.window.fill(run.first, run.stop, ARCHIVING, run.deliveries, -run.owner)

    def dying(self, most: int) -> list[Run]:
        """Returns up to `most` records for which dead letters must be written now: their stored state is ARCHIVING."""
        found: list[Run] = []
        first = self.window.first_in(ARCHIVING, self.window.start)
        for run in self.window.runs(first, self.window.end) if first is not None else ():
            if run.state == ARCHIVING and run.owner >= NOBODY:
                found.append(run._replace(stop=min(run.stop, run.first + most)))
                most -= found[-1].size
            if most <= 0:
                break
        return found

    def buried(self, runs: Iterable[Run]) -> None:
        """Archives records after their dead letters have been written."""
        for buried in runs:
            for run in list(self.window.runs(buried.first, buried.stop)):
                if run.state == ARCHIVING:
                    self.window.fill(run.first, run.stop, ARCHIVED, run.deliveries)
                    self._unsaved.append(StateBatch(run.first, run.stop - 1, ARCHIVED, run.deliveries))
        self._advance()

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

    def stored(self, batches: Iterable[StateBatch]) -> Iterator[StateBatch]:
        """Yields the current state of the given records, so that the caller can write it again.

        Leaves out acquired and pending records. The window must not change during the iteration.
        """
        for batch in batches:
            for run in self.window.runs(batch.first, batch.last + 1):
                if run.state not in (ACQUIRED, PENDING):
                    state = AVAILABLE if run.state == DELAYED else run.state
                    yield StateBatch(run.first, run.stop - 1, state, run.deliveries)

    def _advance(self) -> None:
        """Moves the start offset past records that are acknowledged or archived."""
        window = self.window
        done = window.start
        if window.totals[ACKNOWLEDGED] or window.totals[ARCHIVED]:
            for run in window.runs(window.start, window.end):
                if run.state not in FINAL:
                    break
                done = run.stop
            window.drop_before(done)
        self._search_from = max(self._search_from, window.start)


def _twice(offset: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_RECORD_STATE, f"Offset {offset} is acknowledged twice: acknowledge each record once."
    )
