"""Emits events when the role of this node in the quorum changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.events.kinds import (
    MajorityLost,
    MajorityRegained,
    NetworkPartitionSuspected,
    QuorumElected,
    QuorumRoleChanged,
    QuorumSteppedDown,
)
from penstock.protocol.vocabulary import NO_NODE

if TYPE_CHECKING:
    from penstock.broker.events import Observer


class QuorumChanges:
    def __init__(self, node_id: int, observer: Observer, now_ms: Callable[[], int]) -> None:
        self._node_id = node_id
        self._observer = observer
        self._now_ms = now_ms
        self._role = ""
        self._epoch = 0
        self._seeks_since_ms = now_ms()
        self._had_leader = False
        self._leaderless_since_ms: int | None = None

    def role_changed(self, role: str, epoch: int, leader_id: int, *, stopping: bool, is_voter: bool) -> None:
        """Emits the events for a new role of this node.

        The resignation of a leader is reported as the loss of its majority, unless the node stops or was asked to step
        down (`stopping`), or is no longer a voter.
        """
        lost = role == "resigned" and self._role == "leader" and is_voter and not stopping
        if lost:
            self._observer(MajorityLost(epoch))
            self._observer(NetworkPartitionSuspected("the quorum's leader lost its majority", ()))
        if self._role == "leader" != role:
            reason = _reason(epoch, leader_id, lost=lost, stopping=stopping, is_voter=is_voter)
            self._observer(QuorumSteppedDown(self._epoch, reason))
        if self._role in ("leader", "follower"):
            self._seeks_since_ms = self._now_ms()
        self._role, self._epoch = role, epoch
        self._observer(QuorumRoleChanged(self._node_id, role, epoch, leader_id))
        if role == "leader":
            self._observer(QuorumElected(epoch, self._now_ms() - self._seeks_since_ms))
        if leader_id == NO_NODE:
            if self._had_leader and self._leaderless_since_ms is None:
                self._leaderless_since_ms = self._now_ms()
            return
        self._had_leader = True
        if self._leaderless_since_ms is not None:
            waited_ms, self._leaderless_since_ms = self._now_ms() - self._leaderless_since_ms, None
            self._observer(MajorityRegained(epoch, leader_id, waited_ms))


def _reason(epoch: int, leader_id: int, *, lost: bool, stopping: bool, is_voter: bool) -> str:
    if stopping:
        return "this node stops, or was asked to step down"
    if not is_voter:
        return "this node is no longer a voter"
    if lost:
        return "a majority of the voters stopped fetching"
    return f"node {leader_id} leads epoch {epoch}" if leader_id != NO_NODE else f"epoch {epoch} began"
