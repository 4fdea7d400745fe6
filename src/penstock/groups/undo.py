"""Undoes the changes of a heartbeat or join in memory, when the coordinator's log refuses the records of the request.

Durable state needs no undo, because refused records are not applied. But new groups, timers and other state that is not
in the log change before the log accepts the records: this module undoes these changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from penstock.groups.consumer.group import ConsumerGroup
    from penstock.groups.share.group import ShareGroup
    from penstock.groups.streams.group import StreamsGroup
    from penstock.groups.timers import Timer
    from penstock.groups.turn import Turn


class _Group(Protocol):
    group_id: str

    def all_timers(self) -> list[Timer]: ...


G = TypeVar("G", bound=_Group)


def add_group(groups: dict[str, G], turn: Turn, group: G) -> None:
    """Adds a new group. Replaces a group with the same id, and cancels the timers of the replaced group.

    If the log refuses the records, removes the new group, and puts the replaced group back with its timers.
    """
    before = groups.get(group.group_id)
    deadlines = [(timer, timer.deadline_ms) for timer in before.all_timers()] if before is not None else []
    for timer, _ in deadlines:
        timer.cancel()
    groups[group.group_id] = group

    def undo() -> None:
        for timer in group.all_timers():
            timer.cancel()
        for timer, deadline_ms in deadlines:
            timer.deadline_ms = deadline_ms
        if before is not None:
            groups[group.group_id] = before
        else:
            del groups[group.group_id]

    turn.undo.append(undo)


def keep_member_state(turn: Turn, group: ConsumerGroup | ShareGroup, member_id: str) -> None:
    """Saves the mark of changed topics. If the log refuses the records of the member's request, restores the mark, and
    drops the timers of a member that did not join."""
    changed = group.metadata_changed

    def undo() -> None:
        group.metadata_changed = group.metadata_changed or changed
        for timers in group.member_timers:
            if member_id not in group.members and member_id in timers:
                timers.pop(member_id).cancel()

    turn.undo.append(undo)


def keep_soft_state(turn: Turn, group: StreamsGroup, member_id: str) -> None:
    """Saves the state of a streams group that is not in the log. Restores it if the log refuses the records of the
    member's heartbeat."""
    kept = group.configured, group.metadata_changed, group.shutdown_by, group.endpoint_epoch
    computing = group.computing

    def undo() -> None:
        group.configured, group.metadata_changed, group.shutdown_by, group.endpoint_epoch = kept
        group.computing = computing
        for timers in (group.sessions, group.revocations):
            if member_id not in group.members and member_id in timers:
                timers.pop(member_id).cancel()

    turn.undo.append(undo)
