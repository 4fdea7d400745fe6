"""Changes the protocol of a group without stopping its members: classic to consumer, and back.

Upgrade: when the first member with the consumer protocol joins, the group becomes a consumer group; the other members
stay in it and keep the classic protocol (`consumer/classic_members.py`). Downgrade: when the last member with the
consumer protocol has left, the group becomes a classic group again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.groups.classic import rebalance
from penstock.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, Member, State
from penstock.groups.classic.journal import record_deletion, record_group
from penstock.groups.consumer import journal
from penstock.groups.consumer.embedded import read_assignment, read_subscription, version_of, write_assignment
from penstock.groups.consumer.group import ClassicMembership, ConsumerGroup, ConsumerMember
from penstock.groups.timers import Timer, TimerKind
from penstock.groups.turn import Turn
from penstock.groups.undo import add_group
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.groups.shard import GroupShard
    from penstock.metadata.image import MetadataImage

UPGRADE_POLICIES = ("upgrade", "bidirectional")
DOWNGRADE_POLICIES = ("downgrade", "bidirectional")


# --- upgrade


def upgrade(turn: Turn, image: MetadataImage, group: ClassicGroup) -> ConsumerGroup:
    """Returns a consumer group with the same members, epochs and partitions. Does not change the classic group."""
    config = turn.config
    if (
        config.consumer_migration_policy not in UPGRADE_POLICIES
        or not group.uses_consumer_protocol
        or len(group.members) > config.consumer_max_size
    ):
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Group {group.group_id} is a classic group that can't be upgraded: use the classic protocol, or another "
            "group id.",
        )
    try:
        members = [_as_consumer(image, group, member) for member in group.members.values()]
    except KafkaError as error:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} can't be upgraded: {error.message}"
        ) from None
    start = len(turn.records)
    record_deletion(turn, group)
    for member in members:
        journal.record_member(turn, group.group_id, member)
    journal.record_epoch(turn, group.group_id, group.generation, 0)
    for member in members:
        partitions = {topic_id: frozenset(indexes) for topic_id, indexes in member.assigned.items()}
        journal.record_target(turn, group.group_id, member.member_id, partitions)
    journal.record_target_epoch(turn, group.group_id, group.generation)
    for member in members:
        journal.record_current(turn, group.group_id, member)
    upgraded = ConsumerGroup(group.group_id)
    for record in turn.records[start + 1 :]:  # a preview to decide on; applying the records again later changes nothing
        journal.apply(upgraded, record)
    upgraded.assignment_ms = 0  # the interval between assignments does not count from the classic leader's assignment
    return upgraded


def _as_consumer(image: MetadataImage, group: ClassicGroup, member: Member) -> ConsumerMember:
    subscription = read_subscription(member.metadata(group.protocol) if group.protocol else member.protocols[0][1])
    generation = group.generation
    return ConsumerMember(
        member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMembership(member.session_timeout_ms, member.protocols),
        epoch=generation,
        previous_epoch=generation,
        assigned={
            topic_id: dict.fromkeys(indexes, generation)
            for topic_id, indexes in read_assignment(member.assignment, image).items()
        },
    )


def release_parked(turn: Turn, group: ClassicGroup) -> None:
    """Answers the parked requests of a classic group with REBALANCE_IN_PROGRESS, because a consumer group replaces it.
    Its members then rejoin.

    The requests are parked again if the records of the consumer group can't be written.
    """
    parked = [(member, group.take_join(member), member.awaiting_sync) for member in group.members.values()]
    for member, join, sync in parked:
        member.awaiting_sync = None
        if join is not None:
            turn.reply(join, rebalance.join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS))
        if sync is not None:
            turn.reply(sync, rebalance.sync_error(ErrorCode.REBALANCE_IN_PROGRESS))

    def undo() -> None:
        released = [token for _, *tokens in parked for token in tokens]
        turn.replies = [(token, answer) for token, answer in turn.replies if token not in released]
        for member, join, sync in parked:
            member.awaiting_sync = sync
            if join is not None:
                group.park_join(member, join)

    turn.undo.append(undo)


# --- downgrade


def can_downgrade(turn: Turn, group: ConsumerGroup, gone: Collection[str]) -> bool:
    left = [member for member_id, member in group.members.items() if member_id not in gone]
    return (
        bool(left)
        and all(member.classic is not None for member in left)
        and turn.config.consumer_migration_policy in DOWNGRADE_POLICIES
        and len(left) <= turn.config.max_size
    )


def downgrade(shard: GroupShard, turn: Turn, group: ConsumerGroup, gone: Collection[str]) -> None:
    """Turns the group into a classic group of its remaining members, which rebalances to elect a leader."""
    journal.erase_group(turn, group)
    classic = ClassicGroup(group.group_id, state=State.STABLE, state_timestamp_ms=turn.wall_ms)
    classic.generation = group.epoch
    classic.protocol_type = CONSUMER_PROTOCOL_TYPE
    for member_id, member in group.members.items():
        if member_id not in gone:
            classic.add(_as_classic(group.group_id, member))
    classic.protocol = classic.select_protocol()
    classic.subscribed_topics = classic.subscriptions()
    for each in classic.members.values():
        version = version_of(each.metadata(classic.protocol))
        each.assignment = write_assignment(group.target.get(each.member_id, {}), shard.image, version)
        classic.count(each)
        rebalance.keep_alive(turn, each)
    record_group(turn, classic, {each.member_id: each.assignment for each in classic.members.values()})
    add_group(shard.groups, turn, classic)
    rebalance.prepare_rebalance(turn, classic)


def _as_classic(group_id: str, member: ConsumerMember) -> Member:
    assert member.classic is not None
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.classic.session_timeout_ms,
        protocols=member.classic.protocols,
        session=Timer(TimerKind.SESSION, group_id, member.member_id),
    )
