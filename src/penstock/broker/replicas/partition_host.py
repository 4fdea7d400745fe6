"""Holds the state that all partitions of a node share: node id, the cluster's brokers, callbacks to the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.protocol.vocabulary import NO_BROKER_EPOCH

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.metadata.image import BrokerImage

DEFAULT_MAX_LAG_MS = 30_000
OPEN_SLICE_SECONDS = 0.005  # maximum time that opening logs keeps the event loop busy

#: The class of partitions; a parameter, because `partition` imports this module.
P = TypeVar("P")


def now_ms() -> int:
    """Returns the event loop's monotonic time, which is used to measure follower lag."""
    return int(asyncio.get_running_loop().time() * 1000)


def _report_nothing(*_: Any) -> None:
    """Does nothing. This is the default callback for reports to the controller, for tests without a controller."""


@dataclass(slots=True)
class PartitionHost(Generic[P]):
    """Holds the state of the node that all its partitions use.

    `Partitions` creates it, and updates `brokers` when the image changes.
    """

    node_id: int
    open_log: Callable[[P], Log]
    max_lag_ms: int = DEFAULT_MAX_LAG_MS
    broker_epoch: Callable[[], int] = lambda: NO_BROKER_EPOCH
    #: Asks the controller for the change of the in-sync set that waits in `partition.leading.proposal`.
    propose: Callable[[P], None] = _report_nothing
    #: Reports that a replica's log was opened in the directory with this id.
    placed: Callable[[P, bytes], None] = _report_nothing
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)

    def is_alive(self, broker_id: int) -> bool:
        """Returns True if the broker is registered and not fenced."""
        broker = self.brokers.get(broker_id)
        return broker is not None and not broker.fenced
