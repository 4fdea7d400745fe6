"""Holds the transaction coordinators of this node: one for each partition of `__transaction_state` that it leads.

`penstock.transactions` makes the decisions. The `MarkerSender` sends the markers of a decided transaction. `Admission`
asks other nodes about transactions that they coordinate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from penstock.allowance import Allowance
from penstock.broker.coordinators.marker_sender import Ending, MarkerSender, PeerCalls
from penstock.broker.coordinators.partition_coordinators import Coordinators
from penstock.broker.coordinators.runtime import Coordinator, Phase, committed
from penstock.broker.coordinators.transaction_admission import Admission
from penstock.broker.tasks import Tasks
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import EPOCH_PER_TRANSACTION, TRANSACTION_STATE, TopicPartition
from penstock.transactions import ending
from penstock.transactions import partitions as decide
from penstock.transactions.config import TransactionConfig
from penstock.transactions.shard import TransactionShard
from penstock.transactions.turn import Markers, Turn

if TYPE_CHECKING:
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.controlplane.producer_ids import ProducerIds
    from penstock.broker.coordinators.groups import Groups
    from penstock.broker.coordinators.marker_writer import MarkerWriter
    from penstock.broker.replicas.partitions import Partitions
    from penstock.clock import Clock
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage

logger = logging.getLogger(__name__)

TRANSACTION_VERSION = "transaction.version"
SLICE_SECONDS = 0.005  # maximum time that background work keeps the event loop busy
COMPLETE_RETRY_SECONDS = 0.5
COMMIT_TIMEOUT_SECONDS = 30.0  # the default request timeout of producers

TransactionCoordinator = Coordinator[TransactionShard]


class Transactions:
    def __init__(
        self,
        *,
        node_id: int,
        settings: Settings,
        clock: Clock,
        partitions: Partitions,
        metadata: MetadataLog,
        producer_ids: ProducerIds,
        groups: Groups,
        peers: PeerCalls | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        """Creates the coordinators. `peers` sends requests to other brokers; it is None on a single node."""
        from penstock.broker.coordinators.marker_writer import MarkerWriter

        allowance = allowance or Allowance()
        allowance.counted_by(lambda: sum(each.machine.held_bytes for each in self.coordinators))
        self._node_id = node_id
        self._settings = settings
        self._metadata = metadata
        self._producer_ids = producer_ids
        self._config = TransactionConfig.from_settings(settings)
        self.markers: MarkerWriter = MarkerWriter(partitions, groups, clock)
        self.coordinators: Coordinators[TransactionShard] = Coordinators(
            TRANSACTION_STATE,
            node_id=node_id,
            partitions=partitions,
            metadata=metadata,
            clock=clock,
            make=lambda: TransactionShard(self._config, self._take_producer_id, self.server_version, allowance),
            perform=self._send_markers,
            commit_timeout_s=COMMIT_TIMEOUT_SECONDS,
        )
        self._tasks = Tasks()
        self._fetching_ids = False
        self.sender = MarkerSender(
            node_id, metadata=metadata, writer=self.markers, peers=peers, done=self._complete, spawn=self._tasks.start
        )
        self._remote_admission = Admission(peers, self._tasks.start) if peers is not None else None

    # --- start and stop

    def start(self) -> None:
        """Starts the coordinators. Call this after `partitions` and `groups` have applied the image."""
        self.apply(None, self._metadata.image)
        self._tasks.start(self._expire_forever())

    async def close(self) -> None:
        self.coordinators.close()
        self.sender.close()
        await self._tasks.close()

    def apply(self, old: MetadataImage | None, new: MetadataImage) -> None:
        if self.coordinators.apply(new):
            self._tasks.start(self.coordinators.load())
        self.sender.image_changed()

    def server_version(self) -> int:
        return self._metadata.image.features.get(TRANSACTION_VERSION, 0)

    # --- requests

    async def coordinator(self, transactional_id: str) -> TransactionCoordinator:
        """Returns the coordinator of a transactional id.

        First waits until a producer id is available, because the coordinator may have to assign it. Raises
        KafkaError(NOT_COORDINATOR) if another node coordinates the transactional id.
        """
        found = self.coordinators.of(transactional_id)
        await self._producer_ids.ready()
        return found

    def _take_producer_id(self) -> int | None:
        """Returns an unused producer id. If no id is left, returns None and starts to fetch new ids.

        The abort of an overdue transaction also calls this method, because it may need a new id.
        """
        producer_id = self._producer_ids.take()
        if producer_id is None and not self._fetching_ids:
            self._fetching_ids = True
            self._tasks.start(self._fetch_producer_ids())
        return producer_id

    async def _fetch_producer_ids(self) -> None:
        try:
            await self._producer_ids.ready()
        except KafkaError as error:
            logger.info(
                "no producer ids could be allocated; the next producer that needs an id repeats the request: %s", error
            )
        finally:
            self._fetching_ids = False

    async def admit(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        asked: Collection[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Checks that the partitions belong to the producer's transaction. With `add`, adds the missing partitions.

        Returns an error code for each partition: NONE if it belongs to the transaction.
        """
        producer = (transactional_id, producer_id, producer_epoch)
        try:
            leader = self._remote_leader(transactional_id)
            if leader is not None and self._remote_admission is not None:
                return await self._remote_admission.ask(leader, *producer, asked, add=add)
            coordinator = self.coordinators.of(transactional_id)
            if not add:
                return await committed(coordinator.run(lambda shard, turn: decide.verify(shard, *producer, asked)))
            code = await committed(
                coordinator.run(lambda shard, turn: decide.add(shard, turn, *producer, asked, EPOCH_PER_TRANSACTION))
            )
        except KafkaError as error:
            code = error.code
        return dict.fromkeys(asked, code)

    def _remote_leader(self, transactional_id: str) -> int | None:
        """Returns the node that coordinates the transactional id; None if this node coordinates it.

        Raises KafkaError if the coordinator is unknown.
        """
        index = self.coordinators.partition_of(transactional_id)
        partition = self._metadata.image.partition(TRANSACTION_STATE, index)
        if partition is None or partition.leader < 0:
            raise KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"{TRANSACTION_STATE}-{index} has no leader: retry when one of its replicas is running.",
            )
        return partition.leader if partition.leader != self._node_id else None

    # --- markers

    def _send_markers(self, coordinator: TransactionCoordinator, markers: Markers) -> None:
        """Sends the markers of a transaction. Called when the decision to commit or abort is itself committed."""
        self.sender.send(markers, coordinator)

    def _complete(self, ended: Ending) -> None:
        """Writes the record that completes the transaction. Called when all partitions have the transaction's marker.

        If this record can't be committed, this coordinator or the next coordinator writes it again.
        """
        if ended.coordinator.phase is not Phase.ACTIVE:
            return
        written = ended.coordinator.run(partial(_complete, ended.markers))
        if isinstance(written, asyncio.Future):
            written.add_done_callback(partial(self._completed, ended))

    def _completed(self, ended: Ending, written: asyncio.Future[None]) -> None:
        if not written.cancelled() and written.exception() is not None:
            asyncio.get_running_loop().call_later(COMPLETE_RETRY_SECONDS, self._complete, ended)

    # --- background work

    async def _expire_forever(self) -> None:
        interval = self._settings.int("transaction.remove.expired.transaction.cleanup.interval.ms") / 1000
        while True:
            await asyncio.sleep(interval)
            for coordinator in self.coordinators:
                await self._expire(coordinator)

    async def _expire(self, coordinator: TransactionCoordinator) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SLICE_SECONDS
        for transactional_id in list(coordinator.machine.transactions):
            if coordinator.phase is not Phase.ACTIVE:
                return
            coordinator.post(partial(_expire, transactional_id))
            if loop.time() > deadline:
                await asyncio.sleep(0)
                deadline = loop.time() + SLICE_SECONDS


def _complete(markers: Markers, shard: TransactionShard, turn: Turn) -> None:
    ending.complete(shard, turn, markers)


def _expire(transactional_id: str, shard: TransactionShard, turn: Turn) -> None:
    shard.expire(turn, transactional_id)
