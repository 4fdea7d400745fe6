"""Limits how many requests one pass of the event loop starts before it polls the sockets again.

One read may bring a thousand small requests, and a thousand connections may become readable together. A pass starts
requests until it reaches a limit on their number or on its time. All other complete requests are queued in their
connections. The next pass starts one request of each waiting connection in turn. So a connection with one request waits
for at most one request of every other connection. The simulator's clock stands still within a pass, so in a simulation
only the number of requests is limited.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from penstock.net.limits import Limits

#: The cost of a request that needs a task: the loop runs all ready tasks before it polls the sockets.
TASK_COST = 8


class Waiter(Protocol):
    def take_turn(self) -> None:
        """Starts one queued request. If more requests are queued, waits for the next pass of the event loop."""


class Turns:
    __slots__ = (
        "_began",
        "_call_soon",
        "_left",
        "_limits",
        "_nanoseconds",
        "_waiting",
        "now_ns",
        "open",
        "passes",
        "spent",
    )

    def __init__(
        self, limits: Limits, call_soon: Callable[[Callable[[], None]], object], nanoseconds: Callable[[], int]
    ) -> None:
        self._limits = limits
        self._call_soon = call_soon
        self._nanoseconds = nanoseconds
        self._began = 0
        self.now_ns = 0
        """The time of the last request that was started or had to wait."""
        self._left = 0
        self._waiting: deque[Waiter] = deque()
        self.passes = 0
        """The number of passes in which a request was started or had to wait."""
        self.open = False
        """True once this pass of the event loop has started a request."""
        self.spent = False
        """True once this pass of the event loop may start no more requests."""

    def begin(self) -> None:
        """Resets the request count and the start time, at the first request of a pass of the event loop."""
        self.open = True
        self.passes += 1
        self._left = self._limits.pass_max_requests
        self._began = self.now_ns = self._nanoseconds()
        self._call_soon(self._next_pass)

    def may_start(self) -> bool:
        """Counts a request.

        Returns True if this pass of the event loop may start the request. The pass may always start its first request.
        """
        self._left -= 1
        self.now_ns = self._nanoseconds()
        if self._left <= 0 or self.now_ns - self._began > self._limits.pass_max_ms * 1_000_000:
            self.spent = True
        return not self.spent

    def charge(self, cost: int) -> None:
        """Counts an expensive request as `cost` additional requests in this pass of the event loop."""
        self._left -= cost

    def wait(self, waiter: Waiter) -> None:
        self._waiting.append(waiter)
        if not self.open:
            self.begin()  # no request started, but a connection waits for the next pass

    def _next_pass(self) -> None:
        self.open = self.spent = False
        waiting = self._waiting
        while waiting and not self.spent:
            waiting.popleft().take_turn()
