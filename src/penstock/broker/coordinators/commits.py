"""Keeps a coordinator's decisions, in log order, from the append of their records until these records are committed.

One task follows the high watermark for all decisions. A client that has waited too long gets COORDINATOR_NOT_AVAILABLE.
Its decision is not undone: the effects of the decision are still performed after the commit.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.broker.coordinators.state_machine import Turn
    from penstock.broker.replicas.partition import Partition

COMMIT_TIMEOUT_SECONDS = 5.0  # maximum wait for replicas; the default of `offsets.commit.timeout.ms`
UNDER_MIN_ISR_PAUSE_SECONDS = 0.1
NOT_YET = "The in-sync replicas of the coordinator's partition have not replicated the records in time: try again."

UNDER_MIN_ISR = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})


def set_result(token: Any, response: Any) -> None:
    """Sets the future's result; if `response` is an error, sets the error. No-op if the future is cancelled or done."""
    if not token.done():
        if isinstance(response, Exception):
            token.set_exception(response)
        else:
            token.set_result(response)


class Commit:
    """Holds a decision whose records are not committed yet."""

    __slots__ = ("end_offset", "expires", "future", "result", "turn")

    def __init__(self, turn: Turn, result: Any, future: asyncio.Future[Any] | None) -> None:
        self.turn = turn
        self.result = result
        self.future = future
        self.end_offset = -1  # not appended yet
        self.expires = math.inf

    def fail(self, error: KafkaError) -> None:
        """Sends the error to all callers that wait for this decision, instead of their replies."""
        replies, self.turn.replies = self.turn.replies, []
        for token, _ in replies:
            set_result(token, error)
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)


class Commits:
    def __init__(
        self,
        partition: Partition,
        *,
        settle: Callable[[Turn], None],
        failed: Callable[[KafkaError], None],
        timeout_s: float,
    ) -> None:
        """Creates the queue. Calls `settle` after each decision is committed, and `failed` if a commit fails."""
        self._partition = partition
        self._settle = settle
        self._failed = failed
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Commit] = deque()
        self._stopped = False
        self._following: asyncio.Task[None] | None = None
        self._overdue: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, commits: Iterable[Commit]) -> None:
        """Adds decisions whose records have just been appended at the end of the log."""
        end_offset = self._partition.log.log_end_offset
        expires = self._loop.time() + self._timeout_s
        for commit in commits:
            commit.end_offset, commit.expires = end_offset, expires
            self._waiting.append(commit)
        self._complete()
        if self._waiting and not self._stopped:
            # The task that follows the high watermark may be waiting for a decision whose clients were answered early.
            self._watch_overdue()

    def stop(self) -> list[Commit]:
        """Stops following the high watermark and returns the decisions that are not committed yet."""
        self._stopped = True
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        if self._following is not None and self._following is not asyncio.current_task():
            self._following.cancel()
        left = list(self._waiting)
        self._waiting.clear()
        return left

    def _complete(self) -> None:
        """Sends the replies of committed decisions.

        If some decisions are not committed yet, starts the task that follows the high watermark.
        """
        if self._stopped:
            return
        high_watermark = self._partition.log.high_watermark
        while self._waiting and self._waiting[0].end_offset <= high_watermark:
            commit = self._waiting.popleft()
            self._settle(commit.turn)
            if commit.future is not None and not commit.future.done():
                commit.future.set_result(commit.result)
        if self._waiting and self._following is None:
            self._following = self._loop.create_task(self._follow(), name=f"commits of {self._partition}")

    async def _follow(self) -> None:
        """Waits until each decision is committed. Decisions are committed in the order of the log."""
        try:
            while self._waiting:
                self._watch_overdue()
                end_offset = self._waiting[0].end_offset
                await self._partition.committed(end_offset)
                if self._partition.log.high_watermark < end_offset:
                    await asyncio.sleep(0)
                self._complete()
        except KafkaError as error:
            if error.code in UNDER_MIN_ISR:
                # The records are appended: the decisions are committed when replicas return, and the clients retry.
                self._answer_early(math.inf)
                await asyncio.sleep(UNDER_MIN_ISR_PAUSE_SECONDS)
            else:
                self._failed(error)
        finally:
            self._following = None
        self._complete()

    def _watch_overdue(self) -> None:
        if self._overdue is None:
            expires = next((commit.expires for commit in self._waiting if commit.expires < math.inf), None)
            if expires is not None:
                self._overdue = self._loop.call_at(expires, self._on_overdue)

    def _on_overdue(self) -> None:
        self._overdue = None
        self._answer_early(self._loop.time())
        self._watch_overdue()

    def _answer_early(self, until: float) -> None:
        """Sends an error to the clients whose wait expires at or before `until`. Their decisions are not undone."""
        for commit in self._waiting:
            if commit.expires == math.inf:
                continue  # already answered early
            if commit.expires > until:
                break
            commit.expires = math.inf
            commit.fail(KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, NOT_YET))
