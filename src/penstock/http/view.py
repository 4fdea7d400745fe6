"""Holds the parts of a running node that HTTP pages read, and a short-lived cache that concurrent requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.client.credentials import NO_CREDENTIALS, Credentials
from penstock.formats.schemas import Schemas
from penstock.http.guard import NO_LOGIN, Login
from penstock.http.history import History
from penstock.http.roles import EVERYBODY_ADMIN, Roles

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.http.pipelines import Pipelines
    from penstock.log.cleaner import Cleaner
    from penstock.net.network import Network
    from penstock.net.server import Server

T = TypeVar("T")
NO_SCHEMAS = Schemas()

FRESH_S = 1.0
#: Upper bound of the time that a result is cached. Large results cost the most and are cached the longest, so that
#: HTTP takes a small part of the loop only.
LONGEST_S = 10.0
A_SECOND_FOR = 1000


@dataclass(frozen=True, slots=True)
class View:
    broker: Broker
    server: Server
    network: Network
    started_ms: int
    pipelines: Pipelines
    listener: str = ""
    """The inter-broker listener, over which this node sends requests to other nodes; empty for the first listener."""
    credentials: Credentials = NO_CREDENTIALS
    """The credentials with which this node connects to the inter-broker listener of other nodes."""
    warnings: Sequence[str] = ()
    """Sentences about this node's configuration that the console shows, such as listeners without TLS."""
    roles: Roles = EVERYBODY_ADMIN
    login: Login = NO_LOGIN
    cleaner: Cleaner | None = None
    """Compacts this node's logs; None if logs are not compacted."""
    schemas: Schemas = NO_SCHEMAS
    history: History = field(default_factory=History)


def cached_s(partitions: int) -> float:
    """Returns for how many seconds a result is cached. The time grows with the number of partitions."""
    return min(LONGEST_S, max(FRESH_S, partitions / A_SECOND_FOR))


class Cached(Generic[T]):
    """Computes a value once for concurrent requests, and keeps the value for a short time."""

    __slots__ = ("_cancel_if_abandoned", "_compute", "_keep_s", "_task", "_until", "_value", "_waiting")

    def __init__(
        self,
        compute: Callable[[], Awaitable[T]],
        keep_s: Callable[[], float] = lambda: FRESH_S,
        *,
        cancel_if_abandoned: bool = False,
    ) -> None:
        """Creates an empty cache. `cancel_if_abandoned` cancels a computation when no request waits for it any more."""
        self._compute = compute
        self._keep_s = keep_s
        self._cancel_if_abandoned = cancel_if_abandoned
        self._waiting = 0
        self._task: asyncio.Task[T] | None = None
        self._until = 0.0
        self._value: list[T] = []

    async def get(self) -> T:
        now = asyncio.get_running_loop().time()
        if self._value and now < self._until:
            return self._value[0]
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="http-compute")
            self._task.add_done_callback(self._ended)
        task = self._task
        self._waiting += 1
        try:
            # Shielded: the first client may disconnect while others wait.
            return await asyncio.shield(task)
        finally:
            self._waiting -= 1
            if self._cancel_if_abandoned and not self._waiting and task is self._task:
                self._task = None  # the next request computes again
                task.cancel()

    async def _run(self) -> T:
        value = await self._compute()
        self._value = [value]
        self._until = asyncio.get_running_loop().time() + self._keep_s()
        return value

    def _ended(self, task: asyncio.Task[T]) -> None:
        if self._task is task:
            self._task = None
        if not task.cancelled():
            task.exception()  # waiters have got the exception; this marks it as retrieved

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
