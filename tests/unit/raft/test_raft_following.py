"""Tests a follower of the quorum step by step: fetched records, snapshots in chunks, lost leaders, claims of node 0."""

from __future__ import annotations

import random

import pytest
from raft_cluster import voter

from penstock.protocol.errors import ErrorCode
from penstock.raft.claims import MAX_EPOCH_JUMP
from penstock.raft.config import RaftConfig
from penstock.raft.events import (
    Answered,
    Append,
    Committed,
    Effect,
    Event,
    InstallSnapshot,
    LogFlushed,
    QuorumState,
    Received,
    Reply,
    SaveState,
    Send,
    SendFailed,
    SnapshotInstalled,
    SnapshotRejected,
    StateSaved,
    Tick,
    Truncate,
    WriteSnapshot,
)
from penstock.raft.log_view import Batch, LogView, OffsetAndEpoch
from penstock.raft.machine import Raft
from penstock.raft.messages import (
    Answer,
    BeginEpoch,
    EndEpoch,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    SnapshotChunk,
    Vote,
    VoteAnswer,
)
from penstock.raft.states import Follower
from penstock.raft.voters import VoterHistory, VoterSet

CONFIG = RaftConfig(dynamic_voters=True)
SNAPSHOT = OffsetAndEpoch(9, 2)


class Node:
    """Runs node 1 of the voters 0, 1 and 2, with a disk that saves and syncs at once. Its log has three records."""

    def __init__(self, saved: QuorumState) -> None:
        self.now_ms = 0
        self.raft = Raft(
            CONFIG,
            voter(1),
            random=random.Random(1),
            log=LogView(end_offset=3, epochs=[(1, 0)]),
            voters=VoterHistory(VoterSet.of(map(voter, (0, 1, 2)))),
            saved=saved,
        )
        self.effects: list[Effect] = []

    def do(self, event: Event) -> list[Effect]:
        effects = self.raft.step(event, self.now_ms)
        self.effects = list(effects)
        while any(isinstance(effect, SaveState) for effect in effects):
            effects = self.raft.step(StateSaved(), self.now_ms)
            self.effects += effects
        if self.raft.core.log.flushed_offset < self.raft.core.log.end_offset:
            self.effects += self.raft.step(LogFlushed(self.raft.core.log.end_offset), self.now_ms)
        return self.effects

    def of(self, kind: type[Effect]) -> list[Effect]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def sent(self, kind: type[object]) -> Send:
        """Returns the request of this kind that the node sent in its last step."""
        (found,) = [each for each in self.effects if isinstance(each, Send) and isinstance(each.request, kind)]
        return found

    def answer(self, kind: type[object], answer: Answer) -> list[Effect]:
        return self.do(Answered(self.sent(kind).send_id, answer))

    @property
    def role(self) -> str:
        return self.raft.core.state.name

    @property
    def follower(self) -> Follower:
        state = self.raft.core.state
        assert isinstance(state, Follower)
        return state

    def after(self, ms: int) -> list[Effect]:
        self.now_ms += ms
        return self.do(Tick())


@pytest.fixture(params=[0, 2], ids=["of node 0", "of node 2"])
def node(request: pytest.FixtureRequest) -> Node:
    """Returns a follower that has sent its first fetch of epoch 2."""
    node = Node(QuorumState(2, request.param))
    node.do(Tick())
    return node


def fetched(node: Node, *, high_watermark: int = 0, epoch: int = 2, **fields: object) -> FetchAnswer:
    return FetchAnswer(ErrorCode.NONE, epoch, node.follower.leader_id, high_watermark, **fields)  # type: ignore[arg-type]


def batch(offset: int, epoch: int = 2) -> Batch:
    return Batch(offset, offset, epoch, b"")


def test_follower_skips_fetched_batches_that_it_has_and_commits_at_most_to_its_log_end(node: Node) -> None:
    node.answer(Fetch, fetched(node, high_watermark=9, batches=(batch(2), batch(3), batch(4))))
    assert node.of(Append) == [Append((batch(3), batch(4)))]
    assert node.of(Committed) == [Committed(5)]
    core = node.raft.core
    assert (core.log.end_offset, core.high_watermark, core.log.last_epoch) == (5, 5, 2)
    fetch = node.sent(Fetch).request
    assert isinstance(fetch, Fetch)
    assert (fetch.offset, fetch.last_epoch, fetch.high_watermark) == (5, 2, 5)
    node.answer(Fetch, fetched(node, high_watermark=4))
    assert (node.of(Committed), core.high_watermark) == ([], 5)


def test_follower_appends_and_commits_no_batches_after_an_offset_gap(node: Node) -> None:
    node.answer(Fetch, fetched(node, high_watermark=6, batches=(batch(4), batch(5))))
    assert node.of(Append) == []
    assert (node.raft.core.log.end_offset, node.raft.core.high_watermark) == (3, 3)


