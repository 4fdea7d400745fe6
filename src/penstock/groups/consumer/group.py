"""Defines a consumer group and its members. Applying the records of the log builds this state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from penstock.groups import sizes
from penstock.groups.members import MemberTable
from penstock.groups.reconciliation import JOIN_EPOCH, MemberState
from penstock.groups.timers import Timer

Partitions = Mapping[bytes, frozenset[int]]  # topic id → partitions
Assigned = Mapping[bytes, Mapping[int, int]]  # topic id → partition → the member epoch in which it was assigned


class GroupState(StrEnum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicMembership(NamedTuple):
    """Holds the additional state of a consumer group's member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMembership | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Assigned = field(default_factory=dict)
    pending_revocation: Assigned = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        names = sizes.texts(
            self.member_id,
            self.instance_id,
            self.rack_id,
            self.client_id,
            self.client_host,
            self.regex,
            self.server_assignor,
        )
        classic = sizes.protocols(self.classic.protocols) if self.classic is not None else 0
        return sizes.MEMBER_BYTES + names + sizes.topics(self.topics) + classic

    def is_reconciled(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch


class ResolvedRegex(NamedTuple):
    topics: frozenset[str]
    version: int
    timestamp_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    assignment_ms: int = 0  # wall time of the last target assignment
    members: MemberTable[ConsumerMember] = field(default_factory=MemberTable)
    static_members: dict[str, str] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)
    owners: dict[tuple[bytes, int], str] = field(
        default_factory=dict
    )  # the member that holds a partition or still has to release it
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    # soft state: rebuilt after a load
    sessions: dict[str, Timer] = field(default_factory=dict)
    revocations: dict[str, Timer] = field(default_factory=dict)
    rejoins: dict[str, Timer] = field(default_factory=dict)  # only for classic members, like the next field
    syncs: dict[str, Timer] = field(default_factory=dict)
    metadata_changed: bool = True

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        if all(member.is_reconciled(self.assignment_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def member_timers(self) -> tuple[dict[str, Timer], ...]:
        return (self.sessions, self.revocations, self.rejoins, self.syncs)

    def all_timers(self) -> list[Timer]:
        return [timer for timers in self.member_timers for timer in timers.values()]

    @property
    def protocol_type(self) -> str:
        return "consumer"

    def remembered(self) -> tuple[object, ...]:
        return (self.epoch, self.metadata_hash, self.assignment_epoch, self.members, self.target, self.regexes)

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        member_id = self.static_members.get(instance_id)
        return self.members.get(member_id) if member_id is not None else None

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in member.topics for member in self.members.values()) or any(
            topic in regex.topics for regex in self.regexes.values()
        )

    def subscription(self, member: ConsumerMember) -> frozenset[str]:
        """Returns all topics that a member subscribes to, by name or by pattern."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return frozenset(member.topics) | (resolved.topics if resolved is not None else frozenset())
