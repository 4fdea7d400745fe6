"""Tests single steps of a follower: which answers count, which pauses follow, and what an unsynced log holds back."""

from __future__ import annotations

import random
from itertools import pairwise, product

import pytest
from raft_cluster import voter
from raft_node import CONFIG, Replica, candidate, follower
from raft_roles import EPOCH, ROLES, SNAPSHOT, installing

from penstock.protocol.errors import ErrorCode
from penstock.raft.events import (
    Append,
    Committed,
    InstallSnapshot,
    LogFlushed,
    QuorumState,
    Resign,
    Send,
    SendFailed,
    SnapshotInstalled,
    SnapshotRejected,
    SnapshotTaken,
    Tick,
    Truncate,
    WriteSnapshot,
)
from penstock.raft.log_view import Batch, LogView, OffsetAndEpoch
from penstock.raft.machine import Raft
from penstock.raft.messages import Fetch, FetchAnswer, FetchSnapshot, SnapshotChunk, Vote
from penstock.raft.states import Follower
from penstock.raft.voters import VoterHistory, VoterSet

ERRORS = [code for code in ErrorCode if code is not ErrorCode.NONE]


def batch(offset: int, epoch: int = EPOCH, voters: VoterSet | None = None) -> Batch:
    return Batch(offset, offset, epoch, b"", voters)


def fetched(replica: Replica, *batches: Batch, high_watermark: int = 3, **fields: object) -> None:
    (send,) = replica.sent(Fetch)
    answer = FetchAnswer(ErrorCode.NONE, EPOCH, 2, high_watermark, batches=batches, **fields)  # type: ignore[arg-type]
    replica.answer(send, answer)


def following(replica: Replica) -> Follower:
    state = replica.raft.core.state
    assert isinstance(state, Follower)
    return state


def downloading() -> Replica:
    replica = follower()
    fetched(replica, snapshot=SNAPSHOT)
    return replica


# --- records


def test_follower_fetches_again_only_when_all_its_records_are_on_disk() -> None:
    """The leader counts the fetch offset as synced."""
    replica = follower()
    replica.syncs = False
    fetched(replica, batch(3), batch(4))
    for flushed in (3, 4, 5):
        assert not [each for each in replica.effects if isinstance(each, Send)]
        replica.do(Tick())
        assert not replica.sent(Fetch)
        assert replica.raft.deadline() == following(replica).deadline_ms
        replica.do(LogFlushed(flushed))
    (send,) = replica.sent(Fetch)
    assert send.to == 2
    assert send.request == Fetch(voter(1).key, EPOCH, 5, EPOCH, 3, CONFIG.fetch_max_wait_ms, CONFIG.fetch_max_bytes)


def test_follower_ignores_records_and_snapshots_in_an_answer_of_an_earlier_epoch() -> None:
    for answer in (
        FetchAnswer(ErrorCode.NONE, EPOCH - 1, 2, 4, batches=(batch(3),)),
        FetchAnswer(ErrorCode.NONE, EPOCH - 1, 2, 3, diverging=OffsetAndEpoch(1, 1)),
        FetchAnswer(ErrorCode.NONE, EPOCH - 1, 2, 3, snapshot=SNAPSHOT),
        FetchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, EPOCH - 1, 2),
    ):
        replica = follower()
        deadline_ms = following(replica).deadline_ms
        (send,) = replica.sent(Fetch)
        replica.now_ms += 50
        replica.answer(send, answer)
        state, core = following(replica), replica.raft.core
        assert (state.deadline_ms, state.download, state.leader_suspected) == (deadline_ms, None, False)
        assert (core.log.end_offset, core.high_watermark) == (3, 3)
    replica = downloading()
    (send,) = replica.sent(FetchSnapshot)
    replica.answer(send, SnapshotChunk(ErrorCode.NONE, EPOCH - 1, 2, SNAPSHOT, 0, 0, 5, b"abc"))
    assert not [each for each in replica.effects if isinstance(each, WriteSnapshot)]