def test_follower_truncates_to_the_diverging_offset_and_fetches_from_this_offset(node: Node) -> None:
    node.answer(Fetch, fetched(node, diverging=OffsetAndEpoch(2, 1)))
    assert node.of(Truncate) == [Truncate(2)]
    fetch = node.sent(Fetch).request
    assert isinstance(fetch, Fetch)
    assert (fetch.offset, fetch.last_epoch) == (2, 1)


def test_only_a_fetch_answer_without_error_extends_the_fetch_timeout_of_a_follower(node: Node) -> None:
    node.now_ms = 100
    node.answer(Fetch, fetched(node))
    assert node.follower.deadline_ms == 100 + CONFIG.fetch_timeout_ms
    assert node.follower.has_fetched
    node.now_ms = 200
    node.answer(Fetch, FetchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, 2, node.follower.leader_id))
    assert node.follower.leader_suspected
    assert node.follower.deadline_ms == 100 + CONFIG.fetch_timeout_ms
    assert not [each for each in node.effects if isinstance(each, Send)], "it pauses"
    node.after(CONFIG.fetch_timeout_ms - 101)
    node.answer(Fetch, fetched(node))
    assert not node.follower.leader_suspected


def test_follower_starts_an_election_earlier_if_the_connection_to_its_leader_is_closed(node: Node) -> None:
    node.answer(Fetch, fetched(node))
    before = node.follower.deadline_ms
    node.do(SendFailed(node.sent(Fetch).send_id, closed=True))
    assert node.follower.leader_suspected
    assert node.now_ms < node.follower.deadline_ms <= min(before, node.now_ms + CONFIG.suspect_ms)
    soon = node.follower.deadline_ms
    node.after(soon - 1)
    assert node.role == "follower"
    node.after(1)
    assert node.role == "prospective"


def test_silent_leader_is_replaced_exactly_at_the_fetch_timeout(node: Node) -> None:
    node.answer(Fetch, fetched(node))
    node.after(CONFIG.fetch_timeout_ms - 1)
    assert node.role == "follower"
    assert node.raft.deadline() <= node.now_ms + 1
    node.after(1)
    assert node.role == "prospective"


def chunk(node: Node, position: int, data: bytes, size: int = 5, snapshot: OffsetAndEpoch = SNAPSHOT) -> SnapshotChunk:
    leader_id = node.follower.leader_id
    return SnapshotChunk(ErrorCode.NONE, 2, leader_id, snapshot, position, size=size, data=data)


def downloading(node: Node) -> None:
    node.answer(Fetch, fetched(node, snapshot=SNAPSHOT))
    request = node.sent(FetchSnapshot).request
    assert isinstance(request, FetchSnapshot)
    assert (request.snapshot, request.position) == (SNAPSHOT, 0)


def test_snapshot_is_written_chunk_by_chunk_and_installed_after_its_last_byte(node: Node) -> None:
    downloading(node)
    node.now_ms = 50
    node.answer(FetchSnapshot, chunk(node, 0, b"abc"))
    assert node.of(WriteSnapshot) == [WriteSnapshot(SNAPSHOT, 0, b"abc")]
    assert node.of(InstallSnapshot) == []
    assert node.follower.deadline_ms == 50 + CONFIG.fetch_timeout_ms
    node.answer(FetchSnapshot, chunk(node, 3, b"de"))
    assert node.of(WriteSnapshot) == [WriteSnapshot(SNAPSHOT, 3, b"de")]
    assert node.of(InstallSnapshot) == [InstallSnapshot(SNAPSHOT)]
    assert not [each for each in node.effects if isinstance(each, Send)], "it fetches nothing while it installs"
    assert node.after(10) == []
    voters = VoterSet.of(map(voter, (1, 2)))
    node.do(SnapshotInstalled(SNAPSHOT, voters))
    core = node.raft.core
    assert (core.log.start_offset, core.log.end_offset, core.high_watermark) == (9, 9, 9)
    assert (core.voters.latest, core.voters.latest_offset) == (voters, 8)
    assert node.of(Committed) == [Committed(9)]
    assert node.follower.deadline_ms == node.now_ms + CONFIG.fetch_timeout_ms
    fetch = node.sent(Fetch).request
    assert isinstance(fetch, Fetch)
    assert (fetch.offset, fetch.last_epoch) == (9, 2)


@pytest.mark.parametrize(("snapshot", "position"), [(OffsetAndEpoch(8, 2), 0), (SNAPSHOT, 1)])
def test_follower_does_not_write_a_snapshot_chunk_that_it_did_not_request(
    node: Node, snapshot: OffsetAndEpoch, position: int
) -> None:
    downloading(node)
    node.answer(FetchSnapshot, chunk(node, position, b"abc", snapshot=snapshot))
    assert node.of(WriteSnapshot) == []
    assert node.follower.download is not None
    assert node.follower.download.position == 0


