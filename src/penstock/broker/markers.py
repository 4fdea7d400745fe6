"""Writes the marker that ends a producer's transaction into a partition: for the coordinator and for WriteTxnMarkers.

On `__consumer_offsets` the group coordinator has to know of it: offsets that the transaction committed count from the
marker on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.auto_topics import CONSUMER_OFFSETS
from penstock.log.log import AppendOrigin
from penstock.records.control import EndTxn, build_end_txn

if TYPE_CHECKING:
    from penstock.broker.groups import Groups
    from penstock.broker.partition import Partition
    from penstock.broker.partitions import Partitions
    from penstock.clock import Clock


class MarkerWriter:
    __slots__ = ("_clock", "_groups", "_partitions")

    def __init__(self, partitions: Partitions, groups: Groups, clock: Clock) -> None:
        self._partitions = partitions
        self._groups = groups
        self._clock = clock

    def write(
        self,
        topic: str,
        index: int,
        producer_id: int,
        producer_epoch: int,
        marker: EndTxn,
        transaction_version: int,
    ) -> Partition:
        """Raises what the partition answers, or that its group coordinator isn't ready. To where it was written."""
        now_ms = self._clock.wall_ms()
        batch = build_end_txn(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        if topic == CONSUMER_OFFSETS:
            coordinator = self._groups.at(index)
            coordinator.write_marker(batch, producer_id, marker.committed, transaction_version)
            return coordinator.partition
        partition = self._partitions.get(topic, index)
        partition.append(
            batch,
            now_ms=now_ms,
            origin=AppendOrigin.COORDINATOR,
            required_acks=-1,
            transaction_version=transaction_version,
        )
        return partition
