"""Finds replicas that make false claims: about the partition's leader, the log end or the high watermark.

The observer sends OffsetForLeaderEpoch to each replica, with the epoch that the controller decided. Only the leader of
that epoch may answer, so a replica that answers claims to lead. Its answer contains the end offset of its log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from penstock.guard.findings import NOBODY, Finding, Kind

NO_OFFSET = -1


class Role(Enum):
    LEADS = "leads"
    FOLLOWS = "follows"
    AHEAD = "knows a later epoch"
    UNKNOWN = "no answer"


@dataclass(frozen=True, slots=True)
class Claim:
    node_id: int
    role: Role
    end_offset: int = NO_OFFSET
    """The end of the log that a claimed leader reports."""


def judge_claims(partition: str, leader: int, leader_epoch: int, claims: Sequence[Claim]) -> Iterator[Finding]:
    """Yields a finding for each replica that contradicts the controller: it claims to lead, or claims a later epoch.

    The controller chose `leader` for `leader_epoch`, and an epoch has only one leader. Any other node that claims to
    lead in this epoch is wrong, even if the observer's metadata is old.
    """
    for claim in claims:
        if claim.role is Role.LEADS and claim.node_id != leader:
            evidence = f"node {claim.node_id} claims to lead in epoch {leader_epoch}, in which node {leader} leads"
            yield Finding(Kind.TWO_LEADERS, claim.node_id, partition, claim.end_offset, evidence)
        elif claim.role is Role.AHEAD:
            evidence = f"node {claim.node_id} claims an epoch later than {leader_epoch}, the controller's epoch"
            yield Finding(Kind.EPOCH, claim.node_id, partition, NO_OFFSET, evidence)


def judge_marks(partition: str, leader: int, leader_end: int, marks: Mapping[int, int]) -> Iterator[Finding]:
    """Yields findings about high watermarks that are past the end of the leader's log.

    `marks` maps each replica to its high watermark, which was read before `leader_end`. In one epoch the leader's log
    only grows, so no high watermark can be past its end. The leader is accused if its own high watermark or those of
    most followers are past the end. Otherwise the followers are accused. If there is only one follower, nobody is
    accused: either replica may be wrong.
    """
    past = sorted(node for node, mark in marks.items() if mark > leader_end)
    if not past:
        return
    shown = ", ".join(f"{marks[node]} at node {node}" for node in past)
    evidence = f"leader {leader} reports the log end {leader_end}, but the high watermark is {shown}"
    followers = [node for node in marks if node != leader]
    wrong = [node for node in past if node != leader]
    offset = max(marks[node] for node in past)
    if leader in past or (len(followers) > 1 and 2 * len(wrong) > len(followers)):
        accused: list[int] = [leader]
    elif len(followers) > 1:
        accused = wrong
    else:
        accused = [NOBODY]
    for node in accused:
        yield Finding(Kind.HIGH_WATERMARK, node, partition, offset, evidence)


@dataclass(frozen=True, slots=True)
class Retreat:
    """Describes a follower that fetched from a lower offset than before, without a new leader or a restart."""

    node_id: int
    leader_epoch: int
    was: int
    now: int


def judge_retreat(partition: str, retreat: Retreat) -> Finding:
    """Returns the finding about a follower whose log end went back. Within an epoch, followers never truncate."""
    evidence = (
        f"node {retreat.node_id} fetched from offset {retreat.now} after {retreat.was}, both in leader epoch "
        f"{retreat.leader_epoch}"
    )
    return Finding(Kind.END_OFFSET, retreat.node_id, partition, retreat.now, evidence)
