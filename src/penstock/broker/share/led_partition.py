"""Leads one partition of one share group: keeps its acquisition state, runs its timer, and writes its changes.

Only one write is in flight at a time. Acknowledgements that arrive meanwhile go together into the next write. If a
write fails, its acknowledgements are rolled back, and the members get an error. When a lock expires, its records are
released or archived at once; if the write of this change fails, a later write contains the change. A separate task
writes dead letters, after the share coordinator has stored which records are given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from penstock.broker.share.burial import Burial, DeadLetters
from penstock.broker.share.share_figures import ShareFigures
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.share.acquiring import Wish
from penstock.share.partition import SharePartition
from penstock.share.portions import PORTION, portions
from penstock.share.state_requests import UNKNOWN_EPOCH, Write
from penstock.share.states import AcknowledgedRange, Acquired, FetchedBatch, RecordState, StateBatch
from penstock.share.stored_state import UNKNOWN_OFFSET
from penstock.share.transitions import Transition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.broker.coordinators.share_persister import SharePersister
    from penstock.broker.replicas.partition import Partition
    from penstock.log.log import Log
    from penstock.share.group_settings import Reset, ShareSettings
    from penstock.share.state_journal import ShareKey
    from penstock.share.states import ShareLimits
    from penstock.share.window import Run

logger = logging.getLogger(__name__)

REWRITE_SECONDS = 1.0  # pause after a failed write of changes without a waiting member
MAX_UNSAVED = 10_000  # changes by expired locks that wait to be written
#: The error code that a member gets for an error of the share coordinator.
_TO_MEMBER = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_OUT_OF_RANGE: ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.KAFKA_STORAGE_ERROR,
    # The group coordinator has not created the state yet, or has deleted it.
    ErrorCode.INVALID_REQUEST: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
FENCED = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH})


class Waiter(Protocol):
    def wake(self) -> None:
        """Makes the waiting ShareFetch try again, because records may have become available."""
        ...


class LedSharePartition:
    def __init__(
        self,
        key: ShareKey,
        partition: Partition,
        persister: SharePersister,
        settings: Callable[[], ShareSettings],
        dead_letters: DeadLetters,
        *,
        figures: ShareFigures,
        wall_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        turn: Callable[[], Awaitable[None]],
        closed: Callable[[LedSharePartition], None],
    ) -> None:
        """Creates the share partition. It calls `closed` once, when it drops its state.

        `settings` returns the group's settings. A long change is applied in portions of a limited size. `turn` is
        awaited between two portions, so that other requests are served.
        """
        self.key = key
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state: SharePartition | None = None
        #: Why the state can't be used; None while it loads or is in use.
        self.failure: KafkaError | None = None
        #: True while a fetch reads records from the disk, to acquire them afterwards.
        self.busy = False
        self.waiters: dict[Waiter, None] = {}
        self._persister = persister
        self._settings = settings
        self.burial = Burial(self, dead_letters, figures=figures, spawn=spawn)
        self._figures = figures
        self._wall_ms = wall_ms
        self._spawn = spawn
        self._turn = turn
        self._closed = closed
        self._state_epoch = 0
        self._queue: list[tuple[Transition, asyncio.Future[None]]] = []
        self._unsaved: list[StateBatch] = []
        self._writing = False
        self._ending = False
        self._retiring = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = -1

    # --- loading and closing

    def load(self) -> None:
        self._spawn(self._load())

    async def _load(self) -> None:
        try:
            await self._turn()  # a session may begin with thousands of partitions
            read = await self._persister.read(self.key, self.leader_epoch)
            await self._turn()
            log = self.partition.leader_log(self.leader_epoch)
            start = read.start_offset
            if start == UNKNOWN_OFFSET:
                start = await _start_offset(log, self._settings().reset, self._wall_ms())
                # The choice is written before the first delivery: the next leader must not choose again, because
                # "latest" would then skip the records between the two choices.
                await self._persister.write(self.key, Write(read.state_epoch, self.leader_epoch, start, 0, ()))
            log = self.partition.leader_log(self.leader_epoch)
        except KafkaError as error:
            logger.info("%s: the state for share group %s can't be loaded: %s", self.partition, self.key.group, error)
            self.close(error)
            return
        if self.failure is not None:
            return  # closed meanwhile
        self._state_epoch = read.state_epoch
        self.state = SharePartition(start, read.batches, self.limits, self.now_ms)
        self.state.log_start_moved(log.log_start_offset)
        self._arm()
        self.burial.start()
        self.wake()

    async def verify(self) -> None:
        """Drops this state if the share coordinator's state was deleted, created again or altered after the load.

        Raises KafkaError if the share coordinator does not answer.
        """
        state = self.state
        if state is None:
            return  # the state is loading, or is closed
        stored = await self._persister.summary(self.key, self.leader_epoch)
        # A state that was created again has no leader epoch until a leader reads it.
        if self.state is state and (stored.leader_epoch == UNKNOWN_EPOCH or stored.state_epoch != self._state_epoch):
            self.close(KafkaError(ErrorCode.FENCED_STATE_EPOCH, "The group's state was replaced: fetch again."))

    def close(self, error: KafkaError) -> None:
        """Drops the state. Waiting members get the error.

        Called when the partition has left this node, when a newer leader or altered offsets have fenced the state, or
        when the state could not be loaded.
        """
        if self.failure is not None:
            return
        code = _TO_MEMBER.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR)
        self.failure = KafkaError(code, error.message)
        self.state = None
        if self._timer is not None:
            self._timer.cancel()
        queue, self._queue = self._queue, []
        for _, future in queue:
            _fail(future, self.failure)
        self._closed(self)
        self.wake()

    def retire(self) -> None:
        """Drops the state once all changes and dead letters are written, because the group has no session on this node.

        The next member loads the state again, and so sees offsets that were altered meanwhile.
        """
        self._retiring = True
        busy = self._writing or self._ending or self.burial.running
        if not busy and not self._queue and not self._unsaved:
            self.close(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "The share group left this node: fetch again."))

    def keep(self) -> None:
        """Cancels an earlier `retire`, because the group has a session on this node again."""
        self._retiring = False

    def wake(self) -> None:
        for waiter in tuple(self.waiters):
            waiter.wake()

    # --- requests

    @property
    def limits(self) -> ShareLimits:
        settings = self._settings()
        if settings.dead_letter_topic and settings.dead_letter_topic == self.partition.topic:
            return settings.limits._replace(dead_letters=False)  # a dead letter has no dead letter in the same topic
        return settings.limits

    @property
    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def ready(self) -> SharePartition | None:
        """Returns the acquisition state; None while it is loading. Raises KafkaError if it can't be used."""
        if self.failure is not None:
            raise KafkaError(self.failure.code, self.failure.message)
        if self.state is not None:
            self.state.log_start_moved(self.partition.leader_log(self.leader_epoch).log_start_offset)
        return self.state

    def acquire(self, wish: Wish, fetch_offset: int, batches: Iterable[FetchedBatch]) -> list[Acquired]:
        assert self.state is not None
        acquired = self.state.acquire(wish, fetch_offset, batches, self.limits, self.now_ms)
        self._figures.deliveries += sum(last - first + 1 for first, last, _ in acquired)
        self._keep(self.state.take_unsaved())
        self._arm()
        return acquired

    async def acknowledge(
        self, member: str, ranges: Sequence[AcknowledgedRange], turn: Callable[[], Awaitable[None]]
    ) -> list[asyncio.Future[None]]:
        """Applies a member's acknowledgements, in portions of a limited size. Awaits `turn` after each portion.

        Returns futures that are done once the acknowledgements are written. All acknowledgements are checked before the
        first is applied, and KafkaError is raised if one is refused. If a lock expires or the state is dropped between
        two portions, KafkaError is raised after some acknowledgements were applied.
        """
        state = self._in_use()
        parts = portions(state.window, ranges)
        first, second = next(parts, []), next(parts, None)
        if second is None:
            return self.apply(member, first)
        for part in portions(state.window, ranges):
            self._in_use().check(member, part)
            await turn()
        written = []
        for part in portions(state.window, ranges):
            written += self.apply(member, part)
            await turn()
        return written

    def apply(self, member: str, ranges: Sequence[AcknowledgedRange]) -> list[asyncio.Future[None]]:
        """Applies some of a member's acknowledgements in one call. Returns a future for each write that they need."""
        transition = self._in_use().acknowledge(member, ranges, self.limits, self.now_ms)
        self._arm()
        return [] if transition is None else [self._submit(transition)]

    def _in_use(self) -> SharePartition:
        state = self.ready()
        if state is None:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "The share partition is loading: fetch again.")
        return state

    def abandon(self, member: str) -> None:
        """Starts to release all records that a member has acquired, because the member's session is closed."""
        if self.state is not None:
            self.state.abandon(member)
            self._end_deliveries_soon()

    async def operate(self, first: int, stop: int, kind: int, turn: Callable[[], Awaitable[None]]) -> None:
        """Releases or archives records for an operator, no matter which member holds them.

        Leaves out records that are delivered for the first time after this call. Returns once the change is written.
        Raises KafkaError if no record can be changed, or if the change can't be written.
        """
        refusal: KafkaError | None = None
        written = []
        stop = min(stop, max(first + 1, self._in_use().window.end))
        while first < stop:
            state = self._in_use()
            part = min(state.window.reach(first, PORTION), stop)
            try:
                transition = state.operate(first, part, kind, self.limits)
                written.append(None if transition is None else self._submit(transition))
            except KafkaError as error:
                refusal = error
            first = part
            await turn()
        self.wake()
        if refusal is not None and not written:
            raise refusal
        for each in written:
            if each is not None:
                await each

    async def loaded(self, seconds: float) -> None:
        """Waits until the state is loaded. Raises KafkaError if the load fails or takes longer than `seconds`."""
        waiter = _Loading()
        self.waiters[waiter] = None
        try:
            async with asyncio.timeout(seconds):
                while self.ready() is None:
                    await waiter.event.wait()
                    waiter.event.clear()
        except TimeoutError:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "The share partition is still loading: retry.") from None
        finally:
            self.waiters.pop(waiter, None)

    def _submit(self, transition: Transition) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._queue.append((transition, future))
        self._write_soon()
        return future

    # --- writing

    def _write_soon(self) -> None:
        if not self._writing and self.failure is None:
            self._writing = True
            self._spawn(self._write())

    async def _write(self) -> None:
        try:
            while self.failure is None and (self._queue or self._unsaved):
                if not await self._write_once():
                    await asyncio.sleep(REWRITE_SECONDS)
        finally:
            self._writing = False
        if self._retiring and self.failure is None:
            self.retire()

    async def _write_once(self) -> bool:
        """Writes waiting changes to the share coordinator, as many as fit into one request.

        Returns False if the write failed and no acknowledgement is waiting: then the next write need not be made at
        once.
        """
        state = self.state
        assert state is not None
        queue, changes = self._next_changes()
        unsaved, self._unsaved = sorted(self._unsaved), []
        start, complete = state.after(changes)
        stored = list(islice(state.stored(unsaved), PORTION + 1))
        if len(stored) > PORTION:  # the rest of them with the next write
            self._unsaved = [stored.pop()._replace(last=max(each.last for each in unsaved))]
        changes = [change for change in (*changes, *stored) if change.last >= start]
        write = Write(self._state_epoch, self.leader_epoch, start, complete, tuple(changes))
        try:
            await self._persister.write(self.key, write, lambda: self.failure is None)
        except KafkaError as error:
            self._figures.failed_writes += 1
            self._unsaved = [*unsaved, *self._unsaved]
            self._refused(queue, error)
            return bool(self._queue)
        if self.state is state:
            for transition, _ in queue:
                state.commit(transition, self.now_ms)
            state.saved(changes)
            self._arm()
            self.burial.start()
        for _, future in queue:
            if not future.done():
                future.set_result(None)
        self.wake()
        return True

    def _next_changes(self) -> tuple[list[tuple[Transition, asyncio.Future[None]]], list[StateBatch]]:
        """Takes transitions from the queue, as many as fit into one write, and returns them with their changes."""
        changes: list[StateBatch] = []
        taken = 0
        while taken < len(self._queue) and len(changes) < PORTION:
            changes += self._queue[taken][0].changes
            taken += 1
        queue, self._queue = self._queue[:taken], self._queue[taken:]
        return queue, changes

    def _refused(self, queue: list[tuple[Transition, asyncio.Future[None]]], error: KafkaError) -> None:
        logger.info("%s: the state of share group %s can't be written: %s", self.partition, self.key.group, error)
        if self.state is not None:
            for transition, _ in queue:
                self.state.rollback(transition, self.now_ms)
            self._keep(self.state.take_unsaved())
            self._arm()
        told = KafkaError(_TO_MEMBER.get(error.code, ErrorCode.UNKNOWN_SERVER_ERROR), error.message)
        for _, future in queue:
            _fail(future, told)
        if error.code in FENCED:
            self.close(error)
        else:
            self.wake()

    def _keep(self, changes: list[StateBatch]) -> None:
        """Queues changes that have already taken effect for the next write. If this write fails, a later write has
        them.
        """
        if not changes:
            return
        self._unsaved += changes
        if len(self._unsaved) > MAX_UNSAVED:  # their current states are written, so one range stands for all of them
            first, last = min(each.first for each in self._unsaved), max(each.last for each in self._unsaved)
            self._unsaved = [StateBatch(first, last, RecordState.AVAILABLE, 0)]
        self._write_soon()

    # --- dead letters

    @property
    def settings(self) -> ShareSettings:
        return self._settings()

    def buried(self, runs: list[Run]) -> None:
        """Archives records whose dead letters have been written."""
        assert self.state is not None
        self.state.buried(runs)
        self._keep(self.state.take_unsaved())

    def burial_ended(self) -> None:
        if self._retiring and self.failure is None:
            self.retire()

    # --- locks that expire, and locks of closed sessions

    def _arm(self) -> None:
        deadline = self.state.next_deadline() if self.state is not None else None
        if deadline is None or self._ending or (self._timer is not None and self._timer_ms <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline
        self._timer = self._loop.call_at(deadline / 1000 + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._end_deliveries_soon()

    def _end_deliveries_soon(self) -> None:
        if not self._ending and self.state is not None and self.state.has_due(self.now_ms):
            self._ending = True
            self._spawn(self._end_deliveries())

    async def _end_deliveries(self) -> None:
        """Ends deliveries whose lock has expired or whose member has left, a limited number in each pass of the event
        loop.

        The locks of one member may expire at the same time in many partitions.
        """
        try:
            await self._turn()
            while self.state is not None and self.state.has_due(self.now_ms):
                self._end_some(self.state)
                await self._turn()
        finally:
            self._ending = False
        self._arm()
        self.wake()
        if self._retiring and self.failure is None:
            self.retire()

    def _end_some(self, state: SharePartition) -> None:
        transition = state.release(self.limits)
        if transition is not None:
            self._submit(transition)
            return
        changes = state.expire(self.limits, self.now_ms)
        self._figures.expired += sum(change.last - change.first + 1 for change in changes)
        self._keep(changes)


class _Loading:
    """Waits for a state to be loaded."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def wake(self) -> None:
        self.event.set()


def _fail(future: asyncio.Future[None], error: KafkaError) -> None:
    if not future.done():
        future.set_exception(KafkaError(error.code, error.message))
        future.exception()  # marks the error as retrieved: a member that has left does not await it


async def _start_offset(log: Log, reset: Reset, wall_ms: int) -> int:
    """Returns the start offset of a group that has no stored start offset, according to its reset strategy."""
    match reset.kind:
        case "earliest":
            return log.log_start_offset
        case "latest":
            return log.high_watermark
        case _:
            found = await log.offset_for_timestamp(wall_ms - reset.back_ms)
            return log.high_watermark if found is None else min(found.offset, log.high_watermark)
