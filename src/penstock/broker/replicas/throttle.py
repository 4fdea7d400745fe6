"""Implements replication throttles (KIP-73): limits the bytes per second of the replicas that topic configs list.

A throttle counts the bytes of all listed replicas together. Above the limit, out-of-sync replicas get no records, so
that they do not slow down the in-sync replicas while they catch up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.limits.rates import Rate, Window
from penstock.broker.replicas.partition_host import now_ms

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition
    from penstock.metadata.configs.settings import Settings

UNLIMITED = 0x7FFFFFFFFFFFFFFF
EVERY_REPLICA = "*"
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"


class ByteRate:
    """Limits bytes per second. The limit and the window of the measurement are properties of the broker."""

    __slots__ = ("_limit", "_rate", "_sample_seconds", "_samples", "_settings")

    def __init__(self, rate: str, settings: Settings, *, samples: str, sample_seconds: str) -> None:
        """Reads the limit and the window from the properties named `rate`, `samples` and `sample_seconds`."""
        self._limit = rate
        self._settings = settings
        self._samples = samples
        self._sample_seconds = sample_seconds
        self._rate: Rate | None = None

    @property
    def limited(self) -> bool:
        return self._settings.int(self._limit) != UNLIMITED

    @property
    def limit(self) -> int:
        """Returns the allowed bytes per second."""
        return self._settings.int(self._limit)

    def record(self, size: int) -> None:
        self._current().record(size, now_ms())

    def excess_ms(self) -> int:
        """Returns how many milliseconds to wait before sending, fetching or copying more records; 0 below the limit."""
        return self._current().excess_ms(now_ms())

    def _current(self) -> Rate:
        limit = max(1, self._settings.int(self._limit))
        if self._rate is None:
            samples, seconds = self._settings.int(self._samples), self._settings.int(self._sample_seconds)
            self._rate = Rate(limit, Window(samples, seconds * 1000))
        self._rate.limit = limit
        return self._rate


class Throttle(ByteRate):
    """Limits replication in one direction: the bytes that this node sends as a leader, or fetches as a follower."""

    __slots__ = ("_node_id",)

    def __init__(self, rate: str, node_id: int, settings: Settings) -> None:
        super().__init__(
            rate,
            settings,
            samples="replication.quota.window.num",
            sample_seconds="replication.quota.window.size.seconds",
        )
        self._node_id = node_id

    def concerns(self, partition: Partition) -> bool:
        """Returns True if the topic's configs list this node's replica as throttled."""
        config = partition.log.config
        if self._limit == LEADER_RATE:
            named = config.leader_replication_throttled_replicas
        else:
            named = config.follower_replication_throttled_replicas
        return EVERY_REPLICA in named or f"{partition.index}:{self._node_id}" in named
