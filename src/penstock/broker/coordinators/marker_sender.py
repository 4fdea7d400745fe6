"""Sends the markers of decided transactions to the leaders of their partitions, and retries until all are committed.

Markers for partitions that this node leads are written at once. Another leader gets one request at a time, with all
markers that were queued for it meanwhile. A partition is done when its marker is committed. If a new leader of the
partition lacks the marker, the sender sends the marker again. The sender drops a transaction if a partition knows a
newer coordinator epoch, or if the transaction's coordinator on this node has closed. The next coordinator then reads
the unfinished transaction from its log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.broker.coordinators.runtime import Phase
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from penstock.records.control import EndTxn

if TYPE_CHECKING:
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.coordinators.marker_writer import MarkerWriter, Written
    from penstock.broker.coordinators.runtime import Coordinator
    from penstock.protocol.schema import Message
    from penstock.protocol.vocabulary import TopicPartition
    from penstock.transactions.shard import TransactionShard
    from penstock.transactions.turn import Markers

logger = logging.getLogger(__name__)

LANE = "markers"
MARKERS_AT_ONCE = 100  # partitions that are written before the event loop runs other tasks
PARTITIONS_IN_A_REQUEST = 10_000
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.05, 1.0


class PeerCalls(Protocol):
    async def ask(self, node_id: int, request: Message, *, lane: str = "") -> Any: ...


@dataclass(slots=True, eq=False)
class Ending:
    """Holds one transaction that is being committed or aborted, and the partitions that don't have its marker yet."""

    markers: Markers
    coordinator: Coordinator[TransactionShard]
    left: set[TopicPartition]
    over: bool = False

    @property
    def alive(self) -> bool:
        return not self.over and self.coordinator.phase is Phase.ACTIVE


