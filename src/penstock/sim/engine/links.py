"""Simulates the wires between hosts: one `Link` for each direction, and the ordered `Channel`s that run over a link.

TCP hides loss, duplication and reordering of packets, but not their delay. A link simulates the delay: a lost packet
delays all data behind it by a retransmission. A cut wire holds all data until it is mended; then all data arrives, late
and in order, even if the sender has given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from penstock.sim.engine.loop import Timeline

#: TCP's first retransmission timeout and its longest.
RETRANSMIT_S = 0.2
RETRANSMIT_MAX_S = 10.0
#: After so many losses in a row a packet gets through: to lose every packet is what `cut` is for.
LOSSES_IN_A_ROW = 6


@dataclass(slots=True)
class Conditions:
    """Holds the delay, loss and bandwidth of a link."""

    delay_s: float = 0.0002
    jitter_s: float = 0.0003
    loss: float = 0.0
    """Share of packets that are lost and sent again."""
    bytes_per_s: float = 0.0
    """Bandwidth in bytes per second; 0: no limit."""


@dataclass(slots=True, eq=False)
class Link:
    """Simulates the wire from one host to another, in one direction."""

    source: str
    target: str
    timeline: Timeline
    random: Random
    conditions: Conditions = field(default_factory=Conditions)
    cut: bool = False
    _free_at: float = 0.0
    #: Channels with data that waits until the wire is mended, and the number of their arrivals.
    _stalled: dict[Channel, int] = field(default_factory=dict)

    def latency(self) -> float:
        conditions = self.conditions
        latency = conditions.delay_s + self.random.random() * conditions.jitter_s
        if conditions.loss:
            again = RETRANSMIT_S
            for _ in range(LOSSES_IN_A_ROW):
                if self.random.random() >= conditions.loss:
                    break
                latency += again
                again = min(2 * again, RETRANSMIT_MAX_S)
        return latency

    def carry(self, channel: Channel, size: int) -> None:
        if self.cut:
            self.stall(channel)
            return
        now = self.timeline.now
        start = now
        if self.conditions.bytes_per_s:
            start = max(now, self._free_at) + size / self.conditions.bytes_per_s
            self._free_at = start
        channel.last_arrival = max(channel.last_arrival, start + self.latency())
        self.timeline.at(channel.last_arrival, channel.arrived)

    def stall(self, channel: Channel) -> None:
        self._stalled[channel] = self._stalled.get(channel, 0) + 1

    @property
    def stalled(self) -> int:
        return sum(self._stalled.values())

    def mend(self) -> None:
        """Mends the wire, then delivers all held data, in order within each channel."""
        self.cut = False
        stalled, self._stalled = self._stalled, {}
        for channel, count in stalled.items():
            # The sender has backed off meanwhile: its next attempt comes some time after the repair.
            channel.last_arrival = max(channel.last_arrival, self.timeline.now + self.random.uniform(0, RETRANSMIT_S))
            for _ in range(count):
                self.carry(channel, 0)


class Channel:
    """Carries data from one host to another. The data arrives in the order in which it was sent."""

    __slots__ = ("_held", "_in_flight", "_receive", "last_arrival", "link")

    def __init__(self, link: Link, receive: Callable[[Any], None]) -> None:
        self.link = link
        self.last_arrival = 0.0
        self._receive = receive
        self._in_flight: deque[Any] = deque()
        #: Number of arrivals that wait for a release; None: the channel is not held.
        self._held: int | None = None

    def hold(self) -> None:
        self._held = self._held or 0

    def release(self) -> None:
        count, self._held = self._held, None
        for _ in range(count or 0):
            self.link.carry(self, 0)

    def send(self, item: Any, size: int = 0) -> None:
        self._in_flight.append(item)
        self.link.carry(self, size)

    def arrived(self) -> None:
        if self.link.cut:
            self.link.stall(self)
            return
        if self._held is not None:
            self._held += 1
            return
        self._receive(self._in_flight.popleft())
