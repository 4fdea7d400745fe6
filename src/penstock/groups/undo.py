"""Undoes what a heartbeat has changed in memory, when the coordinator's log refuses the records of the heartbeat.

Durable state changes only when records are applied, which does not happen to refused records. New groups, timers and
other soft state change at once, and are undone here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.groups.consumer.group import ConsumerGroup
    from penstock.groups.shard import GroupShard
    from penstock.groups.share.group import ShareGroup
    from penstock.groups.streams.group import StreamsGroup
    from penstock.groups.turn import Turn


def add_group(shard: GroupShard, turn: Turn, group: ConsumerGroup | ShareGroup | StreamsGroup) -> None:
    """Adds a new group to the shard. If its records are refused, puts the previous group with this id back.

    A classic group with members whose upgrade is refused is not put back: its members have been told to join again.
    """
    before = shard.groups.get(group.group_id)
    shard.groups[group.group_id] = group

    def undo() -> None:
        if group.members:
            return
        for timer in group.all_timers():
            timer.cancel()
        if before is not None:
            shard.groups[group.group_id] = before
        else:
            del shard.groups[group.group_id]

    turn.undo.append(undo)


def keep_soft_state(turn: Turn, group: StreamsGroup, member_id: str) -> None:
    """Saves the group's soft state. If the records of the member's heartbeat are refused, the saved state is
    restored."""
    kept = group.configured, group.metadata_changed, group.shutdown_by, group.endpoint_epoch

    def undo() -> None:
        group.configured, group.metadata_changed, group.shutdown_by, group.endpoint_epoch = kept
        for timers in (group.sessions, group.revocations):
            if member_id not in group.members and member_id in timers:
                timers.pop(member_id).cancel()

    turn.undo.append(undo)
