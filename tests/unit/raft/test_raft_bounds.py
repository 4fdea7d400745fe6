"""Tests both sides of the quorum's bounds: times, epochs, majorities, and the voters that a leader describes."""

from __future__ import annotations

import random
from itertools import product

import pytest
from raft_cluster import voter
from raft_node import CONFIG, Replica, committing, leader, prospective
from raft_roles import EPOCH, installing, lost_candidate, resigned

from penstock.protocol.errors import ErrorCode
from penstock.raft.claims import EPOCH_PACE_MS, MAX_EPOCH_JUMP
from penstock.raft.describe import ReplicaView, describe
from penstock.raft.events import QuorumState, Received, Reply, SnapshotInstalled, Tick
from penstock.raft.log_view import LogView, OffsetAndEpoch
from penstock.raft.machine import Raft
from penstock.raft.messages import BeginEpoch, EndEpoch, Fetch, RemoveVoter, Request, Vote
from penstock.raft.progress import Replicas
from penstock.raft.states import MAX_EPOCH, Election
from penstock.raft.voters import ReplicaKey, Voter, VoterHistory, VoterSet

# --- times


@pytest.mark.parametrize(
    "make",
    [
        lambda: Replica(saved=QuorumState(EPOCH)),
        lambda: Replica(saved=QuorumState(EPOCH, voted=voter(3).key)),
        lambda: Replica(saved=QuorumState(EPOCH, 1)),
        lambda: Replica(saved=QuorumState(EPOCH, 2)),
        lost_candidate,
        resigned,
    ],
    ids=["unattached", "voted", "restarted leader", "follower", "lost candidate", "resigned"],
)
def test_voter_stands_exactly_at_its_deadline(make: object) -> None:
    replica: Replica = make()  # type: ignore[operator]
    before = replica.raft.core.state
    deadline_ms = before.deadline_ms  # type: ignore[union-attr]
    replica.at(deadline_ms - 1)
    assert replica.raft.core.state is before
    assert not replica.sent(Vote)
    replica.at(deadline_ms)
    assert replica.role == "prospective"
    assert [send.to for send in replica.sent(Vote)] == [2, 3]


def test_observer_asks_exactly_at_its_deadline_and_waits_for_a_snapshot_that_it_installs() -> None:
    replica = Replica(me=8)
    replica.at(0)
    assert len(replica.sent(Fetch)) == 1
    state = replica.raft.core.state
    deadline_ms = state.deadline_ms  # type: ignore[union-attr]
    replica.raft.core.peers.forget()
    replica.at(deadline_ms - 1)
    assert not replica.sent(Fetch)
    waiting = replica.copy()
    waiting.raft.core.installing = OffsetAndEpoch(9, 1)
    waiting.at(deadline_ms)
    assert not waiting.sent(Fetch)
    waiting.do(SnapshotInstalled(OffsetAndEpoch(9, 1), None))
    replica.at(deadline_ms)
    assert len(replica.sent(Fetch)) == len(waiting.sent(Fetch)) == 1


def test_voter_that_has_installed_a_snapshot_too_late_stands_at_once_only_without_a_leader() -> None:
    replica = installing(past_deadline=500)
    replica.do(SnapshotInstalled(OffsetAndEpoch(9, 1), None))
    assert replica.role == "follower"
    assert replica.raft.core.state.deadline_ms == replica.now_ms + CONFIG.fetch_timeout_ms  # type: ignore[union-attr]


# --- epochs


def requests(epoch: int) -> list[Request]:
    return [
        Vote(voter(1).key, voter(2).key, epoch, 1, 3, False),
        Vote(voter(1).key, voter(2).key, epoch, 1, 3, True),
        BeginEpoch(voter(1).key, 2, epoch),
        EndEpoch(2, epoch, ()),
    ]


def test_last_epoch_is_accepted_from_a_request_and_the_epoch_after_it_never() -> None:
    for known, place in product((MAX_EPOCH - 1, MAX_EPOCH), range(4)):
        for epoch, code in ((MAX_EPOCH, ErrorCode.NONE), (MAX_EPOCH + 1, ErrorCode.INVALID_REQUEST)):
            replica = Replica(saved=QuorumState(known), log_end=3)
            answer = replica.ask(requests(epoch)[place])
            assert answer is not None
            assert answer.error is code
            assert replica.raft.core.epoch == (epoch if not code else known)


