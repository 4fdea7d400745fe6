"""Runs a coordinator (group, transaction or share): a state machine whose changes are records in a partition's log.

    decide(machine, turn) → records, replies      pure; the caller's function
    apply(record)                                 pure; at once, so that the next decision sees it
    append                                        all decisions of one pass of the event loop in one batch
    reply                                         when the high watermark has passed the last record

The state in memory may be ahead of the log, but no reply shows uncommitted state. If an append fails, the coordinator
drops its state, and the waiting clients get an error and look for the coordinator again. Loading calls `apply` for
every record of the log. Replies and effects that depend on loaded records wait until these records are committed.

A coordinator belongs to one leader epoch. Every append checks the epoch, so a coordinator that has lost its partition
writes nothing. The next epoch gets a new coordinator, which loads from the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.broker.coordinators.commits import COMMIT_TIMEOUT_SECONDS, UNDER_MIN_ISR, Commit, Commits, set_result
from penstock.broker.coordinators.loading import Loading
from penstock.broker.coordinators.state_machine import M, Turn
from penstock.log.log import AppendOrigin
from penstock.protocol.errors import ErrorCode, KafkaError, without_frames
from penstock.protocol.vocabulary import NO_PRODUCER_ID
from penstock.records.build import build_batch
from penstock.replication.leader import effective_min_isr

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition
    from penstock.clock import Clock

logger = logging.getLogger(__name__)

R = TypeVar("R")
Record = tuple[Any, Any | None]

TIMER_RETRY_SECONDS = 0.5
RECORD_OVERHEAD_BYTES = 32  # varints and lengths around a key and a value, rounded up
BATCH_OVERHEAD_BYTES = 128
STOPPED = "This coordinator has stopped: send FindCoordinator again, then retry there."


class Phase(Enum):
    UNLOADED = "unloaded"
    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class Coordinator(Generic[M]):
    """Runs one state machine. Appends its records to the log of `partition`, and calls `perform` for its effects."""

    def __init__(
        self,
        machine: M,
        partition: Partition,
        clock: Clock,
        *,
        compression: int = 0,
        perform: Callable[[Coordinator[M], Any], None] | None = None,
        commit_timeout_s: float = COMMIT_TIMEOUT_SECONDS,
    ) -> None:
        self.machine = machine
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.phase = Phase.UNLOADED
        self._loading = Loading(machine, partition, self.epoch)
        self._clock = clock
        self._compression = compression
        self._perform = perform
        self._loop = asyncio.get_running_loop()
        self._batch: list[tuple[int, bytes, bytes | None, tuple[()]]] = []
        self._batch_bytes = 0
        self._unappended: list[Commit] = []  # decisions whose records are still in the batch
        self._commits = Commits(
            partition,
            settle=partial(self._settle, code=ErrorCode.NONE),
            failed=self._commit_failed,
            timeout_s=commit_timeout_s,
        )
        self._flush_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = -1

    # --- the four steps

    @property
    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def active(self) -> M:
        """Returns the state machine. Its state may contain changes that are not committed yet.

        Raises KafkaError while the coordinator is not loaded.
        """
        if self.phase is not Phase.ACTIVE:
            self._load_or_raise()
        return self.machine

    def run(self, decide: Callable[[M, Any], R]) -> R | asyncio.Future[R]:
        """Runs the decision at once. Returns its result, or a future of the result if records must be committed."""
        self.active()
        turn = self.machine.turn(self.now_ms, self._clock.wall_ms())
        result = decide(self.machine, turn)
        if not turn.records and not self._has_uncommitted():
            self._settle(turn, ErrorCode.NONE)
            self._arm()
            return result
        future: asyncio.Future[R] = self._loop.create_future()
        self._take(turn, result, future)
        self._arm()
        return future

    def post(self, decide: Callable[[M, Any], None]) -> None:
        """Runs the decision at once, without a result. Its replies go to the futures that the decision itself names."""
        self.active()
        self._follow_up(decide)

    def write_marker(self, marker: bytes, producer_id: int, commit: bool, transaction_version: int) -> None:
        """Writes the marker that ends a producer's transaction in this log, between two decisions.

        Raises KafkaError if the log refuses the marker; the coordinator stays active.
        """
        self.active()
        self._flush()
        self.active()
        self.partition.leader_log(self.epoch)
        self.partition.append(
            marker,
            now_ms=self._clock.wall_ms(),
            origin=AppendOrigin.COORDINATOR,
            required_acks=-1,
            transaction_version=transaction_version,
        )
        self.machine.apply_marker(producer_id, commit)
        # an empty decision: replies that show the outcome wait until the marker is committed
        self._unappended.append(Commit(self.machine.turn(self.now_ms, self._clock.wall_ms()), None, None))
        self._flush()

    def _has_uncommitted(self) -> bool:
        """Returns True if the state has changes that are not committed yet."""
        return bool(self._unappended or self._commits)

    def _take(self, turn: Turn, result: Any, future: asyncio.Future[Any] | None) -> None:
        """Applies a decision's records to the state and adds them to the next batch.

        The decision's replies are sent once the records are committed.
        """
        encoded = [self.machine.encode(record) for record in turn.records]
        try:
            self._check_sizes(encoded)
            if encoded:
                self._check_replicas()
        except KafkaError as error:
            without_frames(error)
            for undo in reversed(turn.undo):
                undo()
            turn.replies = [(token, error) for token, _ in turn.replies]
            self._settle(turn, error.code)
            if future is not None:
                future.set_exception(error)
            return
        if turn.producer is not None:
            self._flush()
        if self.phase is Phase.CLOSED:
            Commit(turn, result, future).fail(KafkaError(ErrorCode.NOT_COORDINATOR, STOPPED))
            return
        offset = self.partition.log.log_end_offset + len(self._batch)
        producer_id = turn.producer[0] if turn.producer is not None else NO_PRODUCER_ID
        for index, record in enumerate(turn.records):
            self.machine.apply(record, offset + index, producer_id)
        self._unappended.append(Commit(turn, result, future))
        self._enqueue(encoded)
        if turn.producer is not None:
            self._flush(turn.producer)
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _check_sizes(self, encoded: Sequence[tuple[bytes, bytes | None]]) -> None:
        limit = self.partition.log.config.max_message_bytes - BATCH_OVERHEAD_BYTES
        if any(_size(key, value) > limit for key, value in encoded):
            # Kafka's code for a group that doesn't fit into one record; clients don't retry it
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"The state does not fit into one record of {limit} bytes: use fewer members or partitions, or raise "
                "max.message.bytes of the coordinator's topic.",
            )

    def _check_replicas(self) -> None:
        """Raises KafkaError if too few replicas are in sync. Called before the records of a decision are applied.

        Without this check the append could fail after the records were applied. Then the whole state would have to be
        loaded again.
        """
        partition = self.partition
        have = len(partition.isr)
        need = effective_min_isr(partition.log.config.min_insync_replicas, partition.image.replicas)
        if have < need:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{partition} has {have} in-sync replicas and needs {need}: retry when more brokers are running.",
            )

    def _enqueue(self, encoded: Sequence[tuple[bytes, bytes | None]]) -> None:
        limit = self.partition.log.config.max_message_bytes - BATCH_OVERHEAD_BYTES
        now_ms = self._clock.wall_ms()
        for key, value in encoded:
            size = _size(key, value)
            if self._batch and self._batch_bytes + size > limit:
                self._append()
            self._batch.append((now_ms, key, value, ()))
            self._batch_bytes += size

    def _append(self, producer: tuple[int, int] | None = None) -> None:
        """Appends the collected batch to the log. Closes the coordinator if the log refuses the batch."""
        records, self._batch, self._batch_bytes = self._batch, [], 0
        if not records or self.phase is Phase.CLOSED:
            return
        producer_id, epoch = producer if producer is not None else (-1, -1)
        batch = build_batch(
            records,
            compression=self._compression,
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional=producer is not None,
        )
        try:
            self.partition.leader_log(self.epoch)  # raises in another epoch, which has a coordinator of its own
            self.partition.append(
                batch, now_ms=self._clock.wall_ms(), origin=AppendOrigin.COORDINATOR, required_acks=-1
            )
        except KafkaError as error:
            logger.error("%s: the coordinator stops, because its records can't be written: %s", self.partition, error)
            self.close(_as_coordinator_error(error.code))

    def _flush(self, producer: tuple[int, int] | None = None) -> None:
        self._flush_scheduled = False
        self._append(producer)
        if self.phase is Phase.CLOSED:
            return
        appended, self._unappended = self._unappended, []
        self._commits.add(appended)

    def _commit_failed(self, error: KafkaError) -> None:
        logger.info("%s: the coordinator stops, because its records can't be committed: %s", self.partition, error)
        self.close(_as_coordinator_error(error.code))

    def _settle(self, turn: Turn, code: ErrorCode) -> None:
        for token, response in turn.replies:
            set_result(token, response)
        if code is ErrorCode.NONE and turn.effects:
            self.perform(turn)
        for after in turn.after:
            if self.phase is Phase.ACTIVE:
                self._follow_up(partial(_call_after, after, code))

    def perform(self, turn: Turn) -> None:
        """Performs the effects of a decision, such as sending markers, after its records are committed."""
        if self._perform is not None:
            for effect in turn.effects:
                self._perform(self, effect)

    def _follow_up(self, decide: Callable[[M, Any], None]) -> None:
        """Runs a decision whose result no caller waits for, such as the decision of an expired timer."""
        turn = self.machine.turn(self.now_ms, self._clock.wall_ms())
        decide(self.machine, turn)
        if turn.records or self._has_uncommitted():
            self._take(turn, None, None)
        else:
            self._settle(turn, ErrorCode.NONE)
        self._arm()

    # --- timers

    def arm(self) -> None:
        """Sets the timer to the state machine's next deadline.

        Call this after you change the state machine directly.
        """
        self._arm()

    def _arm(self) -> None:
        deadline = self.machine.next_deadline()
        if deadline is None or (self._timer is not None and self._timer_ms <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline
        self._timer = self._loop.call_at(deadline / 1000 + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self.phase is not Phase.ACTIVE:
            return
        try:
            self._check_replicas()
        except KafkaError:  # too few in-sync replicas for the records that expired timers would write
            self._timer = self._loop.call_later(TIMER_RETRY_SECONDS, self._on_timer)
            self._timer_ms = self.now_ms + int(TIMER_RETRY_SECONDS * 1000)
            return
        self._follow_up(lambda machine, turn: machine.on_timers(turn))

    # --- loading and closing

    @property
    def failure(self) -> str | None:
        """Returns why the log can't be loaded; None if no load has failed."""
        return self._loading.failure

    def _load_or_raise(self) -> None:
        """Loads a small log at once. For a large log, starts the load and raises COORDINATOR_LOAD_IN_PROGRESS.

        Raises KafkaError with another code if the coordinator is closed.
        """
        if self.failure is not None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, self.failure)
        if self.phase is Phase.CLOSED:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, STOPPED)
        if self.phase is Phase.UNLOADED and self._loading.is_small:
            self.load_now()
            return
        if self.phase is Phase.UNLOADED:
            self._loading.start(self.load())
        raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "The coordinator is loading: try again soon.")

    def load_now(self) -> None:
        """Loads the log in one call and makes the coordinator active. Raises KafkaError."""
        try:
            self._loading.replay_now()
        except KafkaError as error:
            if self.failure is not None:
                self.close(error.code)
            raise
        self._start()

    async def load(self) -> None:
        """Loads the log in slices, with requests served in between, and makes the coordinator active.

        Transaction markers are refused until the coordinator is active.
        """
        if self.phase is not Phase.UNLOADED:
            return
        self.phase = Phase.LOADING
        started = self._loop.time()
        try:
            offset = await self._loading.replay_in_slices()
        except KafkaError as error:
            self.close(error.code)
            return
        if self.phase is Phase.LOADING:
            self._start()
            seconds = self._loop.time() - started
            logger.debug("%s: coordinator loaded up to offset %d in %.3f s", self.partition, offset, seconds)

    def _start(self) -> None:
        self.phase = Phase.ACTIVE
        turn = self.machine.turn(self.now_ms, self._clock.wall_ms())
        self.machine.loaded(turn)
        if turn.records:
            self._take(turn, None, None)
        else:
            # the effects of loaded records are performed when the log up to here is committed
            self._unappended.append(Commit(turn, None, None))
            self._flush()
        self._arm()

    def close(self, code: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Stops the coordinator after its leadership ended or its log failed. All waiting requests fail with `code`."""
        if self.phase is Phase.CLOSED:
            return
        self.phase = Phase.CLOSED
        self._loading.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = [*self._commits.stop(), *self._unappended]
        self._unappended = []
        for commit in waiting:
            commit.fail(KafkaError(code, STOPPED))
        turn = self.machine.turn(self.now_ms, self._clock.wall_ms())
        self.machine.abandon(turn)
        for token, response in turn.replies:
            set_result(token, response)


def _call_after(after: Callable[[Any, ErrorCode], None], code: ErrorCode, _machine: Any, turn: Any) -> None:
    after(turn, code)


def _size(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES


async def committed(result: R | asyncio.Future[R]) -> R:
    """Waits until a decision's records are committed, and returns the decision's result.

    `result` is the return value of `Coordinator.run`: a future, or the result itself if there is nothing to wait for.
    """
    return await result if isinstance(result, asyncio.Future) else result


def _as_coordinator_error(code: ErrorCode) -> ErrorCode:
    """Translates an error code of the log into the error code that clients expect from a coordinator."""
    match code:
        case ErrorCode.UNKNOWN_TOPIC_OR_PARTITION | ErrorCode.REQUEST_TIMED_OUT:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case _ if code in UNDER_MIN_ISR:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        case ErrorCode.NOT_LEADER_OR_FOLLOWER | ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.NOT_COORDINATOR
        case ErrorCode.FENCED_LEADER_EPOCH | ErrorCode.UNKNOWN_LEADER_EPOCH:
            return ErrorCode.NOT_COORDINATOR
        case _:
            return ErrorCode.UNKNOWN_SERVER_ERROR
