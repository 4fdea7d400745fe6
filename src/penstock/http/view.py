"""What pages look at: a running node's parts, and how long one look is good for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.http.pipelines import Pipelines
    from penstock.net.network import Network
    from penstock.net.server import Server

T = TypeVar("T")

#: Partitions between two breaths: going through thousands must not hold requests up for more than a millisecond or so.
SLICE = 200
FRESH_S = 1.0
#: How long the largest looks are kept, which cost the most: looking never takes more than a small part of the loop.
LONGEST_S = 10.0
A_SECOND_FOR = 1000


@dataclass(frozen=True, slots=True)
class View:
    broker: Broker
    server: Server
    network: Network
    started_ms: int
    pipelines: Pipelines


async def breathe(number: int) -> None:
    """Called with each item's number: lets the loop serve others now and then."""
    if number % SLICE == SLICE - 1:
        await asyncio.sleep(0)


def fresh_s(partitions: int) -> float:
    """How long a look at so many partitions is good for."""
    return min(LONGEST_S, max(FRESH_S, partitions / A_SECOND_FOR))


class Shared(Generic[T]):
    """One look for all who ask at about the same time."""

    __slots__ = ("_keep_s", "_look", "_task", "_until", "_value")

    def __init__(self, look: Callable[[], Awaitable[T]], keep_s: Callable[[], float] = lambda: FRESH_S) -> None:
        self._look = look
        self._keep_s = keep_s
        self._task: asyncio.Task[T] | None = None
        self._until = 0.0
        self._value: list[T] = []

    async def get(self) -> T:
        now = asyncio.get_running_loop().time()
        if self._value and now < self._until:
            return self._value[0]
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="http-look")
            self._task.add_done_callback(self._ended)
        # Shielded: whoever asked first may hang up while others wait.
        return await asyncio.shield(self._task)

    async def _run(self) -> T:
        value = await self._look()
        self._value = [value]
        self._until = asyncio.get_running_loop().time() + self._keep_s()
        return value

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # all who waited have been told

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
