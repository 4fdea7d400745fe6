"""Runs replicas of the quorum for tests, with real sockets, with disks in memory and without brokers."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.broker.controlplane.metadata_storage import DIRECTORY, SnapshotStore, open_metadata_log
from penstock.broker.controlplane.quorum import Quorum
from penstock.broker.controlplane.quorum_files import QuorumFiles
from penstock.disk.memory import MemoryDisk
from penstock.metadata.checkpoint import checkpoint_name, write_checkpoint
from penstock.metadata.features import MAX_METADATA_VERSION
from penstock.net.connection import Connection
from penstock.net.later import Later
from penstock.net.network import RealNetwork
from penstock.net.reply import Reply
from penstock.net.server import Listener, Server
from penstock.node.clock import SystemClock
from penstock.protocol.apis import (
    APIS,
    request_class,
    request_header_version,
    response_class,
    response_header_version,
)
from penstock.protocol.codec import decode, decode_prefix, encode_parts
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_18_api_versions import ApiVersion, ApiVersionsResponse
from penstock.protocol.messages.headers import RequestHeader
from penstock.raft.config import RaftConfig
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.voters import Voter, VoterSet
from penstock.records.batches import iter_batches
from penstock.records.build import build_batch
from penstock.records.record import read_records

KEYS = (1, 18, 52, 53, 54, 59, 80, 81, 82)
#: Short timeouts, so that tests do not wait for seconds.
CONFIG = RaftConfig(
    election_timeout_ms=150,
    election_backoff_max_ms=150,
    fetch_timeout_ms=600,
    request_timeout_ms=600,
    fetch_max_wait_ms=100,
    suspect_ms=60,
)
LIMIT_S = 120.0


@dataclass
class Replica:
    node_id: int
    news: asyncio.Event
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    server: Server | None = None
    quorum: Quorum | None = None
    log: Any = None
    port: int = 0
    roles: list[tuple[str, int]] = field(default_factory=list)
    high_watermark: int = 0
    damaged: int = 0
    failure: Exception | None = None
    installed: list[OffsetAndEpoch] = field(default_factory=list)

    # Notifications of the quorum.

    def role_changed(self, role: str, epoch: int, leader_id: int) -> None:
        self.roles.append((role, epoch))
        self.news.set()

    def committed(self, high_watermark: int) -> None:
        assert high_watermark > self.high_watermark
        self.high_watermark = high_watermark
        self.news.set()

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None:
        self.installed.append(snapshot)
        self.news.set()

    def snapshot_damaged(self) -> None:
        self.damaged += 1
        self.take_snapshot()

    def failed(self, error: Exception) -> None:
        self.failure = error
        self.news.set()

    # The node.

    @property
    def voter(self) -> Voter:
        return Voter(self.node_id, self.node_id.to_bytes(16, "big"), (("CONTROLLER", "127.0.0.1", self.port),))

    @property
    def running(self) -> Quorum:
        assert self.quorum is not None
        return self.quorum

    async def listen(self) -> None:
        self.server = Server(self._dispatch)
        (listener,) = await self.server.start([Listener("CONTROLLER", "127.0.0.1", self.port, "PLAINTEXT")])
        self.port = listener.port

    def start(self, voters: VoterSet) -> None:
        self.make(voters).start(self)

    def make(self, voters: VoterSet) -> Quorum:
        clock = SystemClock()
        self.high_watermark = 0
        self.log = open_metadata_log(self.disk, "/data", clock, random.Random(self.node_id))
        files = QuorumFiles(self.log, self.disk, clock, SnapshotStore(self.disk, f"/data/{DIRECTORY}"), voters)
        self.quorum = Quorum(
            files,
            RealNetwork(),
            random.Random(self.node_id),
            self.voter,
            cluster_id="test-cluster",
            config=CONFIG,
        )
        return self.quorum

    async def kill(self) -> None:
        """Stops the replica at once, as a crash does. Its unflushed data survives."""
        assert self.server is not None
        await self.running.abandon()
        await self.server.stop(grace_s=0)
        self.quorum = None
        self.log.close()

    async def stop(self) -> None:
        assert self.server is not None
        await self.running.close()
        await self.server.stop(grace_s=0)
        self.quorum = None
        self.log.close()

    def _dispatch(self, connection: Connection, frame: memoryview) -> Later[Reply]:
        return Later(self._answer(bytes(frame)))

    async def _answer(self, frame: bytes) -> Reply:
        key, version = struct.unpack_from(">hh", frame)
        header, position = decode_prefix(RequestHeader, request_header_version(key, version), frame)
        request = decode(request_class(key), version, frame, position)
        if key == 18:
            keys = [
                ApiVersion(api_key=k, min_version=APIS[k].min_version, max_version=APIS[k].latest_stable) for k in KEYS
            ]
            response: Any = ApiVersionsResponse(api_keys=keys)
        else:
            try:
                response = await self.running.answer(request)
            except KafkaError as error:
                response = response_class(key)()
                response.error_code = error.code
        head = struct.pack(">i", header.correlation_id)
        if response_header_version(key, version):
            head += b"\0"
        return [head, *encode_parts(response, version)]

    # For tests.

    def take_snapshot(self) -> OffsetAndEpoch:
        """Takes a snapshot of all committed records and empties the log."""
        quorum, log = self.running, self.log
        snapshot = OffsetAndEpoch(self.high_watermark, log.epochs.latest_epoch)
        voters = quorum.describe().voter_set
        parts = write_checkpoint(
            [],
            epoch=snapshot.epoch,
            timestamp_ms=0,
            last_contained_timestamp_ms=0,
            metadata_version=MAX_METADATA_VERSION,
            kraft_version=1,
            voters=list(voters),
        )
        self.disk.write_atomic(f"{log.path}/{checkpoint_name(*snapshot)}", b"".join(parts))
        if log.segments.active.size:
            log.roll()
        log.advance_log_start_offset(snapshot.offset)
        log.delete_old_segments(0)
        quorum.snapshot_taken(snapshot, snapshot.offset)
        return snapshot

    def propose(self, *values: str) -> int:
        quorum = self.running
        batch = build_batch([(0, None, value.encode(), ()) for value in values], leader_epoch=quorum.epoch)
        return quorum.propose(quorum.epoch, [(len(values), batch)])

    def values(self) -> list[str]:
        """Returns the values of all data records in the log."""
        if self.log.log_end_offset == self.log.log_start_offset:
            return []
        data = self.log.read(self.log.log_start_offset, 1 << 20, upper_bound=self.log.log_end_offset).read_now()
        return [
            record.value.decode()
            for header, view in iter_batches(data)
            if not header.is_control
            for record in read_records(view)
            if record.value is not None
        ]


class Group:
    """Holds replicas that know each other. `until` waits for their state to change."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.replicas: list[Replica] = []

    @staticmethod
    async def three() -> Group:
        group = Group()
        for node_id in (1, 2, 3):
            await group.add(node_id)
        voters = VoterSet.of(replica.voter for replica in group.replicas)
        for replica in group.replicas:
            replica.start(voters)
        return group

    async def add(self, node_id: int) -> Replica:
        replica = Replica(node_id, self.news)
        await replica.listen()
        self.replicas.append(replica)
        return replica

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition is true. The time limit only ends a hanging test."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                left = next((one.failure for one in self.replicas if one.failure is not None), None)
                if left is not None:
                    raise left
                self.news.clear()
                await self.news.wait()

    async def leader(self) -> Replica:
        """Waits until a leader has committed a record of its epoch, and returns this leader."""

        def found() -> list[Replica]:
            up = [one for one in self.replicas if one.quorum is not None]
            return [one for one in up if one.running.is_leader and one.high_watermark == one.log.log_end_offset]

        await self.until(lambda: len(found()) == 1)
        return found()[0]

    async def all_have(self, replica: Replica) -> None:
        """Waits until all replicas have committed all records in the given replica's log."""
        await self.until(lambda: all(one.high_watermark == replica.log.log_end_offset for one in self.replicas))

    async def kill(self) -> None:
        await asyncio.gather(*(one.kill() for one in self.replicas if one.quorum is not None))
