"""Tests what a replica in each role learns from a message: every epoch and leader is compared with the plain rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from raft_cluster import voter
from raft_node import CONFIG, Replica, candidate, follower, leader, prospective

from penstock.protocol.errors import ErrorCode
from penstock.raft.events import QuorumState, SaveState, Send, SendFailed, StepDown
from penstock.raft.messages import Fetch, FetchAnswer, UpdateVoter
from penstock.raft.states import Follower, Unattached
from penstock.raft.voters import Voter

ME, EPOCH = 1, 2
#: Endpoints that differ from those in the set of voters.
MOVED = (("C", "elsewhere", 1),)


def starting() -> Replica:
    replica = Replica(saved=QuorumState(EPOCH, 2), log_end=3)
    replica.at(0)
    return replica


def resigned() -> Replica:
    replica = leader(saved=QuorumState(EPOCH - 1))
    replica.do(StepDown())
    return replica


ROLES: dict[str, Callable[[], Replica]] = {
    "unattached": lambda: Replica(saved=QuorumState(EPOCH)),
    "unattached that voted": lambda: Replica(saved=QuorumState(EPOCH, voted=voter(3).key)),
    "observer": lambda: Replica(me=8, saved=QuorumState(EPOCH)),
    "prospective": lambda: prospective(saved=QuorumState(EPOCH)),
    "prospective with a former leader": lambda: prospective(saved=QuorumState(EPOCH, 2), log_end=3),
    "candidate": lambda: candidate(saved=QuorumState(EPOCH - 1)),
    "follower that has not fetched": starting,
    "follower that has fetched": follower,
    "leader": lambda: leader(saved=QuorumState(EPOCH - 1)),
    "resigned": resigned,
}


@pytest.mark.parametrize("role", ROLES)
def test_replica_follows_the_leader_of_a_later_epoch_and_at_most_one_leader_of_its_own_epoch(role: str) -> None:
    for epoch, leader_id in product((EPOCH - 1, EPOCH, EPOCH + 1), (-1, 0, ME, 2, 3)):
        replica = ROLES[role]()
        core = replica.raft.core
        before, me = core.state, core.me.node_id
        assert before.epoch == EPOCH
        known = leader_id not in (-1, me)
        has_leader = before.name in ("leader", "resigned") or (isinstance(before, Follower) and before.has_fetched)
        follows = known and (epoch > EPOCH or (epoch == EPOCH and not has_leader and before.leader_id != leader_id))
        assert core.learn(epoch, leader_id) is (follows or epoch > EPOCH)
        state = core.state
        if follows:
            voted = before.voted if epoch == EPOCH else None
            assert state == Follower(epoch, leader_id, core.now + CONFIG.fetch_timeout_ms, voted)
        elif epoch > EPOCH:
            assert isinstance(state, Unattached)
            assert (state.epoch, state.voted) == (epoch, None)
        else:
            assert state is before
        saves = [each.state for each in core.effects if isinstance(each, SaveState)]
        assert saves == ([QuorumState(state.epoch, state.leader_id, state.voted)] if state is not before else [])


def with_endpoints(directory_id: bytes | None = None, **options: object) -> Replica:
    """Returns follower 1, which starts with other endpoints than those in the set of voters."""
    directory_id = voter(ME).directory_id if directory_id is None else directory_id
    replica = Replica(
        saved=QuorumState(EPOCH, 2),
        log_end=3,
        as_voter=Voter(ME, directory_id, MOVED),
        **options,  # type: ignore[arg-type]
    )
    replica.at(0)
    return replica


def test_only_a_listed_voter_of_a_dynamic_quorum_reports_its_new_endpoints() -> None:
    static = replace(CONFIG, dynamic_voters=False)
    assert with_endpoints().sent(UpdateVoter)
    assert not with_endpoints(config=static).sent(UpdateVoter)
    assert not with_endpoints(voters=(2, 3)).sent(UpdateVoter)
    assert not with_endpoints(b"another directo.").sent(UpdateVoter)
    assert not starting().sent(UpdateVoter)


def test_voter_does_not_report_its_endpoints_again_while_the_first_report_is_unanswered() -> None:
    replica = with_endpoints(config=replace(CONFIG, request_timeout_ms=3 * CONFIG.fetch_timeout_ms))
    (fetch,), (_, *others) = replica.sent(Fetch), replica.sent(UpdateVoter)
    assert not others
    for now_ms in range(500, 3 * CONFIG.fetch_timeout_ms, 500):
        replica.now_ms = now_ms
        replica.answer(fetch, FetchAnswer(ErrorCode.NONE, EPOCH, 2, 3))
        assert not replica.sent(UpdateVoter)
        (fetch,) = replica.sent(Fetch)


def fail(replica: Replica, send: Send) -> None:
    replica.do(SendFailed(send.send_id, closed=True))


def test_only_a_fetch_whose_connection_was_closed_makes_a_follower_suspect_its_leader() -> None:
    for kind in (UpdateVoter, Fetch):
        replica = with_endpoints()
        fail(replica, replica.sent(kind)[0])
        state = replica.raft.core.state
        assert isinstance(state, Follower)
        assert state.leader_suspected is (kind is Fetch)
        assert (state.deadline_ms < CONFIG.fetch_timeout_ms) is (kind is Fetch)


def test_observer_without_a_leader_asks_another_voter_after_a_closed_connection() -> None:
    replica = Replica(me=8)
    replica.at(0)
    for _ in range(3):
        (send,) = replica.sent(Fetch)
        fail(replica, send)
        assert replica.role == "unattached"
        replica.at(replica.raft.deadline())
        while not replica.sent(Fetch):
            replica.at(replica.raft.deadline())
