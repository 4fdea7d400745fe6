"""What the partitions of a node share: who it is, who else is there, and whom to tell of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.replication.leader import NO_BROKER_EPOCH

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition
    from penstock.log.log import Log
    from penstock.metadata.image import BrokerImage

DEFAULT_MAX_LAG_MS = 30_000
OPEN_SLICE_SECONDS = 0.005  # how long opening logs may hold the loop before it lets requests through


def now_ms() -> int:
    """Monotonic, as lag is measured."""
    return int(asyncio.get_running_loop().time() * 1000)


class Waiter(Protocol):
    def notify(self, appended_bytes: int) -> None:
        """More can be read: about this many bytes."""
        ...

    def abandon(self) -> None:
        """The partition is going away: answer now with what there is."""
        ...


def _nobody(_: Partition) -> None:
    """A node without a controller to ask."""


def _nowhere(_: Partition, directory_id: bytes) -> None:
    """The same."""


@dataclass(slots=True)
class Hosting:
    """What the partitions of a node share."""

    node_id: int
    open_log: Callable[[Partition], Log]
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    max_lag_ms: int = DEFAULT_MAX_LAG_MS
    #: The listener that brokers use among themselves: followers fetch over no other one.
    inter_broker_listener: str = "PLAINTEXT"
    #: A change of the in-sync set waits in `partition.leading.proposal`.
    propose: Callable[[Partition], None] = _nobody
    broker_epoch: Callable[[], int] = lambda: NO_BROKER_EPOCH
    #: A replica's log was opened in the directory with this id.
    placed: Callable[[Partition, bytes], None] = _nowhere

    def is_alive(self, broker_id: int) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced
