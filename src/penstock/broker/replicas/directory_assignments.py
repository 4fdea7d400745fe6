"""Reports a replica's log directory to the controller if the metadata has a different directory (KIP-858).

If the metadata has a directory that the broker doesn't have, the replica counts as offline and may not lead. So a
broker reports the directory after a restart with a new disk, and after it has chosen a directory for a new replica. All
waiting reports go into one request, which is repeated until the controller accepts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.tasks import RepeatedRequest
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    DirectoryData,
    PartitionData,
    TopicData,
)

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_channel import ControllerChannel
    from penstock.broker.replicas.partition import Partition

logger = logging.getLogger(__name__)

ASK_TIMEOUT_MS = 30_000
#: Maximum number of replicas in a request, as in Kafka.
MAX_REPLICAS = 2_000


class DirectoryAssignments:
    def __init__(self, node_id: int, channel: ControllerChannel, broker_epoch: Callable[[], int]) -> None:
        self._node_id = node_id
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._waiting: dict[Partition, bytes] = {}
        #: Callers that wait for the controller's answer about a replica.
        self._answers: dict[tuple[Partition, bytes], list[asyncio.Future[None]]] = {}
        self._reports = RepeatedRequest("directory assignments", lambda: bool(self._waiting), self._send)

    def placed(self, partition: Partition, directory_id: bytes) -> None:
        """Reports the directory that holds the replica's log; no-op if the metadata already has this directory."""
        if partition.image.directory(self._node_id) != directory_id:
            self.report(partition, directory_id)

    def report(self, partition: Partition, directory_id: bytes) -> None:
        """Reports the directory even if the metadata already has it.

        Replaces an unsent report for the same replica.
        """
        if self._reports.closed:
            return
        before = self._waiting.get(partition)
        if before is not None and before != directory_id:
            self._answer(partition, before, ErrorCode.REQUEST_TIMED_OUT)
        self._waiting[partition] = directory_id
        self._reports.start()

    async def assigned(self, partition: Partition, directory_id: bytes) -> None:
        """Reports the directory and waits until the controller has accepted the report.

        Raises KafkaError if the controller refuses the report.
        """
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers.setdefault((partition, directory_id), []).append(answer)
        self.report(partition, directory_id)
        await answer

    async def close(self) -> None:
        await self._reports.close()

    async def _send(self) -> bool:
        return await self._ask(list(self._waiting.items())[:MAX_REPLICAS])

    async def _ask(self, replicas: list[tuple[Partition, bytes]]) -> bool:
        """Sends one AssignReplicasToDirs request. Returns False if it has to be repeated.

        If the answer has an error for a single replica, that replica is not reported again: its topic was deleted, or
        the replica was moved.
        """
        try:
            answer: AssignReplicasToDirsResponse = await self._channel.ask(
                self._request(replicas), timeout_ms=ASK_TIMEOUT_MS
            )
        except KafkaError as error:
            logger.warning("the directories of %d replicas could not be reported, retrying: %s", len(replicas), error)
            return False
        if answer.error_code:
            code = ErrorCode(answer.error_code).name
            logger.warning("the controller refused the directories of %d replicas, retrying: %s", len(replicas), code)
            return False
        refused = {
            (directory.id, topic.topic_id, one.partition_index): ErrorCode(one.error_code)
            for directory in answer.directories
            for topic in directory.topics
            for one in topic.partitions
            if one.error_code
        }
        for partition, directory_id in replicas:
            if self._waiting.get(partition) == directory_id:
                del self._waiting[partition]
            refusal = refused.get((directory_id, partition.topic_id, partition.index), ErrorCode.NONE)
            self._answer(partition, directory_id, refusal)
        return True

    def _answer(self, partition: Partition, directory_id: bytes, code: ErrorCode) -> None:
        for waiting in self._answers.pop((partition, directory_id), ()):
            if waiting.done():
                continue
            if code:
                waiting.set_exception(KafkaError(code, f"The controller refused the directory of {partition}."))
            else:
                waiting.set_result(None)

    def _request(self, replicas: list[tuple[Partition, bytes]]) -> AssignReplicasToDirsRequest:
        topics: dict[tuple[bytes, bytes], TopicData] = {}
        directories: dict[bytes, DirectoryData] = {}
        for partition, directory_id in replicas:
            directory = directories.setdefault(directory_id, DirectoryData(id=directory_id))
            key = (directory_id, partition.topic_id)
            if key not in topics:
                topics[key] = TopicData(topic_id=partition.topic_id)
                directory.topics.append(topics[key])
            topics[key].partitions.append(PartitionData(partition_index=partition.index))
        return AssignReplicasToDirsRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch(), directories=list(directories.values())
        )
