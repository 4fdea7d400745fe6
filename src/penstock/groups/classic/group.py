"""Defines a classic group: its states, the transitions between them, and its members.

Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──leader synced──▶ Stable
  ▲                 ▲        │                            │                                  │
  │                 └────────┼──── join, leave, timeout ──┴──────────────────────────────────┘
  └── all members left ──────┘                                       any state ──deleted──▶ Dead
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.check import check
from penstock.groups import sizes
from penstock.groups.timers import Timer, TimerKind
from penstock.protocol.codec import DecodeError, decode_prefix
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.groups.turn import Token
    from penstock.protocol.persisted.group.group_metadata import GroupMetadataValue

CONSUMER_PROTOCOL_TYPE = "consumer"


class State(StrEnum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# for each state, the states from which a group may enter it
COMES_FROM: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE}),
    State.PREPARING_REBALANCE: frozenset({State.STABLE, State.COMPLETING_REBALANCE, State.EMPTY}),
    State.COMPLETING_REBALANCE: frozenset({State.PREPARING_REBALANCE}),
    State.STABLE: frozenset({State.COMPLETING_REBALANCE}),
    State.DEAD: frozenset(State),
}

Protocols = tuple[tuple[str, bytes], ...]  # in the member's order of preference


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    session: Timer
    assignment: bytes = b""
    is_new: bool = False  # joins for the first time and does not know its member id yet
    awaiting_join: Token | None = None
    awaiting_sync: Token | None = None
    counted_bytes: int = 0  # the member's size as the group last counted it

    def metadata(self, protocol: str) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"The member does not support protocol {protocol}: rejoin."
        )

    @property
    def held_bytes(self) -> int:
        names = sizes.texts(self.member_id, self.instance_id, self.client_id, self.client_host)
        return sizes.MEMBER_BYTES + names + sizes.protocols(self.protocols) + sizes.texts(self.assignment)

    def vote(self, candidates: frozenset[str]) -> str:
        for name, _ in self.protocols:
            if name in candidates:
                return name
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "The member supports no protocol that all other members support: give all members a common assignor.",
        )

    @property
    def is_waiting(self) -> bool:
        return self.awaiting_join is not None or self.awaiting_sync is not None


@dataclass(slots=True)
class ClassicGroup:
    group_id: str
    stored: GroupMetadataValue | None = None  # the group's record in the log; all other fields are soft state
    state: State = State.EMPTY
    previous_state: State = State.EMPTY
    state_timestamp_ms: int = -1  # wall time of the last state transition
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)  # instance id → member id
    # member ids that were handed out and have not joined yet
    pending_members: dict[str, Timer] = field(default_factory=dict)
    pending_sync: set[str] = field(default_factory=set)
    subscribed_topics: frozenset[str] | None = None  # None: unknown, or not a group of consumers
    supporters: Counter[str] = field(default_factory=Counter)  # protocol → number of members that support it
    waiting_joins: int = 0
    members_bytes: int = 0  # total size of all members, as last counted
    new_member_added: bool = False  # during the delay of the initial rebalance
    initial_delay_ms: int = 0
    initial_remaining_ms: int = 0
    join_timer: Timer = field(init=False)
    sync_timer: Timer = field(init=False)

    def __post_init__(self) -> None:
        self.join_timer = Timer(TimerKind.JOIN, self.group_id)
        self.sync_timer = Timer(TimerKind.SYNC, self.group_id)

    # --- state

    def transition(self, state: State, wall_ms: int) -> None:
        check(self.state in COMES_FROM[state], f"no transition leads from {self.state} to {state}")
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = wall_ms

    @property
    def can_rebalance(self) -> bool:
        return self.state in COMES_FROM[State.PREPARING_REBALANCE]

    @property
    def all_joined(self) -> bool:
        return len(self.members) == self.waiting_joins and not self.pending_members

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def all_timers(self) -> list[Timer]:
        sessions = (member.session for member in self.members.values())
        return [self.join_timer, self.sync_timer, *self.pending_members.values(), *sessions]

    # --- members

    def check_member(self, member_id: str, instance_id: str | None) -> Member:
        """Returns the member.

        Raises KafkaError if the member is unknown, or if another member has taken over its instance id.
        """
        if instance_id is not None:
            current = self.static_members.get(instance_id)
            if current is None:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"Instance {instance_id} is not in the group: join the group first."
                )
            if current != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"Another member now uses instance id {instance_id}: give each consumer its own id.",
                )
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not in the group: join the group first."
            )
        return member

    def add(self, member: Member) -> None:
        if not self.members and self.protocol_type is None:
            raise AssertionError("the protocol type must be set before the first member joins")
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.supporters.update(dict(member.protocols).keys())
        self.count(member)
        if member.instance_id is not None:
            check(member.instance_id not in self.static_members, "an instance id belongs to one member")
            self.static_members[member.instance_id] = member.member_id
        if member.awaiting_join is not None:
            self.waiting_joins += 1
        self.drop_pending(member.member_id)

    def remove(self, member_id: str) -> Member | None:
        member = self.members.pop(member_id, None)
        if member is not None:
            member.session.cancel()
            self._withdraw_support(member)
            self.members_bytes -= member.counted_bytes
            if member.awaiting_join is not None:
                self.waiting_joins -= 1
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.drop_pending(member_id)
        self.pending_sync.discard(member_id)
        return member

    def count(self, member: Member) -> None:
        """Updates the group's total memory size after the size of `member` has changed."""
        size = member.held_bytes
        self.members_bytes += size - member.counted_bytes
        member.counted_bytes = size

    def drop_pending(self, member_id: str) -> None:
        timer = self.pending_members.pop(member_id, None)
        if timer is not None:
            timer.cancel()

    def replace_static(self, instance_id: str, member_id: str) -> Member:
        """Gives a restarted static member its new member id, and returns the member. The member stays in the group."""
        old_id = self.static_members[instance_id]
        seats = {(member_id if key == old_id else key): member for key, member in self.members.items()}
        member = seats[member_id]
        member.member_id = member.session.member_id = member_id
        self.members = seats
        self.static_members[instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id
        self.pending_sync.discard(old_id)
        return member

    def park_join(self, member: Member, token: Token) -> Token | None:
        """Parks the member's JoinGroup until the join phase ends.

        Returns the JoinGroup that was parked before, if any.
        """
        replaced, member.awaiting_join = member.awaiting_join, token
        if replaced is None:
            self.waiting_joins += 1
        return replaced

    def take_join(self, member: Member) -> Token | None:
        token, member.awaiting_join = member.awaiting_join, None
        if token is not None:
            self.waiting_joins -= 1
        return token

    def elect_joined_leader(self) -> bool:
        """Elects a leader among the members that rejoined. Returns False if no member has rejoined."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is not None and leader.awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader = member.member_id
                return True
        return False

    # --- protocols

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Returns True if a member with these protocols has a protocol in common with all present members."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(protocols)
        if protocol_type != self.protocol_type:
            return False
        return any(self.supporters[name] == len(self.members) for name, _ in protocols)

    def _common_protocols(self) -> frozenset[str]:
        return frozenset(name for name, supporters in self.supporters.items() if supporters == len(self.members))

    def _withdraw_support(self, member: Member) -> None:
        for name in dict(member.protocols):
            self.supporters[name] -= 1
            if not self.supporters[name]:
                del self.supporters[name]

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._withdraw_support(member)
        member.protocols = protocols
        self.count(member)
        self.supporters.update(dict(protocols).keys())

    def select_protocol(self) -> str:
        """Returns the protocol with the most votes.

        Each member votes for the first of its protocols that all members support. In a tie, the protocol with the
        earliest vote wins.
        """
        check(self.members, "an empty group has no protocol to select")
        candidates = self._common_protocols()
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def subscriptions(self) -> frozenset[str] | None:
        """Returns the topics to which the members subscribe.

        Returns None if the members are not consumers, or if their metadata can't be parsed.
        """
        if not self.members:
            return frozenset()
        if self.protocol is None or not self.uses_consumer_protocol:
            return None
        from penstock.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

        topics: set[str] = set()
        for member in self.members.values():
            metadata = member.metadata(self.protocol)
            try:
                version = int.from_bytes(metadata[:2], "big", signed=True)
                # A newer version only appends fields, so it is read as the newest known version.
                subscription, _ = decode_prefix(ConsumerProtocolSubscription, min(version, 3), metadata, 2)
            except (DecodeError, KeyError, ValueError):
                return None
            topics.update(subscription.topics)
        return frozenset(topics)

    def is_subscribed(self, topic: str) -> bool:
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics
