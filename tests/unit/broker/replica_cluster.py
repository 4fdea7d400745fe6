"""Runs partitions of several brokers in one event loop. Each broker has a disk in memory, and tests can cut links.

The metadata is a plain image that the test changes. The controller is replaced by a few lines that accept the ISR
proposals of leaders.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from penstock.broker.events import NodeEvent
from penstock.broker.fetch.fetch_policy import FetchPolicy
from penstock.broker.fetch.fetch_sessions import FetchSessions
from penstock.broker.handlers import api_01_fetch, api_02_list_offsets
from penstock.broker.limits.quotas import Quotas
from penstock.broker.peers.peers import Call, Peers
from penstock.broker.replicas.directory_assignments import DirectoryAssignments
from penstock.broker.replicas.directory_moves import DirectoryMoves
from penstock.broker.replicas.isr_changes import IsrChanges
from penstock.broker.replicas.partition import Partition
from penstock.broker.replicas.partitions import Partitions
from penstock.broker.replicas.replica_manager import ReplicaManager
from penstock.broker.requests.slices import Slices
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.manager import LogManager
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import BrokerImage, ImageChanges, MetadataImage, PartitionImage, TopicImage
from penstock.net.later import settled
from penstock.net.limits import ByteBudget
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from penstock.protocol.messages.api_73_assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from penstock.protocol.vocabulary import ResourceType
from penstock.records.batches import split_batches
from penstock.records.build import build_batch
from penstock.sim.engine.loop import Timeline

T = TypeVar("T")
TOPIC = "t"
NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
QUICK = {"replica.fetch.backoff.ms": "100", "replica.lag.time.max.ms": "1000"}


def run(work: Coroutine[Any, Any, T], seed: int = 1) -> T:
    """Runs a scenario in virtual time. An unhandled exception of a task also fails the test."""
    timeline = Timeline(random.Random(seed))
    try:
        result = timeline.run(work, timeline.process("test"), until=10_000)
    finally:
        timeline.end()
    assert not timeline.failures, [str(each) for each in timeline.failures]
    return result


def batch(*values: bytes) -> bytes:
    return build_batch([(NOW_MS, b"k", value, ()) for value in values])


class Member:
    """Runs one broker of the cluster."""

    def __init__(self, cluster: Cluster, node_id: int, disk: MemoryDisk) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.disk = disk
        self.epoch = 100 + node_id
        self.settings = Settings({"node.id": str(node_id), **QUICK, **cluster.settings})
        self.logs = LogManager(disk, ("/logs",), ManualClock())
        channel: Any = SimpleNamespace(ask=self._ask_controller)
        isr_changes = IsrChanges(node_id, channel, lambda: self.epoch)
        assignments = DirectoryAssignments(node_id, channel, lambda: self.epoch)
        self.partitions = Partitions(
            node_id,
            self.logs,
            self.settings,
            broker_epoch=lambda: self.epoch,
            propose=isr_changes.submit,
            placed=assignments.placed,
            moves=DirectoryMoves(self.logs, self.settings, assign=assignments.assigned, revert=assignments.report),
        )
        self.events: list[NodeEvent] = []
        self.replicas = ReplicaManager(
            node_id,
            self.partitions,
            SimpleNamespace(ask=self._ask, begin=self._begin),  # type: ignore[arg-type]
            self.settings,
            isr_changes=isr_changes,
            assignments=assignments,
            broker_epoch=lambda: self.epoch,
            observer=self.events.append,
        )
        self.broker: Any = SimpleNamespace(
            partitions=self.partitions,
            fetch_sessions=FetchSessions(100, random.Random(node_id)),
            quotas=Quotas(self.settings),
            metadata=SimpleNamespace(image=cluster.image),
            fetch_policy=FetchPolicy(self.partitions.host, self.settings, "PLAINTEXT"),
            unsent=ByteBudget(-1),
            logs=self.logs,
            slices=Slices(),
        )
        self.image: MetadataImage | None = None
        self.alive = False
        self.fetches: list[Any] = []

    async def start(self) -> None:
        await self.logs.open(node_id=self.node_id, cluster_id="c")
        self.alive = True
        self.replicas.start()
        self.apply(self.cluster.image)

    def apply(self, image: MetadataImage) -> None:
        old, self.image = self.image, image
        self.settings.apply_image(image)
        self.broker.metadata.image = image
        self.partitions.apply(old, image)
        self.replicas.apply(old, image)

    async def _ask(self, node_id: int, request: Any, *, lane: str = "", timeout_ms: int | None = None) -> Any:
        return await self.cluster.carry(self.node_id, node_id, request, lane)

    def _begin(self, node_id: int, request: Any, *, lane: str, timeout_ms: int) -> Call:
        asking = asyncio.ensure_future(self._ask(node_id, request, lane=lane, timeout_ms=timeout_ms))
        return Call.of_task(cast(Peers, None), node_id, asking)

    async def _ask_controller(self, request: Any, *, timeout_ms: int | None = None) -> Any:
        await asyncio.sleep(0.001)
        if isinstance(request, AssignReplicasToDirsRequest):
            return AssignReplicasToDirsResponse()
        return await self.cluster.alter_partition(request)

    async def serve(self, request: Any) -> Any:
        version, module = (18, api_01_fetch) if request.API_KEY == 1 else (10, api_02_list_offsets)
        self.fetches.append(request)
        ctx: Any = SimpleNamespace(
            api_version=version,
            now_ms=int(asyncio.get_running_loop().time() * 1000),
            listener_name="PLAINTEXT",
            large=False,
        )
        return await settled(module.handle(self.broker, ctx, request))

    @property
    def partition(self) -> Partition:
        return self.partitions.get(TOPIC, 0)

    def values(self) -> list[bytes]:
        """Returns the batches of this replica's log as bytes."""
        log = self.partition.log
        found: list[bytes] = []
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            data = log.read(offset, 1 << 20, upper_bound=log.log_end_offset).read_now()
            for header, view in split_batches(data, allow_partial=True):
                found.append(bytes(view))
                offset = header.next_offset
        return found

    def append(self, *values: bytes, acks: int = -1) -> int:
        """Appends a batch and returns the offset after its last record."""
        return self.partition.append(batch(*values), now_ms=NOW_MS, required_acks=acks).last_offset + 1


