"""Tests the events of a node: each observer, such as the logger, gets each role change of the quorum once."""

import asyncio
import logging
from random import Random

import pytest

from penstock.broker.controlplane.metadata_storage import DIRECTORY, SnapshotStore, open_metadata_log
from penstock.broker.controlplane.quorum import Quorum
from penstock.broker.controlplane.quorum_files import QuorumFiles
from penstock.broker.events import NodeEvent, Observer, QuorumRoleChanged, log_event, notify_all
from penstock.broker.events.kinds import MetadataTruncated
from penstock.disk.memory import MemoryDisk
from penstock.log.log import Log
from penstock.net.network import RealNetwork
from penstock.node.clock import SystemClock
from penstock.raft.config import RaftConfig
from penstock.raft.events import Truncate
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.voters import Voter, VoterSet


class _Follower:
    """Listens to the quorum and remembers the roles of which it was notified."""

    def __init__(self) -> None:
        self.roles: list[tuple[str, int, int]] = []
        self.leads = asyncio.Event()

    def role_changed(self, role: str, epoch: int, leader_id: int) -> None:
        self.roles.append((role, epoch, leader_id))
        if role == "leader":
            self.leads.set()

    def failed(self, error: Exception) -> None:
        raise error

    def committed(self, high_watermark: int) -> None: ...

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None: ...

    def snapshot_damaged(self) -> None: ...


def lone_voter(observer: Observer) -> tuple[Quorum, Log]:
    """Returns a quorum of one voter, and its log."""
    disk, clock = MemoryDisk(), SystemClock()
    me = Voter(1, b"d" * 16, (("CONTROLLER", "127.0.0.1", 1),))
    log = open_metadata_log(disk, "/data", clock, Random(1))
    files = QuorumFiles(log, disk, clock, SnapshotStore(disk, f"/data/{DIRECTORY}"), VoterSet((me,)))
    return Quorum(files, RealNetwork(), Random(1), me, cluster_id="c", config=RaftConfig(), observer=observer), log


def test_observer_gets_an_event_for_each_role_change_of_the_quorum() -> None:
    async def run() -> tuple[list[NodeEvent], list[tuple[str, int, int]]]:
        events: list[NodeEvent] = []
        quorum, log = lone_voter(events.append)
        follower = _Follower()
        quorum.start(follower)
        await follower.leads.wait()
        await quorum.close()
        log.close()
        return events, follower.roles

    events, roles = asyncio.run(run())
    changes = [event for event in events if isinstance(event, QuorumRoleChanged)]
    assert [(event.role, event.epoch, event.leader_id) for event in changes] == roles
    assert QuorumRoleChanged(1, "leader", 1, 1) in events


def test_truncation_of_the_metadata_log_is_reported_with_the_removed_offsets() -> None:
    async def run() -> None:
        events: list[NodeEvent] = []
        quorum, log = lone_voter(events.append)
        follower = _Follower()
        quorum.start(follower)
        await follower.leads.wait()
        events.clear()
        end = log.log_end_offset
        quorum._carry_out(Truncate(0))
        assert events == [MetadataTruncated(end, 0)]
        assert str(events[0]).startswith(f"the metadata log is truncated from offset {end} to 0")
        assert end > log.log_end_offset == 0
        await quorum.close()
        log.close()

    asyncio.run(run())


def test_notify_all_passes_an_event_to_the_log_and_to_every_observer(caplog: pytest.LogCaptureFixture) -> None:
    events: list[NodeEvent] = []
    with caplog.at_level(logging.INFO, "penstock.broker.events"):
        notify_all((events.append, log_event))(QuorumRoleChanged(2, "follower", 7, 3))
    assert events == [QuorumRoleChanged(2, "follower", 7, 3)]
    assert caplog.messages == ["the quorum: follower in epoch 7, leader 3"]
