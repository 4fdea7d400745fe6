"""Makes node 1 of the voters 1, 2 and 3 in each role of epoch 2."""

from __future__ import annotations

from collections.abc import Callable

from raft_cluster import voter
from raft_node import Replica, candidate, follower, leader, prospective

from penstock.protocol.errors import ErrorCode
from penstock.raft.events import QuorumState, SendFailed, StepDown
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.messages import Fetch, FetchAnswer, FetchSnapshot, SnapshotChunk, Vote, VoteAnswer
from penstock.raft.states import Follower

EPOCH = 2
SNAPSHOT = OffsetAndEpoch(9, 1)


def starting() -> Replica:
    replica = Replica(saved=QuorumState(EPOCH, 2), log_end=3)
    replica.at(0)
    return replica


def suspecting() -> Replica:
    replica = follower()
    replica.do(SendFailed(replica.sent(Fetch)[0].send_id, closed=True))
    return replica


def installing(past_deadline: int | None = None) -> Replica:
    """Returns a follower that installs a snapshot; `past_deadline` sets its time relative to its fetch timeout."""
    replica = follower()
    replica.answer(replica.sent(Fetch)[0], FetchAnswer(ErrorCode.NONE, EPOCH, 2, 3, snapshot=SNAPSHOT))
    chunk = SnapshotChunk(ErrorCode.NONE, EPOCH, 2, SNAPSHOT, 0, 100, 1, b"x")
    replica.answer(replica.sent(FetchSnapshot)[0], chunk)
    state = replica.raft.core.state
    assert isinstance(state, Follower)
    if past_deadline is not None:
        replica.at(state.deadline_ms + past_deadline)
    assert replica.raft.core.installing == SNAPSHOT
    assert replica.raft.core.state is state
    return replica


def lost_candidate() -> Replica:
    replica = candidate(saved=QuorumState(EPOCH - 1))
    for send in replica.sent(Vote):
        replica.answer(send, VoteAnswer(ErrorCode.NONE, EPOCH, -1, False))
    return replica


def resigned() -> Replica:
    replica = leader(saved=QuorumState(EPOCH - 1))
    replica.do(StepDown())
    return replica


ROLES: dict[str, Callable[[], Replica]] = {
    "unattached": lambda: Replica(saved=QuorumState(EPOCH), log_end=3),
    "unattached that voted": lambda: Replica(saved=QuorumState(EPOCH, voted=voter(3).key), log_end=3),
    "observer": lambda: Replica(me=8, saved=QuorumState(EPOCH), log_end=3),
    "prospective": lambda: prospective(saved=QuorumState(EPOCH), log_end=3),
    "prospective that voted": lambda: prospective(saved=QuorumState(EPOCH, voted=voter(3).key), log_end=3),
    "prospective with a former leader": lambda: prospective(saved=QuorumState(EPOCH, 2), log_end=3),
    "candidate": lambda: candidate(saved=QuorumState(EPOCH - 1), log_end=3),
    "candidate that lost": lost_candidate,
    "follower that has not fetched": starting,
    "follower that has fetched": follower,
    "follower that suspects its leader": suspecting,
    "follower just before its timeout": lambda: installing(-1),
    "follower at its timeout": lambda: installing(0),
    "leader": lambda: leader(saved=QuorumState(EPOCH - 1), log_end=3),
    "resigned": resigned,
}