def test_empty_snapshot_chunk_makes_the_follower_retry_unless_the_snapshot_is_empty(node: Node) -> None:
    downloading(node)
    node.answer(FetchSnapshot, chunk(node, 0, b""))
    assert (node.of(WriteSnapshot), node.of(InstallSnapshot), node.of(Send)) == ([], [], [])
    node.after(CONFIG.retry_backoff_ms)
    node.answer(FetchSnapshot, chunk(node, 0, b"", size=0))
    assert node.of(InstallSnapshot) == [InstallSnapshot(SNAPSHOT)]


@pytest.mark.parametrize("code", [ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE])
def test_follower_returns_to_fetching_records_if_the_leader_lacks_the_snapshot(node: Node, code: ErrorCode) -> None:
    downloading(node)
    node.answer(FetchSnapshot, SnapshotChunk(code, 2, node.follower.leader_id))
    assert node.follower.download is None
    assert node.sent(Fetch).to == node.follower.leader_id


def test_follower_discards_a_damaged_snapshot_and_fetches_again_after_a_pause(node: Node) -> None:
    downloading(node)
    node.answer(FetchSnapshot, chunk(node, 0, b"abcde"))
    node.now_ms = 20
    node.do(SnapshotRejected(SNAPSHOT))
    assert node.follower.download is None
    assert node.follower.deadline_ms == 20 + CONFIG.fetch_timeout_ms
    assert node.of(Send) == []
    assert (node.raft.core.log.end_offset, node.raft.core.high_watermark) == (3, 0)
    node.after(CONFIG.fetch_max_wait_ms)
    assert node.sent(Fetch).to == node.follower.leader_id


def test_follower_ignores_a_fetch_answer_of_an_earlier_epoch(node: Node) -> None:
    late = node.sent(Fetch).send_id
    node.do(Received(1, BeginEpoch(voter(1).key, 2, 3)))
    node.do(Answered(late, fetched(node, epoch=2, high_watermark=5, batches=(batch(3), batch(4)))))
    assert node.raft.core.log.end_offset == 3
    assert (node.follower.epoch, node.follower.leader_id, node.follower.has_fetched) == (3, 2, False)


def reply_of(node: Node) -> Answer:
    (reply,) = [each for each in node.effects if isinstance(each, Reply)]
    return reply.answer


@pytest.mark.parametrize("candidate", [0, 2])
def test_voter_with_id_0_can_be_elected(candidate: int) -> None:
    node = Node(QuorumState(1))
    node.do(Received(1, Vote(voter(1).key, voter(candidate).key, 2, 1, 3, False)))
    answer = reply_of(node)
    assert isinstance(answer, VoteAnswer)
    assert (answer.error, answer.granted) == (ErrorCode.NONE, True)
    node.do(Received(2, BeginEpoch(voter(1).key, candidate, 2)))
    assert reply_of(node).error is ErrorCode.NONE
    assert node.follower.leader_id == candidate


@pytest.mark.parametrize("kind", ["vote", "begin", "end"])
def test_request_that_raises_the_epoch_beyond_the_limit_is_refused(kind: str) -> None:
    def request(epoch: int) -> Vote | BeginEpoch | EndEpoch:
        if kind == "vote":
            return Vote(voter(1).key, voter(2).key, epoch, 1, 3, False)
        return BeginEpoch(voter(1).key, 2, epoch) if kind == "begin" else EndEpoch(2, epoch, ())

    node = Node(QuorumState(1))
    node.do(Received(1, request(2 + MAX_EPOCH_JUMP)))
    assert reply_of(node).error is ErrorCode.INVALID_REQUEST
    assert node.raft.core.epoch == 1
    node.do(Received(2, request(1 + MAX_EPOCH_JUMP)))
    assert reply_of(node).error is ErrorCode.NONE
    assert node.raft.core.epoch == 1 + MAX_EPOCH_JUMP


@pytest.mark.parametrize(("at_ms", "delayed"), [(0, False), (None, True)], ids=["long before its own", "just before"])
def test_voter_that_grants_a_pre_vote_delays_its_own_candidacy(at_ms: int | None, delayed: bool) -> None:
    node = Node(QuorumState(1))
    due = node.raft.core.state.deadline_ms  # type: ignore[union-attr]
    node.now_ms = due - 1 if at_ms is None else at_ms
    node.do(Received(1, Vote(voter(1).key, voter(2).key, 1, 1, 3, True)))
    answer = reply_of(node)
    assert isinstance(answer, VoteAnswer)
    assert answer.granted
    expected = node.now_ms + CONFIG.suspect_ms if delayed else due
    assert node.raft.core.state.deadline_ms == expected  # type: ignore[union-attr]
