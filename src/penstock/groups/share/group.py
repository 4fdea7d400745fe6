"""Defines a share group and its members. Applying the records of the log builds this state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.groups import sizes
from penstock.groups.consumer.group import Partitions
from penstock.groups.members import MemberTable
from penstock.groups.reconciliation import JOIN_EPOCH
from penstock.groups.timers import Timer

ASSIGNOR = "simple"


class ShareGroupState(StrEnum):
    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ShareMember:
    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    epoch: int = JOIN_EPOCH
    previous_epoch: int = -1
    assigned: Partitions = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        names = sizes.texts(self.member_id, self.rack_id, self.client_id, self.client_host)
        return sizes.MEMBER_BYTES + names + sizes.topics(self.topics)


@dataclass(frozen=True, slots=True)
class StatePartitions:
    """Holds the partitions whose state at the share coordinator exists, is being created, or is being deleted."""

    initializing: Mapping[bytes, frozenset[int]] = field(default_factory=dict)
    initialized: Mapping[bytes, frozenset[int]] = field(default_factory=dict)
    deleting: frozenset[bytes] = frozenset()
    names: Mapping[bytes, str] = field(default_factory=dict)

    def known(self, topic_id: bytes) -> frozenset[int]:
        nothing: frozenset[int] = frozenset()
        return self.initializing.get(topic_id, nothing) | self.initialized.get(topic_id, nothing)


@dataclass(slots=True)
class ShareGroup:
    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = 0
    assignment_ms: int = 0  # wall time of the last target assignment
    members: MemberTable[ShareMember] = field(default_factory=MemberTable)
    target: dict[str, Partitions] = field(default_factory=dict)
    states: StatePartitions = field(default_factory=StatePartitions)
    # soft state: rebuilt after a load
    sessions: dict[str, Timer] = field(default_factory=dict)
    metadata_changed: bool = True
    asked_ms: int | None = None  # when the share coordinator was last asked to initialize partitions

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    @property
    def protocol_type(self) -> str:
        return "share"

    @property
    def member_timers(self) -> tuple[dict[str, Timer], ...]:
        return (self.sessions,)

    def all_timers(self) -> list[Timer]:
        return list(self.sessions.values())

    def remembered(self) -> tuple[object, ...]:
        return (self.epoch, self.metadata_hash, self.assignment_epoch, self.members, self.target, self.states)

    def is_subscribed(self, topic: str) -> bool:
        return any(topic in member.topics for member in self.members.values())

    def state_keys(self) -> Iterator[tuple[bytes, int]]:
        """Yields the partitions that may have a state at the share coordinator."""
        for topic_id in sorted(self.states.initialized.keys() | self.states.initializing.keys()):
            for index in sorted(self.states.known(topic_id)):
                yield topic_id, index