class MarkerSender:
    def __init__(
        self,
        node_id: int,
        *,
        metadata: MetadataLog,
        writer: MarkerWriter,
        peers: PeerCalls | None,
        done: Callable[[Ending], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """Creates the sender. It calls `done` for each transaction whose marker is on all its partitions."""
        self._node_id = node_id
        self._metadata = metadata
        self._writer = writer
        self._peers = peers
        self._done = done
        self._spawn = spawn
        self._queues: dict[int, dict[Ending, list[TopicPartition]]] = {}
        self._busy: set[int] = set()
        self._to_retry: dict[Ending, list[TopicPartition]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rounds = 0

    def send(self, markers: Markers, coordinator: Coordinator[TransactionShard]) -> None:
        """Writes the markers of local partitions at once, and queues the other markers for the partitions' leaders.

        Most transactions have few partitions, all on this node: they end before the producer gets its reply.
        """
        ending = Ending(markers, coordinator, set(markers.partitions))
        self._route(ending, sorted(markers.partitions))

    def image_changed(self) -> None:
        """Retries waiting markers at once, because their partitions' leaders may have changed."""
        if self._to_retry:
            self._retry()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._to_retry.clear()
        self._queues.clear()

    # --- routing

    def _route(self, ending: Ending, partitions: Iterable[TopicPartition]) -> None:
        image = self._metadata.image
        here: list[TopicPartition] = []
        for partition in partitions:
            known = image.partition(*partition)
            if known is None:
                ending.left.discard(partition)  # the topic was deleted, with the transaction's records
            elif known.leader == self._node_id:
                here.append(partition)
            elif known.leader < 0 or self._peers is None:
                self._retry_later(ending, partition)
            else:
                self._queues.setdefault(known.leader, {}).setdefault(ending, []).append(partition)
        if len(here) <= MARKERS_AT_ONCE:
            self._write(ending, here)
        else:
            self._spawn(self._write_in_slices(ending, here))
        for node in sorted(self._queues.keys() - self._busy):
            self._busy.add(node)
            self._spawn(self._send_queued(node))
        self._finish(ending)

    def _finish(self, ending: Ending) -> None:
        if not ending.left and not ending.over:
            ending.over = True
            self._done(ending)

    def _handle_result(self, ending: Ending, partition: TopicPartition, code: ErrorCode) -> None:
        """Handles the result of one partition's marker.

        INVALID_PRODUCER_EPOCH counts as done: the partition knows a newer producer epoch, so the transaction has
        already ended there.
        """
        if code in (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH):
            ending.left.discard(partition)
            self._rounds = 0
        elif code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            if not ending.over:
                name = ending.markers.transactional_id
                logger.warning("transaction %s: a newer coordinator is active and will send the markers", name)
            ending.over = True
        else:
            name = ending.markers.transactional_id
            logger.info("transaction %s: the marker for %s-%d failed with %s, retrying", name, *partition, code.name)
            self._retry_later(ending, partition)

    # --- partitions that this node leads

    async def _write_in_slices(self, ending: Ending, partitions: list[TopicPartition]) -> None:
        for start in range(0, len(partitions), MARKERS_AT_ONCE):
            if not ending.alive:
                return
            self._write(ending, partitions[start : start + MARKERS_AT_ONCE])
            await asyncio.sleep(0)
        self._finish(ending)

    def _write(self, ending: Ending, partitions: list[TopicPartition]) -> None:
        markers = ending.markers
        marker = EndTxn(markers.committed, ending.coordinator.epoch)
        uncommitted: list[tuple[TopicPartition, Written]] = []
        for partition in partitions:
            try:
                written = self._writer.write(
                    *partition, markers.producer_id, markers.producer_epoch, marker, markers.client_version
                )
            except KafkaError as error:
                self._handle_result(ending, partition, error.code)
                continue
            if written.end_offset <= written.partition.log.high_watermark:
                self._handle_result(ending, partition, ErrorCode.NONE)
            else:
                uncommitted.append((partition, written))
        if uncommitted:
            self._spawn(self._await_committed(ending, uncommitted))

    async def _await_committed(self, ending: Ending, uncommitted: list[tuple[TopicPartition, Written]]) -> None:
        for name, written in uncommitted:
            try:
                await written.partition.committed(written.end_offset, written.leader_epoch)
                self._handle_result(ending, name, ErrorCode.NONE)
            except KafkaError as error:
                self._handle_result(ending, name, error.code)
        self._finish(ending)

    # --- partitions that other nodes lead

    async def _send_queued(self, node: int) -> None:
        try:
            while self._queues.get(node):
                batch = self._next_batch(node)
                if batch:
                    await self._ask(node, batch)
        finally:
            self._busy.discard(node)
            self._queues.pop(node, None)

    def _next_batch(self, node: int) -> dict[Ending, list[TopicPartition]]:
        """Removes the next markers for the node from its queue and returns them.

        One request must not contain two transactions of a producer, because the results name only the producer id.
        """
        queue, batch = self._queues[node], {}
        producers: set[int] = set()
        size = 0
        for ending, partitions in list(queue.items()):
            if size >= PARTITIONS_IN_A_REQUEST:
                break
            if not ending.alive:
                del queue[ending]
            elif ending.markers.producer_id not in producers:
                producers.add(ending.markers.producer_id)
                batch[ending] = queue.pop(ending)
                size += len(partitions)
        return batch

    async def _ask(self, node: int, batch: dict[Ending, list[TopicPartition]]) -> None:
        assert self._peers is not None
        answers: dict[tuple[int, str, int], ErrorCode] = {}
        missing = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            request = WriteTxnMarkersRequest(markers=[_marker(*each) for each in batch.items()])
            answers = _codes(await self._peers.ask(node, request, lane=LANE))
        except KafkaError as error:
            missing = error.code
        except Exception:  # without a retry the transaction would stay open
            logger.exception("the markers for node %d could not be sent and are retried", node)
        for ending, partitions in batch.items():
            for partition in partitions:
                self._handle_result(ending, partition, answers.get((ending.markers.producer_id, *partition), missing))
            self._finish(ending)

    # --- retries

    def _retry_later(self, ending: Ending, partition: TopicPartition) -> None:
        self._to_retry.setdefault(ending, []).append(partition)
        if self._timer is None:
            pause = min(RETRY_SECONDS * 2 ** min(self._rounds, 10), MAX_RETRY_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(pause, self._retry)

    def _retry(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._rounds += 1
        again, self._to_retry = self._to_retry, {}
        for ending, partitions in again.items():
            if ending.alive:
                self._route(ending, partitions)


def _marker(ending: Ending, partitions: list[TopicPartition]) -> WritableTxnMarker:
    markers = ending.markers
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return WritableTxnMarker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        transaction_result=markers.committed,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
        coordinator_epoch=ending.coordinator.epoch,
        transaction_version=markers.client_version,
    )


def _codes(answer: WriteTxnMarkersResponse) -> dict[tuple[int, str, int], ErrorCode]:
    return {
        (marker.producer_id, topic.name, result.partition_index): ErrorCode(result.error_code)
        for marker in answer.markers
        for topic in marker.topics
        for result in topic.partitions
    }
