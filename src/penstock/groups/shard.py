"""Holds the groups and offsets in one partition of `__consumer_offsets`.

Durable state changes only in `apply` and `apply_marker`. Functions of the other modules decide on requests and timers;
they get the shard and a `Turn`, which collects their effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.allowance import Allowance
from penstock.groups import room
from penstock.groups.classic import rebalance
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.classic.journal import restore
from penstock.groups.config import GroupConfig
from penstock.groups.consumer import journal as consumer_journal
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.consumer.leave import remove
from penstock.groups.consumer.timing import start_timers
from penstock.groups.journal import OffsetKey, decode_record, encode_record
from penstock.groups.offset_requests import forget_topics
from penstock.groups.offsets import Offsets
from penstock.groups.share import heartbeat as share_heartbeat
from penstock.groups.share import journal as share_journal
from penstock.groups.share import states as share_states
from penstock.groups.share.group import ShareGroup
from penstock.groups.streams import journal as streams_journal
from penstock.groups.streams import target as streams_target
from penstock.groups.streams.group import StreamsGroup
from penstock.groups.streams.target import StreamsLimits
from penstock.groups.timers import Timer, TimerKind, Timers
from penstock.groups.timing import Limits, is_due
from penstock.groups.turn import JournalRecord, Turn
from penstock.metadata.image import EMPTY_IMAGE, MetadataImage, TopicChanges, topic_changes
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.persisted.group.consumer_group_metadata import ConsumerGroupMetadataKey
from penstock.protocol.persisted.group.group_metadata import GroupMetadataKey, GroupMetadataValue
from penstock.protocol.persisted.group.offset_commit import OffsetCommitKey
from penstock.protocol.persisted.group.share_group_metadata import ShareGroupMetadataKey
from penstock.protocol.persisted.group.streams_group_metadata import StreamsGroupMetadataKey
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import NO_PRODUCER_ID, ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping


Group = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup


class _Journal(NamedTuple):
    """Defines how the records of one kind of group are applied."""

    group: type[ConsumerGroup | ShareGroup | StreamsGroup]
    metadata_key: type[Any]  # the key whose tombstone deletes the group
    apply: Callable[[Any, JournalRecord], None]


_CONSUMER = _Journal(ConsumerGroup, ConsumerGroupMetadataKey, consumer_journal.apply)
_SHARE = _Journal(ShareGroup, ShareGroupMetadataKey, share_journal.apply)
_STREAMS = _Journal(StreamsGroup, StreamsGroupMetadataKey, streams_journal.apply)
_JOURNALS: dict[type[Any], _Journal] = {
    **dict.fromkeys(share_journal.SHARE_KEYS, _SHARE),
    **dict.fromkeys(streams_journal.STREAMS_KEYS, _STREAMS),
}

MAX_RETIRED = 10_000  # deleted share groups whose epochs are remembered
TIMER_RETRY_MS = 500


class GroupShard:
    #: A record replaces all earlier records with its key.
    incremental = False

    def __init__(self, config: GroupConfig, random: Random, allowance: Allowance | None = None) -> None:
        """Creates an empty shard.

        `allowance` is a memory limit shared with other shards; groups and offsets beyond this limit are refused.
        """
        self.config = config
        self.random = random
        self.allowance = allowance or Allowance()
        self.groups: dict[str, Group] = {}
        #: The last epochs of deleted share groups; the oldest are forgotten.
        self.retired_epochs: dict[str, int] = {}
        self.offsets = Offsets()
        self.timers = Timers()
        self.image = EMPTY_IMAGE  # the topics that exist
        self._deleted: set[str] = set()  # deleted topics whose offsets are still to be erased
        self._deletion = Timer(TimerKind.DELETION, "")

    def turn(self, now_ms: int, wall_ms: int) -> Turn:
        return Turn(now_ms, wall_ms, self.config, self.timers, self.random)

    def encode(self, record: JournalRecord) -> tuple[bytes, bytes | None]:
        return encode_record(record)

    def decode(self, key: bytes | None, value: bytes | None) -> JournalRecord | None:
        return decode_record(key, value)

    # --- durable state

    def apply(self, record: JournalRecord, log_offset: int, producer_id: int = NO_PRODUCER_ID) -> None:
        key, value = record
        if type(key) is OffsetKey or type(key) is OffsetCommitKey:
            if value is not None and key.group not in self.groups:
                self.groups[key.group] = ClassicGroup(key.group)  # the group of a simple consumer has only offsets
            self.offsets.apply(key, value, log_offset, producer_id)
        elif type(key) is GroupMetadataKey:
            self._apply_classic(key.group, value)
        else:
            self._apply_journal(record, _JOURNALS.get(type(key), _CONSUMER))

    def _apply_classic(self, group_id: str, value: GroupMetadataValue | None) -> None:
        group = self.groups.get(group_id)
        if value is None:
            if isinstance(group, ClassicGroup):
                del self.groups[group_id]
        elif isinstance(group, ClassicGroup):
            group.stored = value
        else:
            self.groups[group_id] = ClassicGroup(group_id, stored=value)

    def _apply_journal(self, record: JournalRecord, journal: _Journal) -> None:
        key = record.key
        group = self.groups.get(key.group_id)
        if type(group) is not journal.group:
            if record.value is None:
                return
            group = self.groups[key.group_id] = journal.group(key.group_id)
        if record.value is None and type(key) is journal.metadata_key:
            del self.groups[key.group_id]
            if isinstance(group, ShareGroup):
                self._retire(group)
        else:
            journal.apply(group, record)

    def _retire(self, group: ShareGroup) -> None:
        """Remembers the group epoch of a deleted share group: a new group with the same id starts with a later epoch.

        The share coordinators store the group epoch as the state epoch. So they fence a late write of the deleted
        group.
        """
        self.retired_epochs.pop(group.group_id, None)
        self.retired_epochs[group.group_id] = group.epoch
        if len(self.retired_epochs) > MAX_RETIRED:
            del self.retired_epochs[next(iter(self.retired_epochs))]

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        self.offsets.apply_marker(producer_id, commit)

    def remembered(self) -> Mapping[str, Any]:
        """Returns all durable state. A replay of the log must restore exactly this state."""
        committed, pending = self.offsets.remembered()
        return {
            "groups": {
                group_id: group.stored if isinstance(group, ClassicGroup) else group.remembered()
                for group_id, group in self.groups.items()
            },
            "committed": committed,
            "pending": pending,
        }

    def held_bytes(self) -> int:
        """Returns the approximate memory of the shard's groups, members and offsets."""
        return self.offsets.bytes + sum(map(room.held_by, self.groups.values()))

    # --- load and unload

    def loaded(self, turn: Turn) -> None:
        """Starts the timers of all groups after the log has been replayed."""
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                start_timers(turn, group, self.limits(group.group_id))
                continue
            if isinstance(group, ShareGroup):
                share_heartbeat.start_timers(turn, group, self.share_limits(group.group_id))
                continue
            if isinstance(group, StreamsGroup):
                streams_target.start_timers(turn, group, self.streams_limits(group.group_id))
                continue
            restore(turn, group)
            if len(group.members) > turn.config.max_size:
                rebalance.prepare_rebalance(turn, group)

    def abandon(self, turn: Turn) -> None:
        """Answers parked requests with NOT_COORDINATOR when the leadership of the partition is lost."""
        for group in self.groups.values():
            if not isinstance(group, ClassicGroup):
                continue  # its members are answered at once, or when their records are committed
            for member in group.members.values():
                token = group.take_join(member)
                if token is not None:
                    turn.reply(token, rebalance.join_error(member.member_id, ErrorCode.NOT_COORDINATOR))
                if member.awaiting_sync is not None:
                    turn.reply(member.awaiting_sync, rebalance.sync_error(ErrorCode.NOT_COORDINATOR))
        self.groups.clear()

    # --- time

    def next_deadline(self) -> int | None:
        return self.timers.next_deadline()

    def on_timers(self, turn: Turn) -> None:
        """Handles all due timers.

        The members of a group that time out in one turn are removed together, because the records of this turn are not
        applied yet: a removal of one member would still count the others. They are removed last, so that no other
        record of the turn brings them back.
        """
        fired = self.timers.due(turn.now_ms)
        turn.undo.append(partial(self._fire_again, turn, fired, frozenset(self._deleted)))
        silent: dict[str, set[str]] = {}
        for timer in fired:
            if timer is self._deletion:
                forget_topics(self, turn, self._deleted)
                self._deleted.clear()
                self._forget_share_states(turn)
                continue
            group = self.groups.get(timer.group_id)
            if isinstance(group, ClassicGroup):
                self._on_classic_timer(turn, group, timer)
            elif isinstance(group, StreamsGroup) and timer is group.initial_delay:
                streams_target.on_initial_delay(turn, group, self.streams_limits(group.group_id))
            elif isinstance(group, StreamsGroup) and timer is group.next_step:
                streams_target.on_next_step(turn, group)
            elif group is not None and _is_silent(group, timer):
                silent.setdefault(group.group_id, set()).add(timer.member_id)
        for group_id, members in silent.items():
            self._remove(turn, self.groups[group_id], sorted(members))

    def _fire_again(self, turn: Turn, fired: list[Timer], deleted: frozenset[str]) -> None:
        """Sets timers again if the records of their turn were refused: a group may not fit into one record when it
        changes its protocol. The timers of each group fire in a turn of their own, so that the other groups go on."""
        self._deleted |= deleted
        order: dict[str, int] = {}
        for timer in fired:
            delay_ms = TIMER_RETRY_MS + order.setdefault(timer.group_id, len(order))
            if not timer.armed:
                turn.arm(timer, delay_ms)

    def _remove(self, turn: Turn, group: Group, members: Sequence[str]) -> None:
        if isinstance(group, ShareGroup):
            share_heartbeat.remove(turn, self.image, group, [group.members[each] for each in members])
        elif isinstance(group, StreamsGroup):
            streams_target.remove(turn, group, members)
        elif isinstance(group, ConsumerGroup):
            remove(self, turn, group, [group.members[each] for each in members])

    def _forget_share_states(self, turn: Turn) -> None:
        """Removes deleted topics from each share group's list of topics.

        The share coordinator itself deletes the states of the deleted topics' partitions.
        """
        for group in self.groups.values():
            if isinstance(group, ShareGroup):
                known = group.states.names.keys() - self.image.topics_by_id.keys()
                share_states.forget(turn, group, known)

    @staticmethod
    def _on_classic_timer(turn: Turn, group: ClassicGroup, timer: Timer) -> None:
        match timer.kind:
            case TimerKind.SESSION:
                rebalance.on_session_timer(turn, group, timer.member_id)
            case TimerKind.PENDING_MEMBER:
                rebalance.on_pending_timer(turn, group, timer.member_id)
            case TimerKind.JOIN:
                rebalance.on_join_timer(turn, group)
            case TimerKind.SYNC:
                rebalance.on_sync_timer(turn, group)
            case _:
                pass  # a timer from before the group changed its protocol

    def see(self, image: MetadataImage, changes: TopicChanges | None = None) -> None:
        """Takes over a new metadata image.

        If topics of a group changed, the group gets a new assignment at the next heartbeat of a member.
        """
        if changes is None:
            changes = topic_changes(self.image, image)
        racks_changed = self.image.brokers is not image.brokers
        acls_changed = self.image.acls is not image.acls
        self.image = image
        if changes.deleted:
            # By a timer, which waits until the log is loaded and enough replicas are in sync.
            self._deleted.update(topic.name for topic in changes.deleted)
            self.timers.set(self._deletion, 0)
        names = {topic.name for topic in (*changes.created, *changes.deleted)}
        names.update(after.name for _, after in changes.changed)
        if not names and not racks_changed and not acls_changed:
            return
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup) and not group.metadata_changed:
                group.metadata_changed = (
                    racks_changed
                    or bool(group.regexes)  # a pattern matches only topics that its member may describe
                    or any(group.is_subscribed(name) for name in names)
                )
            elif isinstance(group, ShareGroup):
                group.metadata_changed = group.metadata_changed or any(group.is_subscribed(name) for name in names)
            elif isinstance(group, StreamsGroup):
                group.metadata_changed = racks_changed or group.metadata_changed or any(map(group.needs, names))

    # --- lookups

    def topic_id(self, name: str) -> bytes:
        """Returns the id of the current topic with this name; zero if there is none."""
        topic = self.image.topics.get(name)
        return topic.topic_id if topic is not None else ZERO_UUID

    def limits(self, group_id: str) -> Limits:
        config = self.config
        return self._limits(
            group_id,
            "consumer",
            Limits(
                config.consumer_session_timeout_ms,
                config.consumer_heartbeat_interval_ms,
                config.consumer_assignment_interval_ms,
            ),
        )

    def share_limits(self, group_id: str) -> Limits:
        config = self.config
        return self._limits(
            group_id,
            "share",
            Limits(
                config.share_session_timeout_ms,
                config.share_heartbeat_interval_ms,
                config.share_assignment_interval_ms,
            ),
        )

    def streams_limits(self, group_id: str) -> StreamsLimits:
        own = self.image.config(ResourceType.GROUP, group_id)
        config = self.config
        timing = Limits(
            config.streams_session_timeout_ms,
            config.streams_heartbeat_interval_ms,
            config.streams_assignment_interval_ms,
        )
        return StreamsLimits(
            self._limits(group_id, "streams", timing),
            int(own.get("streams.initial.rebalance.delay.ms", config.streams_initial_rebalance_delay_ms)),
            int(own.get("streams.num.standby.replicas", config.streams_standby_replicas)),
        )

    def _limits(self, group_id: str, kind: str, default: Limits) -> Limits:
        own = self.image.config(ResourceType.GROUP, group_id)
        return Limits(
            int(own.get(f"{kind}.session.timeout.ms", default.session_timeout_ms)),
            int(own.get(f"{kind}.heartbeat.interval.ms", default.heartbeat_interval_ms)),
            int(own.get(f"{kind}.assignment.interval.ms", default.assignment_interval_ms)),
        )

    def group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group


def _is_silent(group: ConsumerGroup | ShareGroup | StreamsGroup, timer: Timer) -> bool:
    """Returns True if the member of a timer that has fired must be removed from its group."""
    if isinstance(group, ShareGroup):
        return timer.member_id in group.members
    member = group.members.get(timer.member_id)
    return member is not None and is_due(member, timer.kind)
