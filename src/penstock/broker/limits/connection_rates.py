"""Limits the number of new connections per second: on the whole node, on each listener, and from each address.

If a connection exceeds `max.connection.creation.rate` of the node or of its listener, it waits before its first request
or its TLS handshake is served; in Kafka it waits before it is accepted. If the wait would be longer than
LONGEST_WAIT_MS, the connection is closed and not counted. A connection that exceeds the quota of its address
(`connection_creation_rate`) is closed after the throttle time, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.limits.rates import TokenBucket, Window
from penstock.net.limits import AT_ONCE, Arrival

if TYPE_CHECKING:
    from penstock.broker.limits.quotas import Quotas
    from penstock.clock import Clock
    from penstock.metadata.configs.settings import Settings
    from penstock.net.server import Listener

RATE = "max.connection.creation.rate"
MOST = "max.connections"
UNLIMITED = 2**31 - 1
#: Longest wait of a connection. Kafka's clients give up after 10 s (`socket.connection.setup.timeout.ms`).
LONGEST_WAIT_MS = 5000


class ConnectionRates:
    """Decides when a new connection is served. `settings` may change while the node runs."""

    def __init__(self, settings: Settings, quotas: Quotas, clock: Clock) -> None:
        self._settings = settings
        self._quotas = quotas
        self._clock = clock
        self._window = Window(settings.int("quota.window.num"), settings.int("quota.window.size.seconds") * 1000)
        #: By listener name; "" is the whole node.
        self._buckets: dict[str, TokenBucket] = {}

    def arrive(self, host: str, listener: Listener) -> Arrival:
        """Counts a new connection. Returns its waiting time and, if the connection must be closed, the reason."""
        most = self._settings.of_listener(listener.name, MOST)
        if most is not None and listener.connections >= int(most):
            return Arrival(0.0, f"listener {listener.name} has {MOST}={most} open connections")
        now_ms = self._clock.wall_ms()
        throttle_ms = self._quotas.record_connection(host, now_ms)
        if throttle_ms:
            return Arrival(throttle_ms / 1000, f"the quota connection_creation_rate of address {host} is exceeded")
        limits = [(listener.name, self._settings.of_listener(listener.name, RATE))]
        if not listener.protected:
            limits.append(("", self._settings.raw(RATE)))
        return self._arrival(limits, now_ms)

    def _arrival(self, limits: list[tuple[str, str | None]], now_ms: int) -> Arrival:
        buckets, wait_ms = [], 0
        for name, text in limits:
            limit = UNLIMITED if text is None else int(text)
            if limit == UNLIMITED:
                self._buckets.pop(name, None)
            elif limit == 0:
                wait_ms = self._window.sample_ms
            else:
                buckets.append(self._bucket(name, limit))
        if any(bucket.excess_ms(now_ms) >= LONGEST_WAIT_MS for bucket in buckets):
            return Arrival(self._window.sample_ms / 1000, f"{RATE} is exceeded for more than {LONGEST_WAIT_MS} ms")
        wait_ms = max([wait_ms, *(bucket.take(1, now_ms) for bucket in buckets)])
        return Arrival(wait_ms / 1000) if wait_ms else AT_ONCE

    def _bucket(self, name: str, limit: int) -> TokenBucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket(limit, self._window)
        bucket.limit = limit
        bucket.tokens = max(bucket.tokens, -limit * LONGEST_WAIT_MS / 1000)  # the limit may just have been lowered
        return bucket
