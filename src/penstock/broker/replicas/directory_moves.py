"""Moves replicas of this node between its log directories: accepts requests, runs the moves, reports their progress.

A future log on disk means that a move is in progress: after a restart the move resumes when the partition is opened. At
most `num.replica.alter.log.dirs.threads` moves copy at the same time, by default one for each directory; further moves
wait in the order of their requests. `replica.alter.log.dirs.io.max.bytes.per.second` limits the total rate of all
copies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, assert_never

from penstock.broker.events import Observer, log_event
from penstock.broker.events.kinds import MoveChanged
from penstock.broker.replicas.replica_move import MoveParts, ReplicaMove
from penstock.broker.replicas.throttle import ByteRate
from penstock.log.future_logs import NAME_OVERHEAD
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.replication.directory_move import Action, MoveEvent, MoveFigures, MoveState, Replica, decide

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition
    from penstock.log.directory import LogDir
    from penstock.log.future_log import FutureLog
    from penstock.log.log import Log
    from penstock.log.manager import LogManager
    from penstock.metadata.configs.settings import Settings
    from penstock.protocol.vocabulary import TopicPartition

logger = logging.getLogger(__name__)

#: Directories that are remembered for replicas to come; the oldest are forgotten beyond that.
MAX_REMEMBERED = 10_000
#: Ended moves whose figures are kept for the operator.
MAX_ENDED = 100


class DirectoryMoves:
    def __init__(
        self,
        logs: LogManager,
        settings: Settings,
        *,
        assign: Callable[[Partition, bytes], Awaitable[None]],
        revert: Callable[[Partition, bytes], None],
        observer: Observer = log_event,
        request_passes: Callable[[], int] = lambda: 0,
    ) -> None:
        """Creates the object that runs all moves of this node.

        `assign` reports a replica's new directory to the controller. `revert` reports the old directory after a failed
        move. `request_passes` returns a counter of requests: while it grows, logs are copied more slowly.
        """
        copiers = settings.optional_int("num.replica.alter.log.dirs.threads") or len(logs.dirs)
        throttle = ByteRate(
            "replica.alter.log.dirs.io.max.bytes.per.second",
            settings,
            samples="alter.log.dirs.replication.quota.window.num",
            sample_seconds="alter.log.dirs.replication.quota.window.size.seconds",
        )
        self._parts = MoveParts(logs, asyncio.Semaphore(copiers), throttle, assign, revert, request_passes)
        self._observer = observer
        self._logs = logs
        self._running: dict[TopicPartition, tuple[ReplicaMove, asyncio.Task[None]]] = {}
        #: Cancelled moves whose last write may still be under way.
        self._ending: set[asyncio.Task[None]] = set()
        self._remembered: dict[TopicPartition, LogDir] = {}
        #: Figures of the last ended moves, the newest last.
        self.ended: deque[MoveFigures] = deque(maxlen=MAX_ENDED)
        self.counts = dict.fromkeys((MoveState.DONE, MoveState.FAILED, MoveState.CANCELLED), 0)
        self.copied_bytes = 0

    def figures(self) -> list[MoveFigures]:
        """Returns the progress of every move that has not ended."""
        return [move.figures() for move, _ in self._running.values()]

    # Requests.

    def request(
        self, topic: str, index: int, target: LogDir | None, partition: Partition | None, *, exists: bool = True
    ) -> ErrorCode:
        """Starts to move a replica to the directory `target`. Returns the error code for the response.

        `target` is None if this node has no such directory; `partition` is None if this node has no replica of the
        partition. `exists` is False if the partition is not in the metadata.
        """
        replica = self._describe(partition)
        decision = decide(
            None if target is None else target.path,
            target is not None and target.offline,
            replica,
            len(topic.encode()) + len(str(index)) + NAME_OVERHEAD,
            exists=exists,
        )
        try:
            match decision.action:
                case Action.NOTHING:
                    pass
                case Action.REMEMBER:
                    assert target is not None
                    self._remember((topic, index), target)
                case Action.START:
                    assert partition is not None
                    assert target is not None
                    self._start(partition, target)
                case Action.REPLACE:
                    assert partition is not None
                    assert target is not None
                    self._cancel((topic, index), f"it is replaced by a move to {target.path}")
                    self._start(partition, target)
                case Action.CANCEL:
                    self._cancel((topic, index), "it was cancelled by a move to the current directory")
                case _:
                    assert_never(decision.action)
        except KafkaError as error:
            logger.warning("%s-%d can't be moved: %s", topic, index, error)
            return error.code
        return decision.error

    def _describe(self, partition: Partition | None) -> Replica | None:
        if partition is None:
            return None
        try:
            log = partition.log
        except KafkaError:
            return Replica("", offline=True)
        move = self._move_of(partition)
        return Replica(
            log.log_dir,
            log.offline,
            None if move is None else move.target.path,
            move is not None and move.state is MoveState.SWAPPING,
        )

    def _move_of(self, partition: Partition) -> ReplicaMove | None:
        known = self._running.get((partition.topic, partition.index))
        return None if known is None else known[0]

    def _remember(self, key: TopicPartition, target: LogDir) -> None:
        self._remembered.pop(key, None)
        self._remembered[key] = target
        if len(self._remembered) > MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def remembered(self, topic: str, index: int) -> LogDir | None:
        """Returns the directory that an AlterReplicaLogDirs request chose before the replica existed, and forgets it.

        Returns None if there was no such request, or if the directory is offline.
        """
        target = self._remembered.pop((topic, index), None)
        return None if target is None or target.offline else target

    # Moves.

    def _start(self, partition: Partition, target: LogDir) -> None:
        self._run(partition, self._logs.futures.create(partition.log, target))

    def _run(self, partition: Partition, future: FutureLog) -> None:
        move = ReplicaMove(partition, future, self._parts)
        task = asyncio.get_running_loop().create_task(move.run(), name=str(move))
        self._running[partition.topic, partition.index] = move, task
        task.add_done_callback(lambda ended: self._ended(move, ended))
        self._report(move, "begun")

    def resume(self, partition: Partition, log: Log) -> None:
        """Resumes the move of a replica that has a future log on disk; otherwise does nothing.

        A compacted log is copied again from its start. The old copy may have records that were deleted by tombstones,
        and compaction may have removed these tombstones from the current log since.
        """
        future = self._logs.futures.get(log.topic, log.partition)
        if future is None or self._move_of(partition) is not None:
            return
        target = self._logs.dirs.of(future.log)
        try:
            if log.config.compact:
                logger.info("the move of %s to %s starts over, because the log is compacted", log.path, target.path)
                self._logs.futures.drop(future)
                future = self._logs.futures.create(log, target)
            self._run(partition, future)
        except KafkaError as error:
            logger.error("the move of %s to %s could not be resumed: %s", log.path, target.path, error)

    def removed(self, topic: str, index: int) -> None:
        """Cancels the move of a replica that is about to be removed from this node."""
        self._remembered.pop((topic, index), None)
        self._cancel((topic, index), "the replica was removed from this node")

    def cancel(self, topic: str, index: int) -> bool:
        """Cancels the move of a replica.

        Returns False if there is no move, or if its logs are already being swapped.
        """
        known = self._running.get((topic, index))
        if known is None or known[0].state is MoveState.SWAPPING:
            return False
        self._cancel((topic, index), "it was cancelled")
        return True

    def _cancel(self, key: TopicPartition, reason: str) -> None:
        known = self._running.get(key)
        if known is None or known[0].state is MoveState.SWAPPING:
            return
        move, task = self._running.pop(key)
        move.detach_copy()
        if not move.ended:
            move.give_up(MoveEvent.CANCELLED, reason)
            task.cancel()
            self._ending.add(task)

    def _ended(self, move: ReplicaMove, task: asyncio.Task[None]) -> None:
        key = (move.partition.topic, move.partition.index)
        self._ending.discard(task)
        if self._running.get(key, (None, None))[0] is move:
            del self._running[key]
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s failed", move, exc_info=task.exception())
            if not move.ended and move.state is not MoveState.SWAPPING:
                move.give_up(MoveEvent.FAILED, f"an error of the program: {task.exception()}")
        if move.state in (MoveState.FAILED, MoveState.CANCELLED):
            move.discard_copy()
        if move.ended:
            self.counts[move.state] += 1
            self.copied_bytes += move.copied_bytes
            self.ended.append(move.figures())
            self._report(move, move.state.value)

    def _report(self, move: ReplicaMove, state: str) -> None:
        name = f"{move.partition.topic}-{move.partition.index}"
        self._observer(MoveChanged(name, move.source.path, move.target.path, state, move.copied_bytes, move.reason))

    async def settle(self) -> None:
        """Waits until all moves have ended and the copies of cancelled moves are deleted."""
        while tasks := [*self._ending, *(task for _, task in self._running.values())]:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Stops all copies, and waits for log swaps that have begun.

        The copied files stay: the next start resumes the moves.
        """
        running = list(self._running.values())
        self._running.clear()
        for move, task in running:
            if move.state is not MoveState.SWAPPING:
                task.cancel()
        if tasks := [*self._ending, *(task for _, task in running)]:
            await asyncio.wait(tasks)