def test_follower_pauses_after_every_error_and_suspects_its_leader_only_if_that_does_not_lead() -> None:
    start = follower()
    for code in ERRORS:
        replica = start.copy()
        deadline_ms = following(replica).deadline_ms
        (send,) = replica.sent(Fetch)
        replica.answer(send, FetchAnswer(code, EPOCH, 2))
        assert not replica.sent(Fetch)
        assert following(replica).leader_suspected is (code is ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert following(replica).deadline_ms == deadline_ms
        replica.at(100 + CONFIG.retry_backoff_ms - 1)
        assert not replica.sent(Fetch)
        replica.at(100 + CONFIG.retry_backoff_ms)
        assert len(replica.sent(Fetch)) == 1


def test_voters_in_fetched_records_count_at_once_and_until_they_are_truncated() -> None:
    sets = [VoterSet.of(map(voter, ids)) for ids in ((1, 2, 3), (1, 2, 3, 4), (1, 2, 4))]
    for cut in (3, 4, 5, 6):
        replica = follower()
        fetched(replica, batch(3), Batch(4, 4, EPOCH, b"", sets[1]), Batch(5, 6, EPOCH, b"", sets[2]))
        core = replica.raft.core
        assert (core.voters.latest, core.voters.latest_offset) == (sets[2], 6)
        assert core.voters.since(3) == sets
        fetched(replica, diverging=OffsetAndEpoch(cut, EPOCH))
        assert [each.offset for each in replica.effects if isinstance(each, Truncate)] == [cut]
        left = {3: 0, 4: 0, 5: 1, 6: 1}[cut]
        assert (core.voters.latest, core.voters.latest_offset) == (sets[left], (-1, 4)[left])
        (again,) = replica.sent(Fetch)
        assert isinstance(again.request, Fetch)
        assert again.request.offset == cut
        fetched(replica, Batch(cut, 7, EPOCH, b"", sets[1]))
        assert (core.voters.latest, core.voters.latest_offset) == (sets[1], 7)


def test_high_watermark_of_an_answer_counts_up_to_the_log_end_and_never_goes_back() -> None:
    for mark, expected in ((-1, 3), (0, 3), (3, 3), (4, 4), (5, 5), (6, 5), (99, 5)):
        replica = follower()
        fetched(replica, batch(3), batch(4), high_watermark=mark)
        assert replica.raft.core.high_watermark == expected
        commits = [each.high_watermark for each in replica.effects if isinstance(each, Committed)]
        assert commits == ([expected] if expected > 3 else [])
        kinds = [type(each) for each in replica.effects if isinstance(each, Append | Committed)]
        assert kinds == [Append, Committed][: 1 + len(commits)], "records are written before they are committed"


def test_every_successful_answer_shows_that_the_leader_is_alive() -> None:
    for fields in ({}, {"diverging": OffsetAndEpoch(9, 1)}, {"snapshot": SNAPSHOT}):
        replica = follower()
        following(replica).leader_suspected = True
        following(replica).has_fetched = False
        replica.now_ms = 700
        fetched(replica, **fields)  # type: ignore[arg-type]
        state = following(replica)
        assert (state.deadline_ms, state.has_fetched, state.leader_suspected) == (2700, True, False)


# --- snapshots


def test_download_is_given_up_only_if_the_leader_lacks_the_snapshot_and_pauses_otherwise() -> None:
    start = downloading()
    for code in ERRORS:
        replica = start.copy()
        (send,) = replica.sent(FetchSnapshot)
        deadline_ms = following(replica).deadline_ms
        replica.now_ms += 30
        replica.answer(send, SnapshotChunk(code, EPOCH, 2, SNAPSHOT, 0, 0, 5, b"abc"))
        gone = code in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE)
        assert (following(replica).download is None) is gone
        assert following(replica).deadline_ms == deadline_ms
        assert not [each for each in replica.effects if isinstance(each, WriteSnapshot | InstallSnapshot)]
        assert (len(replica.sent(Fetch)), replica.sent(FetchSnapshot)) == (int(gone), [])
        replica.at(130 + CONFIG.retry_backoff_ms)
        assert len(replica.sent(FetchSnapshot)) == (0 if gone else 1)


def test_each_chunk_is_asked_for_at_the_position_after_the_chunk_before() -> None:
    replica = downloading()
    data, position = b"abcdefg", 0
    while position < len(data):
        (send,) = replica.sent(FetchSnapshot)
        assert send.to == 2
        assert send.request == FetchSnapshot(voter(1).key, EPOCH, SNAPSHOT, position, CONFIG.max_snapshot_chunk_bytes)
        assert not replica.sent(Fetch)
        following(replica).leader_suspected = True
        replica.now_ms += 40
        part = data[position : position + 3]
        replica.answer(send, SnapshotChunk(ErrorCode.NONE, EPOCH, 2, SNAPSHOT, position, 0, len(data), part))
        state = following(replica)
        assert (state.deadline_ms, state.leader_suspected) == (replica.now_ms + CONFIG.fetch_timeout_ms, False)
        done = [each for each in replica.effects if isinstance(each, WriteSnapshot | InstallSnapshot)]
        position += len(part)
        written = WriteSnapshot(SNAPSHOT, position - len(part), part)
        assert done == ([written, InstallSnapshot(SNAPSHOT)] if position == len(data) else [written])
        assert replica.raft.core.installing == (SNAPSHOT if position == len(data) else None)