class Cluster:
    def __init__(self, *node_ids: int, **settings: str) -> None:
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.image = MetadataImage(
            version=1,
            brokers={each: self._broker(each) for each in node_ids},
        )
        self.cut: set[tuple[int, int]] = set()
        self.refuse_isr: list[ErrorCode] = []
        self.publish_first = False
        """An image arrives before the response about its change, as on a leader that is the active controller."""
        self.members = {each: Member(self, each, MemoryDisk(crashable=True)) for each in node_ids}

    @staticmethod
    def _broker(node_id: int) -> BrokerImage:
        return BrokerImage(node_id, 100 + node_id, bytes(16), {}, fenced=False, rack=f"rack{node_id}")

    def __getitem__(self, node_id: int) -> Member:
        return self.members[node_id]

    async def start(self, partition: PartitionImage, **configs: str) -> None:
        self._change(partition, {name.replace("_", "."): value for name, value in configs.items()})
        for member in self.members.values():
            await member.start()

    async def close(self) -> None:
        for member in self.members.values():
            if member.alive:
                await member.replicas.close()
                member.partitions.release_waiters()
                await member.partitions.close()

    async def crash(self, node_id: int, rng: random.Random | None = None) -> None:
        """Kills the process. With `rng`, also cuts the machine's power: unsynced data may be lost."""
        member = self.members[node_id]
        member.alive = False
        await member.replicas.close()
        member.partitions.release_waiters()
        await member.partitions.close()
        member.logs.abandon()

    async def restart(self, node_id: int, rng: random.Random | None = None) -> None:
        disk = self.members[node_id].disk
        if rng is not None:
            disk = disk.crash(rng)
        member = self.members[node_id] = Member(self, node_id, disk)
        await member.start()

    # The controller.

    @property
    def partition(self) -> PartitionImage:
        return self.image.topics[TOPIC].partitions[0]

    def isr(self) -> tuple[int, ...]:
        return self.partition.isr

    def _change(
        self, partition: PartitionImage, configs: dict[str, str] | None = None, *others: PartitionImage
    ) -> None:
        topic = TopicImage(TOPIC, TOPIC_ID, dict(enumerate((partition, *others))))
        old = self.image
        self.image = replace(
            old,
            version=old.version + 1,
            topics={TOPIC: topic},
            topics_by_id={TOPIC_ID: topic},
            configs=old.configs if configs is None else {**old.configs, (int(ResourceType.TOPIC), TOPIC): configs},
            changes=ImageChanges(old.version, frozenset({TOPIC}), frozenset({(int(ResourceType.TOPIC), TOPIC)})),
        )

    def widen(self, *others: PartitionImage) -> None:
        """Adds partitions to the topic, beginning with partition 1."""
        self._change(self.partition, None, *others)
        self.publish()

    def publish(self, *node_ids: int) -> None:
        for node_id in node_ids or self.members:
            member = self.members[node_id]
            if member.alive and member.image is not self.image:
                member.apply(self.image)

    def change(self, *, publish: bool = True, **fields: Any) -> None:
        old = self.partition
        if "leader" in fields:
            fields.setdefault("leader_epoch", old.leader_epoch + 1)
        self._change(replace(old, partition_epoch=old.partition_epoch + 1, **fields))
        if publish:
            self.publish()

    def change_broker(self, node_id: int, **fields: Any) -> None:
        brokers = {**self.image.brokers, node_id: replace(self.image.brokers[node_id], **fields)}
        old = self.image
        self.image = replace(
            old,
            version=old.version + 1,
            brokers=brokers,
            changes=ImageChanges(old.version, brokers=frozenset({node_id})),
        )
        self.publish()

    async def alter_partition(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        asked = request.topics[0].partitions[0]
        answer = AlterPartitionResponsePartitionData(partition_index=0)
        now = self.partition
        if self.refuse_isr:
            answer.error_code = self.refuse_isr.pop(0)
            if answer.error_code == ErrorCode.INELIGIBLE_REPLICA:
                self.change(publish=False)
                asyncio.get_running_loop().call_later(0.005, self.publish)
        elif asked.leader_epoch != now.leader_epoch or request.broker_id != now.leader:
            answer.error_code = ErrorCode.FENCED_LEADER_EPOCH
        elif asked.partition_epoch != now.partition_epoch:
            answer.error_code = ErrorCode.INVALID_UPDATE_VERSION
        else:
            isr = tuple(each.broker_id for each in asked.new_isr_with_epochs)
            self.change(publish=self.publish_first, isr=isr)
            asyncio.get_running_loop().call_later(0.005, self.publish)
            answer.isr, answer.leader_id, answer.leader_epoch = list(isr), now.leader, now.leader_epoch
            answer.partition_epoch = now.partition_epoch + 1
        return AlterPartitionResponse(topics=[AlterPartitionResponseTopicData(topic_id=TOPIC_ID, partitions=[answer])])

    # The network.

    async def carry(self, source: int, target: int, request: Any, lane: str) -> Any:
        await asyncio.sleep(0.0005)
        self._check(source, target)
        serving = asyncio.ensure_future(self.members[target].serve(request))
        try:
            while not serving.done():
                await asyncio.wait((serving,), timeout=0.01)
                self._check(source, target)
        except BaseException:
            serving.cancel()
            raise
        return serving.result()

    def _check(self, source: int, target: int) -> None:
        if (source, target) in self.cut or not self.members[target].alive:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "cut")


async def until(condition: Any, seconds: float = 20.0) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition():
        assert loop.time() < end, "it did not come to that"
        await asyncio.sleep(0.002)
