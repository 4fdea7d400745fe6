"""Tests one replica of the quorum in virtual time. The test plays the other voters and the listener."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import product
from random import Random
from typing import Any

import pytest

from penstock.broker.controlplane.metadata_storage import DIRECTORY, SnapshotStore, open_metadata_log
from penstock.broker.controlplane.quorum import Quorum
from penstock.broker.controlplane.quorum_files import QuorumFiles
from penstock.broker.controlplane.quorum_peers import MAX_LEARNED, QuorumPeers
from penstock.broker.events import NodeEvent
from penstock.broker.events.kinds import MajorityLost, MetadataTruncated, QuorumSteppedDown
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.log import AppendOrigin
from penstock.metadata.checkpoint import checkpoint_name, write_checkpoint
from penstock.net.network import RealNetwork
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import FetchRequest, ReplicaState
from penstock.protocol.messages.api_80_add_raft_voter import AddRaftVoterRequest
from penstock.protocol.messages.api_81_remove_raft_voter import RemoveRaftVoterRequest
from penstock.raft.config import RaftConfig
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.messages import (
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    Request,
    Vote,
    VoteAnswer,
)
from penstock.raft.voters import Voter, VoterSet
from penstock.raft.wire_requests import request_to_wire
from penstock.records.build import build_batch
from penstock.sim.engine.loop import Timeline

CLUSTER = "c"
LATER_S = 60.0


def voter(node_id: int) -> Voter:
    return Voter(node_id, bytes([node_id] * 16), (("CONTROLLER", f"host{node_id}", 9093),))


@dataclass
class PlayedPeers:
    """Replaces the connections to the other voters. Each peer grants votes unless it has an error or is silent."""

    asked: list[tuple[int, Request]] = field(default_factory=list)
    errors: dict[int, ErrorCode] = field(default_factory=dict)
    silent: bool = False
    closed: int = 0
    fetches: list[FetchAnswer] = field(default_factory=list)
    learned: list[Any] = field(default_factory=list)

    async def ask(self, node_id: int, voters: VoterSet, request: Request) -> tuple[Any, bool]:
        self.asked.append((node_id, request))
        if self.silent:
            await asyncio.Event().wait()
        await asyncio.sleep(0.001)
        if node_id in self.errors:
            raise KafkaError(self.errors[node_id], "no")
        if isinstance(request, Vote):
            return VoteAnswer(ErrorCode.NONE, request.epoch, -1, granted=True), True
        if isinstance(request, Fetch):
            while not self.fetches:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            if node_id in self.errors:
                raise KafkaError(self.errors[node_id], "no")
            return self.fetches.pop(0), True
        assert isinstance(request, BeginEpoch | EndEpoch)
        return EpochAnswer(ErrorCode.NONE, request.epoch, request.leader_id), True

    def address_of(self, node_id: int, voters: VoterSet) -> tuple[str, int] | None:
        return None

    def learn(self, endpoints: Any) -> None:
        self.learned.append(endpoints)

    def close(self) -> None:
        self.closed += 1


class Stage:
    def __init__(
        self,
        voters: int = 1,
        config: RaftConfig | None = None,
        disk: MemoryDisk | None = None,
        me: Voter | None = None,
        listed: VoterSet | None = None,
        bootstrap: dict[int, tuple[str, int]] | None = None,
    ) -> None:
        self.disk = disk or MemoryDisk()
        if disk is None:
            self.disk.mkdir("/data")
        self.log = open_metadata_log(self.disk, "/data", ManualClock(), Random(1))
        if listed is None:
            listed = VoterSet.of(voter(node_id) for node_id in range(1, voters + 1))
        self.files = QuorumFiles(
            self.log, self.disk, ManualClock(), SnapshotStore(self.disk, f"/data/{DIRECTORY}"), listed
        )
        self.events: list[NodeEvent] = []
        self.quorum = Quorum(
            self.files,
            RealNetwork(),
            Random(2),
            me or voter(1),
            cluster_id=CLUSTER,
            config=config or RaftConfig(),
            bootstrap=bootstrap,
            observer=self.events.append,
        )
        self.peers = PlayedPeers()
        self.quorum._peers = self.peers  # type: ignore[assignment]
        self.roles: list[tuple[str, int]] = []
        self.marks: list[int] = []
        self.failures: list[Exception] = []
        self.on_commit: Callable[[], None] = lambda: None

    # Notifications of the quorum.

    def role_changed(self, role: str, epoch: int, leader_id: int) -> None:
        self.roles.append((role, epoch))

    def committed(self, high_watermark: int) -> None:
        self.marks.append(high_watermark)
        self.on_commit()

    def failed(self, error: Exception) -> None:
        self.failures.append(error)

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None: ...

    def snapshot_damaged(self) -> None: ...

    # For tests.

    async def leading(self) -> None:
        self.quorum.start(self)
        await asyncio.sleep(LATER_S if len(self.quorum.describe().voter_set) == 1 else 3)
        assert self.quorum.is_leader

    def propose(self, count: int = 1, epoch: int | None = None) -> int:
        epoch = self.quorum.epoch if epoch is None else epoch
        batch = build_batch([(1, None, b"x", ())] * count, leader_epoch=epoch)
        return self.quorum.propose(epoch, [(count, batch)])

    def fetch(self, node_id: int, offset: int, max_wait_ms: int = 10_000) -> asyncio.Future[Any]:
        epoch = self.quorum.epoch
        known = self.quorum.high_watermark  # without news for this follower, the leader parks the fetch
        request = Fetch(voter(node_id).key, epoch, offset, epoch if offset else 0, known, max_wait_ms)
        return asyncio.ensure_future(self.quorum.answer(request_to_wire(request, CLUSTER, voter(node_id))))

    async def parked(self) -> list[asyncio.Future[Any]]:
        """Lets both followers fetch all records, then returns their parked fetches."""
        end = self.log.log_end_offset
        await asyncio.gather(*(self.fetch(node_id, end, max_wait_ms=10) for node_id in (2, 3)))
        assert self.quorum.high_watermark == end
        fetches = [self.fetch(node_id, end) for node_id in (2, 3)]
        await asyncio.sleep(0.01)
        assert not any(one.done() for one in fetches)
        return fetches

    async def left(self) -> None:
        """Checks that the replica takes no further part in the quorum."""
        before = (list(self.roles), list(self.marks), len(self.peers.asked), self.log.log_end_offset)
        with pytest.raises(KafkaError) as proposed:
            self.propose()
        with pytest.raises(KafkaError) as answered:
            await self.fetch(2, 0)
        assert (proposed.value.code, answered.value.code) == (
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.BROKER_NOT_AVAILABLE,
        )
        start = asyncio.get_running_loop().time()
        await self.quorum.hand_over()
        assert asyncio.get_running_loop().time() - start < 1  # it does not wait for a successor
        await asyncio.sleep(LATER_S)
        assert (self.roles, self.marks, len(self.peers.asked), self.log.log_end_offset) == before


def play(script: Callable[[], Awaitable[None]]) -> None:
    timeline = Timeline(Random(1))
    timeline.run(script(), timeline.process("node"))  # type: ignore[arg-type]
    timeline.end()


# --- proposals ---------------------------------------------------------------------------------------------


def test_single_voter_commits_each_proposal_and_refuses_other_epochs() -> None:
    async def script() -> None:
        stage = Stage()
        await stage.leading()
        end = stage.log.log_end_offset
        for count in (1, 2, 3):
            end += count
            assert stage.propose(count) == end
            await asyncio.sleep(1)
            assert (stage.marks[-1], stage.quorum.high_watermark, stage.log.high_watermark) == (end, end, end)
        for epoch in (stage.quorum.epoch - 1, stage.quorum.epoch + 1):
            with pytest.raises(KafkaError) as refused:
                stage.propose(epoch=epoch)
            assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert stage.log.log_end_offset == end
        await stage.quorum.close()

    play(script)


def test_proposal_in_the_step_in_which_the_leader_resigns_fails() -> None:
    async def script() -> None:
        stage = Stage(voters=3)
        await stage.leading()
        epoch, loop = stage.quorum.epoch, asyncio.get_running_loop()
        refusals = []
        while stage.quorum.is_leader:  # the other voters do not fetch, so one of the next deadlines ends the leadership
            await asyncio.sleep((stage.quorum._raft.deadline() + 0.5) / 1000 - loop.time())
            end = stage.log.log_end_offset
            try:
                assert stage.propose(epoch=epoch) == end + 1
            except KafkaError as error:
                refusals.append(error.code)
        assert refusals == [ErrorCode.NOT_CONTROLLER]
        assert stage.log.log_end_offset == end + 1  # the records were appended before the leader resigned
        assert stage.roles[-1] == ("resigned", epoch)
        await stage.quorum.abandon()

    play(script)


def test_records_proposed_during_a_flush_are_committed_by_the_next_flush() -> None:
    async def script() -> None:
        stage = Stage()
        await stage.leading()
        flush, running = stage.files.flush, [0, 0]

        async def slow() -> None:
            running[0] += 1
            running[1] = max(running)
            await flush()  # covers the records that are there when the flush begins
            await asyncio.sleep(1)
            running[0] -= 1

        stage.files.flush = slow  # type: ignore[method-assign]
        before = len(stage.marks)
        first = stage.propose()
        await asyncio.sleep(0.5)
        second = stage.propose()
        assert stage.marks[before:] == []
        await asyncio.sleep(0.6)
        assert stage.marks[before:] == [first]
        await asyncio.sleep(1.1)
        assert stage.marks[before:] == [first, second]
        assert running == [0, 1]
        await stage.quorum.abandon()

    play(script)


# --- leaving the quorum ------------------------------------------------------------------------------------


def test_stopped_replica_takes_no_part_and_answers_all_parked_requests() -> None:
    async def script(hands_over: bool) -> None:
        stage = Stage(voters=3)
        await stage.leading()
        parked = await stage.parked()
        if not hands_over:
            await stage.quorum.abandon()
            assert [role for role, _ in stage.roles][-1] == "leader"
            for one in parked:
                with pytest.raises(KafkaError) as refused:
                    await one
                assert refused.value.code is ErrorCode.BROKER_NOT_AVAILABLE
        else:
            await stage.quorum.close()
            assert any(isinstance(request, EndEpoch) for _, request in stage.peers.asked)
            await asyncio.gather(*parked, return_exceptions=True)
        assert stage.peers.closed == 1
        await stage.left()
        assert stage.failures == []

    for hands_over in (False, True):
        play(lambda hands_over=hands_over: script(hands_over))  # type: ignore[misc]


def test_stop_cancels_requests_to_silent_voters_and_does_not_wait_for_them() -> None:
    async def script() -> None:
        stage = Stage(voters=3)
        stage.peers.silent = True
        stage.quorum.start(stage)
        await asyncio.sleep(10)
        assert stage.peers.asked
        await stage.quorum.abandon()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    play(script)


def test_single_voter_stops_without_waiting_for_a_successor() -> None:
    async def script() -> None:
        stage = Stage()
        await stage.leading()
        loop = asyncio.get_running_loop()
        start = loop.time()
        await stage.quorum.close()
        assert loop.time() - start < 1
        await stage.left()

    play(script)


@pytest.mark.parametrize("where", ["append", "flush", "save_state", "committed", "listener"])
def test_replica_leaves_the_quorum_after_a_failure_and_reports_it_once(where: str) -> None:
    async def script() -> None:
        stage = Stage(voters=3)
        await stage.leading()
        parked = await stage.parked()
        error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space") if where == "flush" else OSError("no space")

        def fail(*_: Any) -> None:
            raise error

        async def fail_later() -> None:
            raise error

        if where == "listener":
            stage.on_commit = fail
        elif where == "flush":
            stage.files.flush = fail_later  # type: ignore[method-assign]
        else:
            setattr(stage.files, where, fail)
        if where == "save_state":
            later = Vote(voter(1).key, voter(2).key, stage.quorum.epoch + 5, 9, 100, False)
            wire = request_to_wire(later, CLUSTER, voter(2))
            parked.append(asyncio.ensure_future(stage.quorum.answer(wire)))
        elif where in ("committed", "listener"):
            end = stage.propose()
            await asyncio.sleep(0.01)
            parked += [stage.fetch(node_id, end) for node_id in (2, 3)]
        elif where == "append":
            with pytest.raises(KafkaError) as refused:
                stage.propose()
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        else:
            stage.propose()
        await asyncio.sleep(1)
        assert stage.failures == [error]
        answers = await asyncio.gather(*parked, return_exceptions=True)
        assert len(answers) == len(parked)
        assert stage.peers.closed == 1
        await stage.left()
        assert stage.failures == [error]

    play(script)


# --- elections -----------------------------------------------------------------------------------------------


def test_voter_asks_again_after_failed_requests_until_it_is_elected() -> None:
    async def script() -> None:
        stage = Stage(voters=3)
        stage.peers.errors = {2: ErrorCode.NETWORK_EXCEPTION, 3: ErrorCode.REQUEST_TIMED_OUT}
        stage.quorum.start(stage)
        await asyncio.sleep(10)
        assert "leader" not in dict(stage.roles)
        assert {node_id for node_id, _ in stage.peers.asked} == {2, 3}
        stage.peers.errors.clear()
        await asyncio.sleep(3)
        assert stage.quorum.is_leader
        await stage.quorum.abandon()

    play(script)


@pytest.mark.parametrize(
    ("error", "is_soon"), [(ErrorCode.NETWORK_EXCEPTION, True), (ErrorCode.REQUEST_TIMED_OUT, False)]
)
def test_follower_stands_soon_only_if_its_connection_to_the_leader_broke(error: ErrorCode, is_soon: bool) -> None:
    async def script() -> None:
        stage = Stage(voters=3)
        stage.quorum.start(stage)
        stage.peers.fetches = [FetchAnswer(ErrorCode.NONE, 5, 2, 0)]
        await stage.quorum.answer(request_to_wire(BeginEpoch(voter(1).key, 2, 5), CLUSTER, voter(2)))
        stage.peers.errors = {3: error}
        await asyncio.sleep(0.01)
        stage.peers.errors = {2: error, 3: error}
        stage.peers.fetches = [FetchAnswer(ErrorCode.NONE, 5, 2, 0)] * 1000
        await asyncio.sleep(1)
        assert any(isinstance(request, Vote) for _, request in stage.peers.asked) == is_soon
        await stage.quorum.abandon()

    play(script)


def test_follower_learns_the_leaders_address_and_truncates_its_diverging_log() -> None:
    async def script() -> None:
        stage = Stage(voters=3)
        for epoch in (1, 1, 2):
            batch = build_batch([(1, None, b"x", ())], leader_epoch=epoch)
            stage.log.append_as_leader(batch, leader_epoch=epoch, now_ms=1, origin=AppendOrigin.RAFT_LEADER)
        stage.quorum.start(stage)
        diverging = FetchAnswer(ErrorCode.NONE, 5, 2, 0, diverging=OffsetAndEpoch(1, 1))
        stage.peers.fetches = [diverging]
        begin = BeginEpoch(voter(1).key, 2, 5)
        await stage.quorum.answer(request_to_wire(begin, CLUSTER, voter(2)))
        assert stage.peers.learned == [{2: ("host2", 9093)}]
        await asyncio.sleep(0.1)
        assert (stage.log.log_end_offset, stage.quorum.leader_id) == (1, 2)
        offsets = [request.offset for _, request in stage.peers.asked if isinstance(request, Fetch)]
        assert offsets == [3, 1]
        assert [one for one in stage.events if isinstance(one, MetadataTruncated)] == [MetadataTruncated(3, 1)]
        await stage.quorum.abandon()

    play(script)


def test_peers_of_another_cluster_are_known_until_a_peer_accepts_the_cluster_id() -> None:
    async def script() -> None:
        stage = Stage(voters=3)
        stage.peers.errors = {2: ErrorCode.INCONSISTENT_CLUSTER_ID, 3: ErrorCode.NETWORK_EXCEPTION}
        stage.quorum.start(stage)
        await asyncio.sleep(10)
        assert stage.quorum.other_cluster_peers == {2}
        stage.peers.errors[3] = ErrorCode.INCONSISTENT_CLUSTER_ID
        await asyncio.sleep(10)
        assert stage.quorum.other_cluster_peers == {2, 3}
        stage.peers.errors.clear()
        await asyncio.sleep(3)
        assert stage.quorum.other_cluster_peers == set()
        await stage.quorum.abandon()

    play(script)


def test_leader_without_a_majority_resigns_and_reports_it_also_after_a_requested_resignation() -> None:
    async def script() -> None:
        stage = Stage(voters=3)
        await stage.leading()
        assert stage.quorum.in_contact
        stage.quorum.step_down()
        assert not stage.quorum.is_leader
        assert not [one for one in stage.events if isinstance(one, MajorityLost)]
        assert len([one for one in stage.events if isinstance(one, QuorumSteppedDown)]) == 1
        await asyncio.sleep(LATER_S)  # elected again, without fetches of the other voters
        assert len(stage.roles) > 3
        assert [one for one in stage.events if isinstance(one, MajorityLost)]
        await stage.quorum.abandon()

    play(script)


def test_voters_in_the_snapshot_make_the_voter_set_dynamic() -> None:
    async def script() -> None:
        for in_snapshot, configured in product((False, True), (False, True)):
            disk = MemoryDisk()
            disk.mkdir("/data")
            disk.mkdir(f"/data/{DIRECTORY}")
            listed = [voter(1)] if in_snapshot else []
            data = b"".join(write_checkpoint([], epoch=0, timestamp_ms=1, kraft_version=1, voters=listed))
            disk.write_atomic(f"/data/{DIRECTORY}/{checkpoint_name(0, 0)}", data)
            stage = Stage(config=RaftConfig(dynamic_voters=configured), disk=disk)
            await stage.leading()
            answer = await stage.quorum.answer(RemoveRaftVoterRequest(cluster_id=CLUSTER, voter_id=9))
            unsupported = answer.error_code == ErrorCode.UNSUPPORTED_VERSION
            assert unsupported == (not in_snapshot and not configured)
            await stage.quorum.abandon()

    play(script)


# --- requests of peers -----------------------------------------------------------------------------------------


def test_only_clients_may_leave_the_cluster_id_out() -> None:
    async def script() -> None:
        stage = Stage()
        await stage.leading()
        for cluster_id, old_id, new_id in product((CLUSTER, None, "elsewhere"), (-1, 0, 5), (-1, 0, 5)):
            request = FetchRequest(
                cluster_id=cluster_id, replica_id=old_id, replica_state=ReplicaState(replica_id=new_id)
            )
            is_client = old_id < 0 and new_id < 0
            assert refused(stage, request) == (cluster_id != CLUSTER and not (cluster_id is None and is_client))
        for message in (AddRaftVoterRequest, RemoveRaftVoterRequest):
            for cluster_id in (CLUSTER, None, "elsewhere"):
                assert refused(stage, message(cluster_id=cluster_id, voter_id=2)) == (cluster_id == "elsewhere")
        for cluster_id in (CLUSTER, None, "elsewhere"):
            wire = request_to_wire(Vote(voter(1).key, voter(2).key, 1, 0, 0, False), CLUSTER, voter(2))
            wire.cluster_id = cluster_id
            assert refused(stage, wire) == (cluster_id != CLUSTER)
        await stage.quorum.abandon()

    def refused(stage: Stage, request: Any) -> bool:
        try:
            stage.quorum._check_cluster(request)
        except KafkaError as error:
            return error.code is ErrorCode.INCONSISTENT_CLUSTER_ID
        return False

    play(script)


def test_learned_addresses_take_precedence_and_are_bounded() -> None:
    voters = VoterSet.of([voter(1), voter(2), Voter(3, bytes([3] * 16))])
    peers = QuorumPeers(RealNetwork(), voter(1), CLUSTER, RaftConfig(), {3: ("boot", 3), 4: ("boot", 4)})
    known = {node_id: peers.address_of(node_id, voters) for node_id in (2, 3, 4, 5)}
    assert known == {2: ("host2", 9093), 3: ("boot", 3), 4: ("boot", 4), 5: None}
    peers.learn({1: ("own", 1), 2: ("", 7), 3: ("new", 3), 5: ("new", 5)})
    assert peers.address_of(1, voters) == ("host1", 9093)  # a node learns no address of its own
    known = {node_id: peers.address_of(node_id, voters) for node_id in (2, 3, 4, 5)}
    assert known == {2: ("host2", 9093), 3: ("new", 3), 4: ("boot", 4), 5: ("new", 5)}
    peers.learn({node_id: ("many", node_id) for node_id in range(100, 100 + MAX_LEARNED)})
    last = 100 + MAX_LEARNED - 3  # two addresses were known before
    assert peers.address_of(last, voters) == ("many", last)
    assert peers.address_of(last + 1, voters) is None
    peers.learn({last: ("moved", 1), last + 1: ("many", 1)})
    assert (peers.address_of(last, voters), peers.address_of(last + 1, voters)) == (("moved", 1), None)
    peers.close()