@pytest.mark.parametrize("voters", [None, VoterSet.of(map(voter, (1, 2)))])
def test_installed_snapshot_is_adopted_in_whatever_role_the_replica_is_by_then(voters: VoterSet | None) -> None:
    """The files have already changed when the machine learns of it."""
    for role in ("follower", "unattached", "follower of another leader"):
        replica = installing()
        core = replica.raft.core
        before = core.voters.latest
        if role == "unattached":
            replica.ask(Vote(voter(1).key, voter(3).key, EPOCH + 1, 9, 9, False))
        elif role == "follower of another leader":
            core.learn(EPOCH + 1, 3)
        replica.now_ms += 20
        replica.do(SnapshotInstalled(SNAPSHOT, voters))
        assert core.installing is None
        log = core.log
        assert (log.start_offset, log.end_offset, log.flushed_offset, log.snapshot) == (9, 9, 9, SNAPSHOT)
        assert core.high_watermark == 9
        assert Committed(9) in replica.effects
        assert (core.voters.latest, core.voters.latest_offset) == ((before, -1) if voters is None else (voters, 8))
        if role == "unattached":
            assert replica.role == "unattached"
        else:
            assert following(replica).download is None
            assert following(replica).deadline_ms == replica.now_ms + CONFIG.fetch_timeout_ms
            (send,) = replica.sent(Fetch)
            assert isinstance(send.request, Fetch)
            assert (send.to, send.request.offset) == (core.state.leader_id, 9)


def test_rejected_snapshot_changes_no_log_and_ends_the_download_in_whatever_role() -> None:
    for unattached in (False, True):
        replica = installing()
        core = replica.raft.core
        if unattached:
            replica.ask(Vote(voter(1).key, voter(3).key, EPOCH + 1, 9, 9, False))
        replica.do(SnapshotRejected(SNAPSHOT))
        assert core.installing is None
        assert (core.log.start_offset, core.log.end_offset, core.high_watermark) == (0, 3, 3)
        if not unattached:
            assert following(replica).download is None
            assert not replica.sent(Fetch)
            replica.at(100 + CONFIG.fetch_max_wait_ms - 1)
            assert not replica.sent(Fetch)
            replica.at(100 + CONFIG.fetch_max_wait_ms)
            assert len(replica.sent(Fetch)) == 1


def test_replica_neither_stands_nor_fetches_while_it_installs_a_snapshot_and_does_both_afterwards() -> None:
    for how in ("installed", "rejected"):
        replica = installing()
        replica.at(100 + 3 * CONFIG.fetch_timeout_ms)
        assert (replica.role, replica.effects) == ("follower", [])
        replica.ask(Vote(voter(1).key, voter(3).key, EPOCH + 1, 9, 9, False))
        replica.at(100 + 9 * CONFIG.fetch_timeout_ms)
        assert (replica.role, replica.effects) == ("unattached", [])
        replica.do(SnapshotInstalled(SNAPSHOT, None) if how == "installed" else SnapshotRejected(SNAPSHOT))
        assert replica.role == "prospective"


def test_own_snapshot_moves_the_log_start_and_keeps_the_voters_that_count() -> None:
    sets = [VoterSet.of(map(voter, ids)) for ids in ((1, 2, 3), (1, 2, 3, 4), (1, 2, 4))]
    for end in (3, 4, 5, 6, 7):
        replica = follower()
        fetched(replica, batch(3), Batch(4, 4, EPOCH, b"", sets[1]), Batch(5, 6, EPOCH, b"", sets[2]), high_watermark=7)
        core = replica.raft.core
        snapshot = OffsetAndEpoch(end, EPOCH if end > 3 else 1)
        replica.do(SnapshotTaken(snapshot, end - 1))
        assert (core.log.start_offset, core.log.snapshot, core.log.end_offset) == (end - 1, snapshot, 7)
        first = {3: 0, 4: 0, 5: 1, 6: 1, 7: 2}[end]
        assert core.voters.since(0)[0] == sets[first]
        assert (core.voters.latest, core.voters.latest_offset) == (sets[2], 6)
        assert core.voters.before(end) == sets[first]


