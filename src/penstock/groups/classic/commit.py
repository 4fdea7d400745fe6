"""Decides which clients may commit offsets to a classic group, and when its offsets expire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.classic.rebalance import keep_alive
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.groups.offsets import Committed
    from penstock.groups.turn import Turn


def check_commit(
    turn: Turn,
    group: ClassicGroup,
    member_id: str,
    instance_id: str | None,
    generation: int,
    transactional: bool = False,
) -> None:
    """Raises KafkaError if the client may not commit offsets to the group.

    A member's commit counts as a heartbeat. Any other client (a simple consumer, an administrator) may commit only
    while the group is empty.
    """
    if group.state is State.DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group is being deleted: find its coordinator again.")
    if generation < 0 and group.state is State.EMPTY:
        return
    if generation >= 0 or member_id or instance_id is not None:
        member = group.check_member(member_id, instance_id)
        if generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"The group is in generation {group.generation}: rejoin.")
    elif transactional:
        return  # the first versions of TxnOffsetCommit have no member id
    else:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "The group has members: only they may commit its offsets.")
    if transactional:
        return
    if group.state is State.COMPLETING_REBALANCE:
        # the generation is current, so the member has joined and only waits for its assignment
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "The group waits for its assignment: send SyncGroup first.")
    if not member.is_waiting:
        keep_alive(turn, member)


def offset_age_base(group: ClassicGroup, topic: str, committed: Committed) -> int | None:
    """Returns the time from which the age of an offset counts for `offsets.retention.minutes`.

    Returns None while the group may still use the offset: then the offset does not expire.
    """
    if group.protocol_type is None:  # a simple consumer: only its commits show that it is alive
        return committed.commit_ms
    if group.state is State.EMPTY:
        return group.state_timestamp_ms if group.state_timestamp_ms >= 0 else committed.commit_ms
    if (
        group.uses_consumer_protocol
        and group.subscribed_topics is not None
        and group.state is State.STABLE
        and topic not in group.subscribed_topics
    ):
        return committed.commit_ms
    return None
