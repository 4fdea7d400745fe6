"""Describes the quorum as its leader sees it, for DescribeQuorum and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.raft.states import Leader

if TYPE_CHECKING:
    from penstock.raft.core import Core
    from penstock.raft.progress import Replica
    from penstock.raft.voters import ReplicaKey, VoterSet


@dataclass(frozen=True, slots=True)
class ReplicaView:
    key: ReplicaKey
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumView:
    """Holds the state of the quorum. `voters` and `observers` are empty on a replica that does not lead."""

    leader_id: int
    epoch: int
    high_watermark: int
    voter_set: VoterSet
    voters: tuple[ReplicaView, ...]
    observers: tuple[ReplicaView, ...]


def describe(core: Core) -> QuorumView:
    state = core.state
    voter_set = core.voters.latest
    voters: list[ReplicaView] = []
    observers: list[ReplicaView] = []
    if isinstance(state, Leader):
        itself = ReplicaView(core.me, core.log.end_offset, core.now, core.now)
        voters = [_view(replica) for replica in state.replicas.of_voters(voter_set)]
        observers = [_view(replica) for replica in state.replicas.observers(voter_set)]
        (voters if core.is_voter else observers).append(itself)
        voters.sort(key=lambda view: view.key.node_id)
    return QuorumView(state.leader_id, state.epoch, core.high_watermark, voter_set, tuple(voters), tuple(observers))


def _view(replica: Replica) -> ReplicaView:
    return ReplicaView(replica.key, replica.end_offset, replica.last_fetch_ms, replica.last_caught_up_ms)
