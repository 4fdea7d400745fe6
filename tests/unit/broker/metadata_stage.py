"""Runs a metadata log on a quorum that the test plays: the test elects leaders and commits records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from penstock.broker.controlplane.metadata_log import MetadataLog, SnapshotPolicy
from penstock.broker.controlplane.metadata_storage import DIRECTORY, SnapshotStore, open_metadata_log
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.log import AppendOrigin, Log
from penstock.metadata.decision import Decision
from penstock.metadata.features import MAX_METADATA_VERSION
from penstock.metadata.framing import encode_record
from penstock.metadata.image import MetadataImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.persisted.metadata.config_record import ConfigRecord
from penstock.protocol.persisted.metadata.feature_level_record import FeatureLevelRecord
from penstock.protocol.persisted.raft.kraft_version_record import KRaftVersionRecord
from penstock.raft.describe import QuorumView, ReplicaView
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.voters import Voter, VoterSet
from penstock.records.build import build_batch
from penstock.records.control import build_control

PATH = f"/data/{DIRECTORY}"
TOPIC = 2
NOW_MS = ManualClock().wall_ms()
MOST_ROUNDS = 20_000  # of the event loop
NEVER = SnapshotPolicy(1 << 40, 1 << 40, 1 << 40)
FEATURES = FeatureLevelRecord(name="metadata.version", feature_level=MAX_METADATA_VERSION)


def config(name: str, value: str = "1") -> ConfigRecord:
    return ConfigRecord(resource_type=TOPIC, resource_name=name, name="retention.ms", value=value)


@dataclass
class PlayedQuorum:
    """Replaces the quorum: appends proposals to the log at once, and commits only what the test commits."""

    log: Log
    leader_id: int = -1
    epoch: int = 0
    refuses: bool = False
    listener: Any = None
    in_contact: bool = False
    other_cluster_peers: set[int] = field(default_factory=set)
    voters: tuple[Voter, ...] = (Voter(1),)
    progress: tuple[ReplicaView, ...] = ()
    observers: tuple[ReplicaView, ...] = ()
    calls: list[str] = field(default_factory=list)
    taken: list[tuple[OffsetAndEpoch, int]] = field(default_factory=list)

    def start(self, listener: Any) -> None:
        self.listener = listener

    def append(self, epoch: int, batch: bytes) -> None:
        self.log.append_as_leader(batch, leader_epoch=epoch, now_ms=NOW_MS, origin=AppendOrigin.RAFT_LEADER)

    def propose(self, epoch: int, batches: list[tuple[int, bytes]]) -> int:
        if self.refuses:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "Node 2 leads the quorum: send the request there.")
        for _, batch in batches:
            self.append(epoch, batch)
        return self.log.log_end_offset

    def describe(self) -> QuorumView:
        return QuorumView(
            self.leader_id, self.epoch, self.log.high_watermark, VoterSet(self.voters), self.progress, self.observers
        )

    def voters_before(self, end_offset: int) -> tuple[Voter, ...]:
        return self.voters

    def snapshot_taken(self, snapshot: OffsetAndEpoch, start_offset: int) -> None:
        self.taken.append((snapshot, start_offset))

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        return ("h", node_id) if node_id > 1 else None

    def step_down(self) -> None:
        self.calls.append("step_down")

    async def hand_over(self) -> None:
        self.calls.append("hand_over")

    async def abandon(self) -> None:
        self.calls.append("abandon")

    async def close(self) -> None:
        self.calls.append("close")


class MetadataStage:
    def __init__(self, disk: MemoryDisk | None = None, policy: SnapshotPolicy = NEVER) -> None:
        if disk is None:
            disk = MemoryDisk()
            disk.mkdir("/data")
        self.disk = disk
        self.clock = ManualClock()
        self.log: Log = open_metadata_log(disk, "/data", self.clock, Random(1))
        self.quorum = PlayedQuorum(self.log)
        self.fatal: list[Exception] = []
        self.metadata = MetadataLog(
            self.log,
            disk,
            self.clock,
            Voter(1),
            cast(Any, self.quorum),
            policy=policy,
            on_fatal=self.fatal.append,
        )
        self.shown: list[tuple[MetadataImage, MetadataImage]] = []
        self.metadata.subscribe(lambda old, new: self.shown.append((old, new)))

    def write(self, *records: Any, epoch: int = 1) -> None:
        """Appends one batch to this node's log, as if another leader had sent it."""
        values = [(1, None, encode_record(record, MAX_METADATA_VERSION), ()) for record in records]
        self.quorum.append(epoch, build_batch(values, leader_epoch=epoch))

    def write_control(self, epoch: int = 1) -> None:
        """Appends a batch of the quorum itself, which sets kraft.version."""
        message = KRaftVersionRecord(version=0, kraft_version=1)
        self.quorum.append(epoch, build_control([message], timestamp=1, leader_epoch=epoch))

    def role(self, role: str, epoch: int, leader_id: int) -> None:
        self.quorum.leader_id, self.quorum.epoch = leader_id, epoch
        self.metadata.role_changed(role, epoch, leader_id)

    def lead(self, epoch: int = 1) -> None:
        self.role("leader", epoch, 1)

    def commit(self, high_watermark: int | None = None) -> None:
        self.metadata.committed(self.log.log_end_offset if high_watermark is None else high_watermark)

    def submit(self, *records: Any, reply: str = "done") -> asyncio.Task[str]:
        return asyncio.ensure_future(self.metadata.submit(lambda image: Decision(list(records), reply)))

    async def leading(self, epoch: int = 1) -> None:
        """Starts the metadata log as leader, with all its first records committed."""
        await self.metadata.start()
        self.lead(epoch)
        self.commit()
        self.shown.clear()

    @property
    def image(self) -> MetadataImage:
        return self.metadata.image

    def snapshots(self) -> list[int]:
        return [end for end, _, _ in SnapshotStore(self.disk, PATH).names()]


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(30):
        await asyncio.sleep(0)


def play(script: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs the script. Nothing in it waits for time, so a script that does not end waits for something that is lost."""

    async def main() -> None:
        running = asyncio.ensure_future(script())
        for _ in range(MOST_ROUNDS):
            if running.done():
                break
            await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        assert not others, "a task still waits at the end of the test"
        await running

    asyncio.run(main())


def names(images: Sequence[tuple[MetadataImage, MetadataImage]]) -> list[set[str]]:
    """Returns the topics with changed configs of each new image."""
    return [{name for _, name in new.changes.configs} for _, new in images]
