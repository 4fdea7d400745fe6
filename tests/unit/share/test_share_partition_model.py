"""Compares the state of a share partition with a simple model that has one entry per record."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import Acknowledge
from penstock.share.acquiring import Wish
from penstock.share.partition import SharePartition
from penstock.share.states import (
    AcknowledgedRange,
    AcquireMode,
    FetchedBatch,
    RecordState,
    ShareLimits,
    StateBatch,
)
from penstock.share.transitions import Transition

pytestmark = pytest.mark.exhaustive

MEMBERS = ("a", "b", "c")
TICK_MS = 100  # longer than the grain of locks, so that locks of different times are different
DURATION_MS = 500
FINAL = {RecordState.ACKNOWLEDGED, RecordState.ARCHIVED}


@dataclass
class Record:
    state: RecordState = RecordState.AVAILABLE
    deliveries: int = 0
    member: str | None = ""  # None once the session is closed in which the record was acquired
    since_ms: int = -1


class ShareModel(RuleBasedStateMachine):
    transitions = Bundle("transitions")

    def __init__(self) -> None:
        super().__init__()
        self.limits = ShareLimits(lock_duration_ms=DURATION_MS, max_deliveries=3, max_record_locks=30)
        self.share = SharePartition(0)
        self.now_ms = 0
        self.window: dict[int, Record] = {}
        self.start = self.end = 0
        self.log: list[FetchedBatch] = []
        self.log_end = 0
        self.finished: dict[int, RecordState] = {}
        self.stored: dict[int, tuple[RecordState, int]] = {}
        #: Changes of expired locks that are not written yet, and the records with a dead letter.
        self.unsaved: list[StateBatch] = []
        self.dead: set[int] = set()
        for size in (4, 3, 1, 6):
            self._append(size, 0, True)

    @initialize(dead_letters=st.booleans(), retry_ms=st.sampled_from((0, 0, 250)))
    def configure(self, dead_letters: bool, retry_ms: int) -> None:
        self.limits = self.limits._replace(dead_letters=dead_letters, retry_ms=retry_ms, max_retry_ms=400)

    # --- the log

    @rule(size=st.integers(1, 8), hole=st.sampled_from((0, 0, 0, 3)), deliverable=st.sampled_from((True, True, False)))
    def append(self, size: int, hole: int, deliverable: bool) -> None:
        self._append(size, hole, deliverable)

    def _append(self, size: int, hole: int, deliverable: bool) -> None:
        first = self.log_end + hole
        self.log.append(FetchedBatch(first, first + size - 1, deliverable))
        self.log_end = first + size

    @rule(back=st.integers(0, 10))
    def delete_records(self, back: int) -> None:
        offset = min(self.log_end, self.start + back)
        self.share.log_start_moved(offset)
        for each in [each for each in self.window if each < offset]:
            del self.window[each]
        self.start, self.end = max(self.start, offset), max(self.end, offset)
        self._trim()

    # --- acquiring

    @rule(
        member=st.sampled_from(MEMBERS),
        most=st.integers(1, 12),
        mode=st.sampled_from(AcquireMode),
        batches=st.integers(1, 4),
    )
    def acquire(self, member: str, most: int, mode: AcquireMode, batches: int) -> None:
        self._acquire(member, most, mode, batches)

    @rule(member=st.sampled_from(MEMBERS), times=st.integers(1, 4), batches=st.integers(1, 4))
    def deliver_in_vain(self, member: str, times: int, batches: int) -> None:
        for _ in range(times):
            self._acquire(member, 12, AcquireMode.BATCH_OPTIMIZED, batches)
            self._wait(6)
            self.states_are_equal()

    def _acquire(self, member: str, most: int, mode: AcquireMode, batches: int) -> None:
        offset = self.share.next_fetch_offset()
        assert offset == min([each for each in self.window if self._is_free(each)], default=self.end)
        fetched = [batch for batch in self.log if batch.last >= offset][:batches]
        before = {each: record.deliveries for each, record in self.window.items()}
        free_before = {each for each in self.window if self._is_free(each)}
        acquired = self.share.acquire(Wish(member, most, 3, mode), offset, fetched, self.limits, self.now_ms)
        got = [each for first, last, _ in acquired for each in range(first, last + 1)]
        assert got == sorted(set(got)), "a record was acquired twice"
        if mode is AcquireMode.RECORD_LIMIT:
            assert len(got) <= most
        held = {each for batch in fetched if batch.deliverable for each in range(batch.first, batch.last + 1)}
        assert held.issuperset(got), "an offset without a record was acquired"
        for first, last, deliveries in acquired:
            for each in range(first, last + 1):
                assert each in free_before or each >= self.end, f"{each} was not available"
                assert deliveries == before.get(each, 0) + 1 <= self.limits.max_deliveries
        self._learn(offset, got, held, member)
        if fetched and fetched[0].deliverable and fetched[0].first <= offset and self.share.can_acquire(self.limits):
            assert got or self.share.window.size >= self.limits.max_record_locks, "nothing was acquired"

    def _learn(self, offset: int, got: list[int], held: set[int], member: str) -> None:
        """Applies the result of an acquisition to the model. Only offsets without a record may be archived."""
        end = max(self.end, self.share.end_offset, max(got, default=-1) + 1)
        for each in range(self.end, end):
            self.window[each] = Record()
        self.end = end
        for each in got:
            record = self.window[each]
            record.state, record.member, record.since_ms = RecordState.ACQUIRED, member, self.now_ms
            record.deliveries += 1
        for run, _ in self.share.inspect():
            for each in range(run.first, run.stop):
                if run.state == RecordState.ARCHIVED and self.window[each].state is RecordState.AVAILABLE:
                    assert offset <= each
                    assert each not in held, f"{each} was archived, although it holds a record"
                    self.window[each].state = RecordState.ARCHIVED
        for each in range(self.start, self.share.start_offset):
            if self.window[each].state is RecordState.AVAILABLE:
                assert each not in held
                self.window[each].state = RecordState.ARCHIVED
        self._trim()

    # --- acknowledging

    @rule(
        target=transitions,
        member=st.sampled_from(MEMBERS),
        first=st.integers(-3, 20),
        held=st.sampled_from((True, True, True, False)),
        size=st.integers(1, 8),
        kinds=st.one_of(st.sampled_from(Acknowledge).map(lambda kind: [kind]), st.lists(st.sampled_from(Acknowledge))),
    )
    def acknowledge(
        self, member: str, first: int, held: bool, size: int, kinds: list[Acknowledge]
    ) -> Transition | None:
        low = max(0, self.start + first)
        mine = [
            each
            for each, record in self.window.items()
            if (record.state, record.member) == (RecordState.ACQUIRED, member)
        ]
        if held and mine:
            low = mine[first % len(mine)]
            size = next(each for each in range(1, size + 1) if each == size or low + each not in mine)
        if len(kinds) != 1:
            kinds = (kinds * size)[:size] or [Acknowledge.ACCEPT]
            size = len(kinds)
        answer = AcknowledgedRange(low, low + size - 1, tuple(kinds))
        touched = [each for each in range(low, low + size) if each >= self.start]
        expected = ErrorCode.NONE
        if touched and touched[-1] >= self.end:
            expected = ErrorCode.INVALID_REQUEST
        elif not set(mine).issuperset(touched):
            expected = ErrorCode.INVALID_RECORD_STATE
        try:
            transition = self.share.acknowledge(member, [answer], self.limits, self.now_ms)
            code = ErrorCode.NONE
        except KafkaError as error:
            transition, code = None, error.code
        assert code is expected
        if code is not ErrorCode.NONE:
            return None
        for each in touched:
            kind = kinds[0] if len(kinds) == 1 else kinds[each - low]
            if kind is Acknowledge.RENEW:
                self.window[each].since_ms = self.now_ms
            else:
                self.window[each].state = RecordState.PENDING
        return transition

    @rule(target=transitions, member=st.sampled_from(MEMBERS))
    def close_session(self, member: str) -> Transition | None:
        self.share.abandon(member)
        transition = self.share.release(self.limits)
        assert not self.share.locks.abandoned
        mine = [each for each in self.window.values() if (each.state, each.member) == (RecordState.ACQUIRED, member)]
        assert bool(mine) == (transition is not None)
        for change in transition.changes if transition is not None else ():
            for each in range(change.first, change.last + 1):
                assert change.deliveries == self.window[each].deliveries - 1, "the delivery counts"
        for record in mine:
            record.state = RecordState.PENDING
        for record in self.window.values():
            record.member = None if record.member == member else record.member
        return transition

    @rule(
        target=transitions,
        first=st.integers(0, 20),
        size=st.integers(1, 8),
        kind=st.sampled_from((Acknowledge.RELEASE, Acknowledge.REJECT)),
    )
    def operate(self, first: int, size: int, kind: Acknowledge) -> Transition | None:
        low = self.start + first
        touched = {each: self.window[each] for each in range(low, low + size) if each in self.window}
        states = {RecordState.ACQUIRED, RecordState.DELAYED}
        if kind is Acknowledge.REJECT:
            states.add(RecordState.AVAILABLE)
        changed = {each: record for each, record in touched.items() if record.state in states}
        refused = not changed or any(record.state is RecordState.PENDING for record in touched.values())
        if refused:
            with pytest.raises(KafkaError) as told:
                self.share.operate(low, low + size, kind, self.limits)
            assert told.value.code is ErrorCode.INVALID_RECORD_STATE
            return None
        transition = self.share.operate(low, low + size, kind, self.limits)
        for record in changed.values():
            if kind is Acknowledge.RELEASE and record.state is RecordState.DELAYED:
                record.state = RecordState.AVAILABLE
                continue
            if record.state is not RecordState.ACQUIRED:
                record.since_ms = -DURATION_MS - 1  # no lock: if the write fails, the record is not held
            record.state = RecordState.PENDING
        return transition

    @rule(transition=consumes(transitions))
    def written(self, transition: Transition | None) -> None:
        if transition is None:
            return
        expected = self.share.after(transition.changes)
        self.share.commit(transition, self.now_ms)
        assert (self.share.start_offset, self.share.complete_count) == expected
        for change in transition.changes:
            for each in range(change.first, change.last + 1):
                record = self.window.get(each)
                if record is None:
                    continue  # deleted from the log meanwhile
                assert record.state is RecordState.PENDING
                state = RecordState(change.state)
                if state is RecordState.AVAILABLE:
                    assert change.deliveries < self.limits.max_deliveries
                record.state, record.deliveries, record.member = state, change.deliveries, ""
                if state is RecordState.AVAILABLE and not transition.at_once:
                    self._release(record)
                self.stored[each] = (state, change.deliveries)
        self._trim()

    @rule(transition=consumes(transitions))
    def write_failed(self, transition: Transition | None) -> None:
        if transition is None:
            return
        self.share.rollback(transition, self.now_ms)
        for change in transition.changes:
            for each in range(change.first, change.last + 1):
                record = self.window.get(each)
                if record is not None:
                    assert record.state is RecordState.PENDING
                    record.state = RecordState.ACQUIRED
                    if self._is_over(record):
                        self._give_up(record)
        self._keep(self.share.take_unsaved())
        self._trim()

    def _keep(self, changes: list[StateBatch]) -> None:
        """Stores changes that take effect at once. Changes to ARCHIVING are stored later, by `save`."""
        for change in changes:
            if change.state == RecordState.ARCHIVING:
                self.unsaved.append(change)
                continue
            for each in range(change.first, change.last + 1):
                self.stored[each] = (RecordState(change.state), change.deliveries)

    # --- dead letters

    @rule()
    def save(self) -> None:
        changes, self.unsaved = list(self.share.stored(self.unsaved)), []
        for change in changes:
            for each in range(change.first, change.last + 1):
                self.stored[each] = (RecordState(change.state), change.deliveries)
        self.share.saved(changes)

    @rule(most=st.integers(1, 9))
    def bury(self, most: int) -> None:
        runs = self.share.dying(most)
        found = [each for run in runs for each in range(run.first, run.stop)]
        assert len(found) <= most
        can = [each for each, record in self.window.items() if record.state is RecordState.ARCHIVING]
        can = [each for each in can if self.stored.get(each, (None,))[0] is RecordState.ARCHIVING]
        assert found == sorted(can)[:most], "a dead letter is written after the state that leads to it"
        self.dead.update(found)
        self.share.buried(runs)
        for each in found:
            self.window[each].state = RecordState.ARCHIVED
        self._keep(self.share.take_unsaved())
        self._trim()

    # --- time

    @rule(ticks=st.sampled_from((1, 3, 6, 6)))
    def wait(self, ticks: int) -> None:
        self._wait(ticks)

    def _wait(self, ticks: int) -> None:
        self.now_ms += ticks * TICK_MS
        changes = self.share.expire(self.limits, self.now_ms)
        expected = {
            each: record
            for each, record in self.window.items()
            if record.state is RecordState.ACQUIRED and self._is_over(record)
        }
        assert {each for change in changes for each in range(change.first, change.last + 1)} == expected.keys()
        for record in expected.values():
            self._give_up(record)
        for record in self.window.values():
            backoff_ms = self.limits.backoff_ms(record.deliveries)
            if record.state is RecordState.DELAYED and self.now_ms > record.since_ms + backoff_ms:
                record.state = RecordState.AVAILABLE
        self._keep(changes)
        self._trim()

    @rule()
    def change_leader(self) -> None:
        """Changes the leader. The new leader has the stored state: acknowledged and archived records keep their state.

        All other records are available.
        """
        batches = [
            StateBatch(each, each, state, deliveries)
            for each, (state, deliveries) in self.stored.items()
            if each >= self.start
        ]
        if any(record.state is RecordState.PENDING for record in self.window.values()):
            return  # its transitions would have to be dropped; another step writes them first
        self.unsaved = []
        self.share = SharePartition(self.start, batches, self.limits, self.now_ms)
        self.window = {}
        self.end = max([self.start, *(batch.last + 1 for batch in batches)])
        for each in range(self.start, self.end):
            state, deliveries = self.stored.get(each, (RecordState.AVAILABLE, 0))
            self.window[each] = Record(state, deliveries)
            if state is RecordState.AVAILABLE:
                self._release(self.window[each])
        self._trim()

    # --- the model

    def _is_free(self, offset: int) -> bool:
        return self.window[offset].state is RecordState.AVAILABLE

    def _is_over(self, record: Record) -> bool:
        return self.now_ms > record.since_ms + DURATION_MS

    def _give_up(self, record: Record) -> None:
        over = record.deliveries >= self.limits.max_deliveries
        record.state, record.member = self.limits.given_up, ""
        if not over:
            self._release(record)

    def _release(self, record: Record) -> None:
        delayed = self.limits.backoff_ms(record.deliveries) > 0
        record.state = RecordState.DELAYED if delayed else RecordState.AVAILABLE
        record.since_ms = self.now_ms

    def _trim(self) -> None:
        while self.start < self.end and self.window[self.start].state in FINAL:
            self.finished[self.start] = self.window.pop(self.start).state
            self.start += 1

    @invariant()
    def states_are_equal(self) -> None:
        assert (self.share.start_offset, self.share.end_offset) == (self.start, self.end)
        found = {}
        for run, lock in self.share.inspect():
            for each in range(run.first, run.stop):
                holder = lock.member if lock is not None and run.state == RecordState.ACQUIRED else None
                found[each] = (run.state, run.deliveries, holder)
        expected = {
            each: (
                record.state,
                record.deliveries,
                record.member if record.state is RecordState.ACQUIRED else None,
            )
            for each, record in self.window.items()
        }
        assert found == expected
        assert self.share.complete_count == sum(record.state in FINAL for record in self.window.values())

    @invariant()
    def a_record_with_a_dead_letter_is_not_delivered_again(self) -> None:
        states = {self.window[each].state for each in self.dead if each in self.window}
        assert states <= {RecordState.ARCHIVING, RecordState.ARCHIVED}

    @invariant()
    def a_final_state_stays(self) -> None:
        for each, record in self.window.items():
            if each in self.finished:
                raise AssertionError(f"offset {each} changed from a final state to {record.state.name}")


TestShareModel = pytest.mark.filterwarnings("ignore")(ShareModel.TestCase)
TestShareModel.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)