# --- lost leaders


def test_closed_connection_brings_the_election_forward_only_for_a_voter_and_never_delays_it() -> None:
    for me, left_ms, closed in product((1, 8), (None, 1), (True, False)):
        replica = Replica(me=me, saved=QuorumState(EPOCH, 2), log_end=3)
        replica.at(0)
        state = following(replica)
        if left_ms is not None:
            state.deadline_ms = left_ms
        before = state.deadline_ms
        (send,) = replica.sent(Fetch)
        replica.do(SendFailed(send.send_id, closed=closed))
        assert state.leader_suspected is closed
        if closed and me == 1 and left_ms is None:
            assert 1 <= state.deadline_ms <= CONFIG.suspect_ms
        else:
            assert state.deadline_ms == before
        assert not replica.sent(Fetch), "it waits before it asks again"


def test_closed_connection_of_a_snapshot_download_makes_the_follower_suspect_its_leader() -> None:
    replica = downloading()
    (send,) = replica.sent(FetchSnapshot)
    replica.do(SendFailed(send.send_id, closed=True))
    state = following(replica)
    assert state.leader_suspected
    assert 100 < state.deadline_ms <= 100 + CONFIG.suspect_ms
    assert state.download is not None


def test_observer_looks_for_a_leader_among_the_other_voters_or_the_bootstrap_nodes() -> None:
    for me, voters, bootstrap, expected in (
        (8, (1, 2, 3), (), {1, 2, 3}),
        (8, (1, 2, 3), (7,), {1, 2, 3}),
        (8, (), (6, 7), {6, 7}),
        (8, (), (), set()),
    ):
        history = VoterHistory(VoterSet.of(map(voter, voters)))
        raft = Raft(
            CONFIG, voter(me), random=random.Random(1), log=LogView(), voters=history, bootstrap=bootstrap, now_ms=0
        )
        asked, now_ms, times = set(), 0, []
        for _ in range(60):
            sends = [each for each in raft.step(Tick(), now_ms) if isinstance(each, Send)]
            for send in sends:
                asked.add(send.to)
                raft.step(SendFailed(send.send_id), now_ms)
            times.append(now_ms)
            now_ms = raft.deadline()
        assert asked == expected
        pauses = {(later - earlier) / CONFIG.retry_backoff_ms for earlier, later in pairwise(times)}
        assert pauses <= set(range(1, 11))
        assert len(pauses) > 5


def test_removed_voter_with_another_directory_does_not_ask_itself_for_the_leader() -> None:
    history = VoterHistory(VoterSet.of(map(voter, (1, 2))))
    me = voter(1).__class__(1, b"another directo.")
    raft = Raft(CONFIG, me, random=random.Random(1), log=LogView(), voters=history)
    now_ms = 0
    for _ in range(30):
        for send in [each for each in raft.step(Tick(), now_ms) if isinstance(each, Send)]:
            assert send.to == 2
            raft.step(SendFailed(send.send_id), now_ms)
        now_ms = raft.deadline()


def test_observer_whose_leader_is_silent_looks_for_another_exactly_at_the_fetch_timeout() -> None:
    replica = Replica(me=8, saved=QuorumState(EPOCH, 2), log_end=3)
    replica.at(CONFIG.fetch_timeout_ms - 1)
    assert replica.role == "follower"
    replica.at(CONFIG.fetch_timeout_ms)
    assert (replica.role, replica.raft.core.epoch, replica.raft.core.state.leader_id) == ("unattached", EPOCH, -1)
    assert len(replica.sent(Fetch)) == 1


@pytest.mark.parametrize("role", ["candidate", "prospective", "prospective with a former leader"])
def test_replica_that_stops_during_an_election_ends_it_at_once(role: str) -> None:
    replica = candidate() if role == "candidate" else ROLES[role]()
    epoch, leader_id = replica.raft.core.epoch, replica.raft.core.state.leader_id
    replica.do(Resign())
    assert replica.role == ("follower" if leader_id >= 0 else "unattached")
    assert (replica.raft.core.epoch, replica.raft.core.state.leader_id) == (epoch, leader_id)
    assert not replica.sent(Vote)
