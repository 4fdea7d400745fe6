"""Transaction coordinators of this node: one per partition of `__transaction_state` that it leads.

Decisions are `penstock.transactions`'; here they get their records written, and the markers that a decided transaction
needs are put into its partitions: at once as far as possible, the rest again and again until it is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker.auto_topics import TRANSACTION_STATE
from penstock.broker.coordinator import Coordinator, Phase, set_result
from penstock.broker.coordinators import Coordinators
from penstock.broker.group_calls import committed
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.control import EndTxn
from penstock.transactions import ending
from penstock.transactions import partitions as decide
from penstock.transactions.config import TransactionConfig
from penstock.transactions.shard import TransactionShard
from penstock.transactions.transaction import EPOCH_PER_TRANSACTION, TopicPartition
from penstock.transactions.turn import TO_PARTITIONS, Markers, Turn

if TYPE_CHECKING:
    from penstock.broker.groups import Groups
    from penstock.broker.markers import MarkerWriter
    from penstock.broker.metadata_log import MetadataLog
    from penstock.broker.partition import Partition
    from penstock.broker.partitions import Partitions
    from penstock.broker.producer_ids import ProducerIds
    from penstock.clock import Clock
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import MetadataImage

logger = logging.getLogger(__name__)

TRANSACTION_VERSION = "transaction.version"
SLICE_SECONDS = 0.005  # how long background work may hold the loop
MARKERS_AT_ONCE = 100  # how many partitions are written to before the loop gets its turn
RETRY_SECONDS, MAX_RETRY_SECONDS = 0.05, 5.0

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
    ) -> None:
        from penstock.broker.markers import MarkerWriter

        self._settings = settings
        self._metadata = metadata
        self._partitions = partitions
        self._producer_ids = producer_ids
        self._config = TransactionConfig.from_settings(settings)
        self.markers: MarkerWriter = MarkerWriter(partitions, groups, clock)
        self.coordinators: Coordinators[TransactionShard] = Coordinators(
            TRANSACTION_STATE,
            node_id=node_id,
            partitions=partitions,
            metadata=metadata,
            clock=clock,
            make=lambda: TransactionShard(self._config, producer_ids.take, self.server_version),
            deliver=self._deliver,
        )
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life

    def start(self) -> None:
        """Call when `partitions` and `groups` follow the image: this listens after them."""
        self._metadata.subscribe(self.apply)
        self.apply(None, self._metadata.image)
        self._spawn(self._expire_forever())

    async def close(self) -> None:
        self.coordinators.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def apply(self, old: MetadataImage | None, new: MetadataImage) -> None:
        if self.coordinators.apply(new):
            self._spawn(self.coordinators.load())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def server_version(self) -> int:
        return self._metadata.image.features.get(TRANSACTION_VERSION, 0)

    # --- requests

    async def coordinator(self, transactional_id: str) -> TransactionCoordinator:
        """The coordinator of an id, if it is here, with a producer id at hand for the decision that may need one."""
        found = self.coordinators.of(transactional_id)
        await self._producer_ids.ready()
        return found

    async def admit(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        asked: Collection[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Whether these partitions belong to the producer's transaction; `add` makes them, for clients that rely on it.

        NONE, or why not, for each.
        """
        try:
            coordinator = self.coordinators.of(transactional_id)
            who = (transactional_id, producer_id, producer_epoch)
            if not add:
                return await committed(coordinator.run(lambda shard, turn: decide.verify(shard, *who, asked)))
            code = await committed(
                coordinator.run(lambda shard, turn: decide.add(shard, turn, *who, asked, EPOCH_PER_TRANSACTION))
            )
        except KafkaError as error:
            code = error.code
        return dict.fromkeys(asked, code)

    # --- markers

    def _deliver(self, token: Any, response: Any) -> None:
        if token is not TO_PARTITIONS:
            set_result(token, response)
        elif isinstance(response, Markers):  # else the decision was not written: there is nothing to tell
            self._write(response)

    def _write(self, markers: Markers) -> None:
        """Most transactions touch a few partitions here: they are done before their producer hears of the end."""
        left = sorted(markers.partitions)
        if len(left) <= MARKERS_AT_ONCE:
            try:
                left = self._write_some(markers, left)
            except KafkaError as error:
                logger.warning("%s: its markers are left to its coordinator: %s", markers.transactional_id, error)
                return
            if not left and not self._uncommitted(markers):
                self._complete(markers)
                return
        self._spawn(self._write_rest(markers, left))

    async def _write_rest(self, markers: Markers, left: list[TopicPartition]) -> None:
        pause = RETRY_SECONDS
        try:
            while left:
                again: list[TopicPartition] = []
                for start in range(0, len(left), MARKERS_AT_ONCE):
                    again += self._write_some(markers, left[start : start + MARKERS_AT_ONCE])
                    await asyncio.sleep(0)
                left = again
                if left:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, MAX_RETRY_SECONDS)
            # A transaction is complete once its markers are: one that a power loss takes could never be written again.
            for partition, end_offset in self._uncommitted(markers):
                await partition.committed(end_offset)
        except KafkaError as error:
            logger.warning("%s: its markers are left to its coordinator: %s", markers.transactional_id, error)
        else:
            self._complete(markers)

    def _uncommitted(self, markers: Markers) -> list[tuple[Partition, int]]:
        """Partitions of the transaction with an end that is not committed yet."""
        found = []
        for topic, index in sorted(markers.partitions):
            with suppress(KafkaError):  # deleted since
                partition = self._partitions.get(topic, index)
                if partition.log.high_watermark < partition.log.log_end_offset:
                    found.append((partition, partition.log.log_end_offset))
        return found

    def _write_some(self, markers: Markers, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Those that could not be written and have to be tried again. Raises if another coordinator does it all."""
        coordinator = self.coordinators.of(markers.transactional_id)
        left = []
        for topic, index in partitions:
            try:
                self._write_one(markers, coordinator.partition.leader_epoch, topic, index)
            except KafkaError as error:
                if error.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                    raise
                logger.info(
                    "%s: the end of its transaction waits for %s-%d: %s", markers.transactional_id, topic, index, error
                )
                left.append((topic, index))
        return left

    def _write_one(self, markers: Markers, coordinator_epoch: int, topic: str, index: int) -> None:
        if self._metadata.image.partition(topic, index) is None:
            return  # deleted since, and its records with it
        marker = EndTxn(markers.committed, coordinator_epoch)
        try:
            self.markers.write(
                topic, index, markers.producer_id, markers.producer_epoch, marker, markers.client_version
            )
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_PRODUCER_EPOCH:
                raise
            logger.warning(
                "%s-%d has ended the transaction of %s before: %s", topic, index, markers.transactional_id, error
            )

    def _complete(self, markers: Markers) -> None:
        # a coordinator that is new here finds in its log what is undone, and does it again
        with suppress(KafkaError):
            self.coordinators.of(markers.transactional_id).post(partial(_complete, markers))

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
