"""Runs operations that outlive their request, such as moves of replicas, with progress and cancellation.

An operation is a task on this node. It is not stored: it ends with the node, but work that the cluster has begun for
it, such as a reassignment, continues.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.http.shares import Shares
from penstock.net.yielding import yield_between_slices
from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.http.guard import Caller

logger = logging.getLogger(__name__)

#: Operations that run at the same time, in all and of one user.
MAX_RUNNING, MAX_RUNNING_OF_USER = 8, 4
#: Operations that are remembered, with those that have ended.
MAX_KEPT = 100
#: Memory of the results of all ended operations. Beyond, the oldest results are dropped.
RESULTS_MAX_BYTES = 64 * 1024 * 1024
#: Notes that one operation keeps.
MAX_NOTES = 100


class OperationError(Exception):
    """Raised by the code of an operation to mark the operation as failed. The message has subject, cause and remedy."""


@dataclass(slots=True)
class Operation:
    """Holds the state of one operation. The operation's task updates `done`, `total`, `result` and `notes` as it
    goes on."""

    number: int
    principal: str
    """The caller who started the operation."""
    kind: str
    about: str
    """A sentence that says what the operation does."""
    started_ms: int
    unit: str = ""
    done: int = 0
    total: int | None = None
    state: str = "running"
    """running, done, failed or cancelled."""
    ended_ms: int | None = None
    error: str | None = None
    result: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    result_bytes: int = 0
    """The memory of the result; known when the operation has ended."""
    result_dropped: bool = False

    def advance(self, count: int = 1) -> None:
        self.done += count

    def note(self, sentence: str) -> None:
        if len(self.notes) < MAX_NOTES:
            self.notes.append(sentence)

    def as_json(self) -> dict[str, Any]:
        return {**self.summary(), "result": dict(self.result), "notes": list(self.notes)}

    def drop_result(self) -> None:
        """Frees the memory of the result. Sets `result_dropped`, so that clients know it."""
        self.result, self.result_bytes, self.result_dropped = {}, 0, True

    def summary(self) -> dict[str, Any]:
        """Returns the operation as a JSON object without its result, for lists of operations."""
        return {
            "operation": self.number,
            "kind": self.kind,
            "by": self.principal,
            "about": self.about,
            "state": self.state,
            "progress": {"done": self.done, "total": self.total, "unit": self.unit},
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "error": self.error,
            "result_dropped": self.result_dropped,
        }


Work = Callable[[Operation], Awaitable[None]]


class Operations:
    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._all: dict[int, Operation] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._shares = Shares("operations", "cancel one", MAX_RUNNING, MAX_RUNNING_OF_USER)
        self._last = 0

    def start(
        self, caller: Caller, kind: str, about: str, work: Work, *, unit: str = "", total: int | None = None
    ) -> Operation:
        """Starts an operation of a caller. Raises LimitReachedError."""
        self._shares.take(caller.user)
        self._last += 1
        operation = Operation(self._last, caller.principal, kind, about, self._wall_ms(), unit, total=total)
        self._all[operation.number] = operation
        for number in [each for each in self._all if each not in self._tasks][: max(0, len(self._all) - MAX_KEPT)]:
            del self._all[number]
        task = asyncio.get_running_loop().create_task(self._run(operation, work), name=f"http: {kind}")
        self._tasks[operation.number] = task
        task.add_done_callback(lambda _: self._ended(operation, caller))
        return operation

    def _ended(self, operation: Operation, caller: Caller) -> None:
        del self._tasks[operation.number]
        self._shares.give_back(caller.user)
        self._drop_old_results()

    def _drop_old_results(self) -> None:
        """Drops the oldest results until all results of ended operations fit into the limit. Keeps the newest."""
        ended = [each for number, each in self._all.items() if number not in self._tasks and each.result]
        ended.sort(key=lambda each: each.ended_ms or 0)
        used = sum(each.result_bytes for each in ended)
        for each in ended[:-1]:
            if used <= RESULTS_MAX_BYTES:
                return
            used -= each.result_bytes
            each.drop_result()

    def list(self) -> list[Operation]:
        """Returns the operations, the newest first."""
        return [self._all[number] for number in sorted(self._all, reverse=True)]

    def get(self, number: int) -> Operation | None:
        return self._all.get(number)

    def cancel(self, operation: Operation) -> bool:
        """Cancels a running operation. Returns False if the operation has ended already."""
        task = self._tasks.get(operation.number)
        return operation.state == "running" and task is not None and task.cancel()

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, operation: Operation, work: Work) -> None:
        try:
            await work(operation)
            operation.state = "done"
        except asyncio.CancelledError:
            operation.state = "cancelled"
            raise
        except (KafkaError, OperationError, TimeoutError) as error:
            operation.state, operation.error = "failed", str(error) or "a node did not answer in time: try again"
        except Exception:
            logger.exception("operation %d (%s) failed", operation.number, operation.kind)
            operation.state, operation.error = "failed", "an unexpected error: the node's log has the cause"
        finally:
            operation.ended_ms = self._wall_ms()
            operation.result_bytes = await _memory_of(operation.result)


async def _memory_of(value: Any) -> int:
    """Returns the number of bytes of memory that a JSON value takes. Yields to the event loop while it counts."""
    size, count, left = 0, 0, [value]
    while left:
        await yield_between_slices(count)
        count += 1
        each = left.pop()
        size += sys.getsizeof(each)
        if isinstance(each, dict):
            left += each.keys()
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each
    return size
