"""Judges the claims of a partition's replicas: which replica claims to lead, and where the replicas' logs end.

The observer asks each replica with OffsetForLeaderEpoch for the epoch that the controller decided. Only the leader of
that epoch may answer. So a replica that answers claims to lead, and its answer has the end of its log.
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
    """Yields the findings about claims that the controller's decision contradicts.

    The controller decided that `leader` leads in `leader_epoch`. It decides one leader for each epoch, so any other
    node that claims to lead in this epoch is wrong, even if the observer does not have the newest metadata.
    """
    for claim in claims:
        if claim.role is Role.LEADS and claim.node_id != leader:
            evidence = f"node {claim.node_id} claims to lead in epoch {leader_epoch}, in which node {leader} leads"
            yield Finding(Kind.TWO_LEADERS, claim.node_id, partition, claim.end_offset, evidence)
        elif claim.role is Role.AHEAD:
            evidence = f"node {claim.node_id} claims an epoch later than {leader_epoch}, the controller's epoch"
            yield Finding(Kind.EPOCH, claim.node_id, partition, NO_OFFSET, evidence)


def judge_marks(partition: str, leader: int, leader_end: int, marks: Mapping[int, int]) -> Iterator[Finding]:
    """Yields findings about high watermarks past the end of the leader's log.

    `marks` are the high watermarks of the replicas, observed before `leader_end`: the end only grows in an epoch, and
    no high watermark can be larger. If the high watermarks of most followers are past the end, the leader reports a
    wrong end: a single follower can't cause this. With only one follower, it is unknown which of the two replicas is
    wrong.
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
    """Describes a follower that fetched from a lower offset than before, in the same leader epoch and broker epoch."""

    node_id: int
    leader_epoch: int
    was: int
    now: int


def judge_retreat(partition: str, retreat: Retreat) -> Finding:
    """Returns the finding for an end offset that went back without a new epoch: a follower truncates only for a new
    leader."""
    evidence = (
        f"node {retreat.node_id} fetched from offset {retreat.now} after {retreat.was}, both in leader epoch "
        f"{retreat.leader_epoch}"
    )
    return Finding(Kind.END_OFFSET, retreat.node_id, partition, retreat.now, evidence)
