"""Keeps the last failovers, and counts how failovers ended and how long they took.

Every node reads the fencings of brokers from the metadata log. Only the controller that decided a fencing knows how and
when the failure was detected, and counts the failover.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.events.kinds import BrokerFenced, LeaderElected, NetworkPartitionSuspected
from penstock.histogram import Histogram
from penstock.metadata.image import FENCINGS_MAX

if TYPE_CHECKING:
    from penstock.broker.events import NodeEvent, Observer
    from penstock.metadata.image import Fencing, MetadataImage

#: Upper bounds of the buckets of failover times.
FAILOVER_BOUNDS_MS = (5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000)


@dataclass(frozen=True, slots=True)
class Failover:
    """Describes one fencing of a broker: when the failure was detected, and when its partitions had new leaders.

    Every node reads the fencing from the metadata log. Only the controller that decided the fencing knows `how` and
    `detected_ms`. Times are wall clock.
    """

    broker_id: int
    elected_ms: int
    partitions: int
    how: str | None = None
    detected_ms: int | None = None


class Detection(NamedTuple):
    """Holds how and when this controller detected a broker's failure, and the time of the broker's last heartbeat."""

    how: str
    detected_ms: int
    last_heard_ms: int | None
    silent: bool
    """True if the broker refused no connection: it stands still, or the network between it and this node is cut."""


class Failovers:
    def __init__(self, wall_ms: Callable[[], int], observer: Observer) -> None:
        self._wall_ms = wall_ms
        self._observer = observer
        self._last: deque[Failover] = deque(maxlen=FENCINGS_MAX)
        #: By broker id and epoch, until the fencing is committed.
        self._detected: dict[tuple[int, int], Detection] = {}
        self._fenced: set[int] = set()
        self.count = 0
        self.failed = 0
        """Fencings that this controller decided and the quorum did not commit."""
        self.partitions: Counter[str] = Counter(elected=0, leaderless=0)
        """Partitions of fenced brokers, by what became of them."""
        self.until_elected = Histogram(FAILOVER_BOUNDS_MS)

    def __iter__(self) -> Iterator[Failover]:
        return iter(self._last)

    @property
    def last(self) -> Failover | None:
        return self._last[-1] if self._last else None

    def decided(self, broker_id: int, epoch: int, detection: Detection) -> None:
        self._detected[broker_id, epoch] = detection

    def ended(self, broker_id: int, epoch: int) -> None:
        """Counts a failed failover: this controller decided to fence the broker, but the fencing was not committed.

        No-op if this controller did not decide to fence the broker.
        """
        if self._detected.pop((broker_id, epoch), None) is not None:
            self.failed += 1

    def apply(self, image: MetadataImage) -> None:
        """Adds the brokers that the image fences to the list of failovers.

        Emits an event for each broker that this controller decided to fence.
        """
        self._fenced = {each.broker_id for each in image.changes.fencings}
        for each in image.changes.fencings:
            found = self._detected.pop((each.broker_id, each.broker_epoch), None)
            if found is None:
                self._last.append(Failover(each.broker_id, each.timestamp_ms, each.partitions))
            else:
                self._committed(each, found)

    def _committed(self, fencing: Fencing, found: Detection) -> None:
        now_ms, broker_id = self._wall_ms(), fencing.broker_id
        self.count += 1
        self.until_elected.add(max(0, now_ms - found.detected_ms))
        self._last.append(Failover(broker_id, now_ms, fencing.partitions, found.how, found.detected_ms))
        self._observer(
            BrokerFenced(
                broker_id,
                fencing.broker_epoch,
                found.how,
                found.last_heard_ms,
                found.detected_ms,
                now_ms,
                fencing.partitions,
            )
        )
        if found.silent:
            reason = f"broker {broker_id} {found.how} and did not refuse connections"
            self._observer(NetworkPartitionSuspected(reason, (broker_id,)))

    def note(self, event: NodeEvent) -> None:
        """Counts the partitions of a fenced broker after an election: partitions with and without a new leader."""
        if isinstance(event, LeaderElected) and event.old_leader in self._fenced:
            self.partitions["leaderless" if event.new_leader < 0 else "elected"] += event.count
