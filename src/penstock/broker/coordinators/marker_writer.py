"""Writes the marker that ends a transaction to a partition's log: for this node's coordinators and for WriteTxnMarkers.

On `__consumer_offsets` the group coordinator writes the marker, because the marker makes the transaction's offsets
visible. If a request repeats a marker that is in the log but not committed, the marker is not written again. The sender
then also waits until the marker is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.log.log import AppendOrigin
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import CONSUMER_OFFSETS, NO_LEADER_EPOCH
from penstock.records.control import EndTxn, build_end_txn

if TYPE_CHECKING:
    from penstock.broker.coordinators.groups import Groups
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.replicas.partitions import Partitions
    from penstock.clock import Clock


class Written(NamedTuple):
    """Holds a written marker, which is committed when the high watermark reaches `end_offset` in `leader_epoch`."""

    partition: Partition
    end_offset: int
    leader_epoch: int = NO_LEADER_EPOCH


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
    ) -> Written:
        """Appends the marker to the partition's log. Returns the offset and the leader epoch of the commit to wait for.

        Raises KafkaError if the partition refuses the marker. For a partition of `__consumer_offsets`, also raises
        KafkaError if its group coordinator is not loaded.
        """
        partition = self._partitions.get(topic, index)
        try:
            self._write(partition, producer_id, producer_epoch, marker, transaction_version)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_PRODUCER_EPOCH:
                raise
            if partition.log.high_watermark >= partition.log.log_end_offset:
                raise
        return Written(partition, partition.log.log_end_offset, partition.leader_epoch)

    def _write(
        self, partition: Partition, producer_id: int, producer_epoch: int, marker: EndTxn, transaction_version: int
    ) -> None:
        now_ms = self._clock.wall_ms()
        batch = build_end_txn(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=now_ms)
        if partition.topic == CONSUMER_OFFSETS:
            coordinator = self._groups.at(partition.index)
            coordinator.write_marker(batch, producer_id, marker.committed, transaction_version)
            return
        partition.append(
            batch,
            now_ms=now_ms,
            origin=AppendOrigin.COORDINATOR,
            required_acks=-1,
            transaction_version=transaction_version,
        )