def test_limit_of_epochs_grows_by_one_per_interval_since_the_start_of_the_process() -> None:
    started_ms = 7_000
    for waited_ms, earned in ((0, 0), (EPOCH_PACE_MS - 1, 0), (EPOCH_PACE_MS, 1), (3 * EPOCH_PACE_MS, 3)):
        for place, beyond in product(range(4), (0, 1)):
            history = VoterHistory(VoterSet.of(map(voter, (1, 2, 3))))
            raft = Raft(
                CONFIG,
                voter(1),
                random=random.Random(1),
                log=LogView(),
                voters=history,
                now_ms=started_ms,
                bootstrap=(),
            )
            request = requests(MAX_EPOCH_JUMP + earned + beyond)[place]
            effects = raft.step(Received(1, request), started_ms + waited_ms)
            errors = [each.answer.error for each in effects if isinstance(each, Reply)]
            assert (ErrorCode.INVALID_REQUEST in errors) is bool(beyond)
            assert raft.core.epoch == (0 if beyond else MAX_EPOCH_JUMP + earned)


# --- majorities


def test_election_is_won_or_lost_exactly_by_a_majority_of_all_voters() -> None:
    for size in range(1, 7):
        voters = VoterSet.of(map(voter, range(size)))
        for granted, refused in product(range(size + 1), range(size + 1)):
            if granted + refused > size:
                continue
            yes, no = set(range(granted)), set(range(size - refused, size))
            election = Election(voters, yes, no)
            assert election.won is (2 * granted > size)
            assert election.lost is (2 * (size - refused) <= size)
            assert election.unheard == [each for each in range(size) if each not in yes | no]


@pytest.mark.parametrize("directories", [True, False], ids=["dynamic", "static"])
def test_leader_counts_the_majority_that_has_fetched_since_a_time_and_up_to_an_offset(directories: bool) -> None:
    """A majority is counted one voter at a time; a leader that is a voter has always fetched."""
    since_ms, flushed = 20, 6
    for ids in ((1,), (1, 2), (1, 2, 3), (2, 3), (1, 2, 3, 4), (2,)):
        voters = VoterSet.of(voter(each) if directories else Voter(each) for each in ids)
        others = [each for each in ids if each != 1]
        for fetches in product((None, (10, 4), (30, 7), (40, 5)), repeat=len(others)):
            replicas = Replicas(voter(1).key, since_ms)
            times, ends = [], []
            for node_id, fetch in zip(others, fetches):
                if fetch is not None:
                    replicas.fetched(ReplicaKey(node_id, b"an earlier disk."), 99, 99, 99 if directories else 5)
                    replicas.fetched(voter(node_id).key, fetch[1], 9, fetch[0])
                times.append(max(since_ms, fetch[0] if fetch else 0))
                ends.append(fetch[1] if fetch else -1)
            majority = len(ids) // 2 + 1
            mine = 1 if 1 in ids else 0
            heard = [at for at in times if mine + sum(each >= at for each in times) >= majority]
            expected = None if mine >= majority else max(heard)
            assert replicas.heard_until_ms(voters) == expected, (ids, fetches)
            counted = ends + [flushed] * mine
            reached = max(at for at in counted if sum(each >= at for each in counted) >= majority)
            assert replicas.replicated_to(voters, flushed) == reached, (ids, fetches)


# --- descriptions


def test_quorum_is_described_in_the_order_of_the_node_ids_with_the_leader_among_its_voters() -> None:
    replica = leader(me=2)
    replica.now_ms += 40
    replica.fetch(3)
    replica.fetch(5)
    now_ms, end = replica.now_ms, replica.raft.core.log.end_offset
    seen = describe(replica.raft.core)
    assert seen.voters == (
        ReplicaView(voter(1).key, -1, -1, -1),
        ReplicaView(voter(2).key, end, now_ms, now_ms),
        ReplicaView(voter(3).key, end, now_ms, now_ms),
    )
    assert seen.observers == (ReplicaView(voter(5).key, end, now_ms, now_ms),)
    assert (seen.leader_id, seen.epoch, seen.high_watermark) == (2, 1, end)
    assert seen.voter_set == VoterSet.of(map(voter, (1, 2, 3)))


def test_leader_that_removed_itself_describes_itself_as_an_observer() -> None:
    replica = committing()
    replica.ask(RemoveVoter(voter(1).key), ticket=5)
    seen = describe(replica.raft.core)
    assert [each.key.node_id for each in seen.voters] == [2, 3]
    assert [each.key.node_id for each in seen.observers] == [1]


def test_replica_that_does_not_lead_describes_no_progress() -> None:
    for make in (Replica, prospective, resigned, installing):
        seen = describe(make().raft.core)
        assert (seen.voters, seen.observers) == ((), ())
        assert seen.voter_set == VoterSet.of(map(voter, (1, 2, 3)))


def test_tick_alone_starts_a_lone_voter() -> None:
    replica = Replica(voters=(1,))
    replica.do(Tick())
    assert replica.role == "leader"
    assert replica.raft.core.high_watermark == replica.raft.core.log.end_offset == 3
