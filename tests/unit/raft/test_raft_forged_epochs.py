"""Tests that forged requests raise epochs only up to a limit, and that a replica with a lower epoch can rejoin."""

from __future__ import annotations

import pytest
from raft_cluster import Cluster, Message, voter

from penstock.raft.claims import EPOCH_PACE_MS, MAX_EPOCH_JUMP, highest_epoch
from penstock.raft.messages import Request, Vote
from penstock.raft.states import Leader

DAY_MS = 86_400_000
STEP_MS = 50


def run(cluster: Cluster, milliseconds: int) -> None:
    """Lets time pass; every message arrives or fails within a step."""
    end = cluster.now + milliseconds
    while cluster.now < end:
        cluster.now += STEP_MS
        for node_id in cluster.members:
            cluster.tick(node_id)
        for _ in range(20):
            under_way, cluster.network = cluster.network, []
            for message in under_way:
                if cluster.members[message.target].raft is not None:
                    cluster.deliver(message)
                elif isinstance(message.body, Request):
                    cluster.fail(message)


def three_voters_after_thirty_days(*observers: int, seed: int = 0) -> Cluster:
    cluster = Cluster([1, 2, 3], seed=seed)
    for node_id in observers:
        cluster.add_member(node_id)
    run(cluster, 10_000)
    cluster.now += 30 * DAY_MS
    run(cluster, 10_000)
    return cluster


def forge_vote(cluster: Cluster, node_id: int, candidate: int) -> int:
    """Sends a vote request in the candidate's name, with the highest epoch that the node accepts."""
    epoch = highest_epoch(cluster.members[node_id].running.core)
    vote = Vote(voter(node_id).key, voter(candidate).key, epoch, 1, 0, False)
    cluster.deliver(Message(candidate, node_id, vote, 0, life=0))
    assert cluster.members[node_id].running.core.epoch == epoch
    return epoch


def leader_of(cluster: Cluster) -> int:
    (leader,) = [one.id for one in cluster.members.values() if one.raft and isinstance(one.raft.core.state, Leader)]
    return leader


def check_all_follow(cluster: Cluster, at_least: int) -> None:
    leader = leader_of(cluster)
    cluster.propose(leader, "x")
    run(cluster, 2000)
    cores = [one.raft.core for one in cluster.members.values() if one.raft]
    assert {(core.epoch, core.state.leader_id) for core in cores} == {(cores[0].epoch, leader)}
    assert {core.high_watermark for core in cores} == {cores[0].log.end_offset}
    assert cores[0].epoch >= at_least


def test_voter_that_was_down_while_epochs_were_forged_rejoins_the_quorum() -> None:
    cluster = three_voters_after_thirty_days()
    cluster.crash(3)
    raised = min(forge_vote(cluster, 1, candidate=3), forge_vote(cluster, 2, candidate=3))
    assert raised > MAX_EPOCH_JUMP + 30 * DAY_MS // EPOCH_PACE_MS
    run(cluster, 20_000)
    cluster.start(3)
    run(cluster, 20_000)
    check_all_follow(cluster, raised)
    cluster.crash(2)
    run(cluster, 20_000)
    check_all_follow(cluster, raised)


def test_broker_that_was_down_while_epochs_were_forged_follows_again() -> None:
    cluster = three_voters_after_thirty_days(4)
    cluster.crash(4)
    raised = max(forge_vote(cluster, node_id, candidate=node_id % 3 + 1) for node_id in (1, 2, 3))
    run(cluster, 20_000)
    cluster.start(4)
    run(cluster, 20_000)
    check_all_follow(cluster, raised)


def with_two_recently_restarted_voters(seed: int) -> Cluster:
    cluster = three_voters_after_thirty_days(seed=seed)
    for node_id in (2, 3):
        cluster.crash(node_id)
        run(cluster, 5000)
        cluster.start(node_id)
        run(cluster, 5000)
    return cluster


@pytest.mark.parametrize("leads", [True, False])
def test_quorum_recovers_after_a_forged_vote_raises_the_epoch_of_one_voter(leads: bool) -> None:
    clusters = map(with_two_recently_restarted_voters, range(20))
    cluster = next(one for one in clusters if (leader_of(one) == 1) is leads)
    raised = forge_vote(cluster, 1, candidate=2)
    assert raised > max(highest_epoch(cluster.members[node_id].running.core) for node_id in (2, 3))
    run(cluster, 20_000)
    check_all_follow(cluster, raised)


def test_forged_votes_to_all_voters_raise_the_epoch_only_at_a_limited_rate() -> None:
    cluster = Cluster([1, 2, 3])
    seconds = 60
    for _ in range(seconds):
        run(cluster, 1000)
        for node_id in (1, 2, 3):
            forge_vote(cluster, node_id, candidate=node_id % 3 + 1)
            run(cluster, STEP_MS)
    elections = cluster.now // STEP_MS
    assert cluster.members[1].running.core.epoch < 3 * (MAX_EPOCH_JUMP + cluster.now // EPOCH_PACE_MS) + elections
    run(cluster, 20_000)
    check_all_follow(cluster, MAX_EPOCH_JUMP)
