"""Measures rates for quotas as Kafka does. Pure: the time is an argument, in milliseconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

# How long a request may have been parked before it is counted: longer than any fetch's maximum wait in practice.
PARKED_MAX_MS = 300_000
#: The longest throttle time that a response can contain.
THROTTLE_MAX_MS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Window:
    """Holds the window of a rate: `samples` samples of `sample_ms` each (`quota.window.num`, `.size.seconds`)."""

    samples: int = 11
    sample_ms: int = 1000

    @property
    def full_ms(self) -> int:
        """Returns the shortest time over which a rate is averaged: the window without the current sample."""
        return max(self.samples - 1, 1) * self.sample_ms


@dataclass(slots=True)
class Rate:
    """Measures a rate over a sliding window of samples.

    Even a new rate is averaged over a full window, so the first burst of a client may use the quota of a whole window.
    """

    limit: float
    window: Window
    _samples: deque[list[float]] = field(default_factory=deque)  # [started at, amount]

    def record(self, amount: float, now_ms: int) -> int:
        """Adds an amount to the rate.

        Returns the throttle time in milliseconds, after which the rate is back at its limit; 0 if the limit is not
        exceeded.
        """
        now_ms = self._count(amount, now_ms)
        return self.excess_ms(now_ms)

    def forget(self, amount: float, now_ms: int) -> None:
        """Subtracts an amount that `record` has just added."""
        self._count(-amount, now_ms)

    def excess_ms(self, now_ms: int) -> int:
        now_ms = self._purge(now_ms)
        elapsed_ms = self._elapsed_ms(now_ms)
        rate = sum(amount for _, amount in self._samples) * 1000 / elapsed_ms
        if rate <= self.limit:
            return 0
        return _throttle_ms((rate - self.limit) / self.limit * elapsed_ms)

    def idle(self, now_ms: int) -> bool:
        self._purge(now_ms)
        return not self._samples

    def _count(self, amount: float, now_ms: int) -> int:
        now_ms = self._purge(now_ms)
        if not self._samples or now_ms - self._samples[-1][0] >= self.window.sample_ms:
            self._samples.append([now_ms, 0.0])
        self._samples[-1][1] += amount
        return now_ms

    def _purge(self, now_ms: int) -> int:
        """Drops samples that have left the window. Returns `now_ms`, or the time of the newest sample if this is later.

        `now_ms` may be a little before the newest sample, because a parked request is counted at the time of its
        arrival. If it is long before the newest sample, the clock has jumped back: all samples are dropped.
        """
        span = self.window.samples * self.window.sample_ms
        if self._samples and now_ms < self._samples[-1][0]:
            if self._samples[-1][0] - now_ms > span + PARKED_MAX_MS:
                self._samples.clear()
            else:
                now_ms = int(self._samples[-1][0])
        while self._samples and self._samples[0][0] <= now_ms - span:
            self._samples.popleft()
        return now_ms

    def _elapsed_ms(self, now_ms: int) -> int:
        elapsed = now_ms - int(self._samples[0][0]) if self._samples else 0
        missing = self.window.samples - 1 - elapsed // self.window.sample_ms
        return max(elapsed + max(missing, 0) * self.window.sample_ms, self.window.sample_ms)


@dataclass(slots=True)
class TokenBucket:
    """Implements a token bucket. It gets `limit` tokens per second, and holds at most the tokens of one window.

    The number of tokens may be negative.
    """

    limit: float
    window: Window
    tokens: float = field(init=False)
    updated_ms: int | None = None

    def __post_init__(self) -> None:
        self.tokens = self._most()

    def take(self, amount: float, now_ms: int) -> int:
        """Takes tokens, even if too few are left. Returns the throttle time in milliseconds."""
        self._refill(now_ms)
        self.tokens -= amount
        return self.excess_ms(now_ms)

    def excess_ms(self, now_ms: int) -> int:
        self._refill(now_ms)
        return 0 if self.tokens >= 0 else _throttle_ms(-self.tokens / self.limit * 1000)

    def idle(self, now_ms: int) -> bool:
        self._refill(now_ms)
        return self.tokens >= self._most()

    def _most(self) -> float:
        return self.limit * self.window.samples * self.window.sample_ms / 1000

    def _refill(self, now_ms: int) -> None:
        if self.updated_ms is None or self.updated_ms - now_ms > PARKED_MAX_MS:
            self.updated_ms = now_ms
        elif now_ms > self.updated_ms:
            self.tokens = min(self._most(), self.tokens + (now_ms - self.updated_ms) * self.limit / 1000)
            self.updated_ms = now_ms


def _throttle_ms(exact: float) -> int:
    """Returns the throttle time, rounded and at most THROTTLE_MAX_MS. For a tiny quota, `exact` can be infinite."""
    return THROTTLE_MAX_MS if exact >= THROTTLE_MAX_MS else round(exact)
