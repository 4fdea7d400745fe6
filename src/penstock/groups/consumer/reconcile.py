"""Moves a member from its current partitions to its target assignment.

First the member revokes the partitions that are not in the target. Its epoch increases only when its heartbeat no
longer reports these partitions. Then it gets the partitions that the target adds, as soon as no other member holds
them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.groups.consumer.group import Assigned, ConsumerMember, MemberState, Partitions

if TYPE_CHECKING:
    from collections.abc import Callable

Owned = Partitions | None  # the partitions that the member reports; None if the request leaves them out


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Partitions,
    owned: Owned,
    is_held: Callable[[bytes, int], bool],
) -> ConsumerMember:
    """Returns the member after its next step towards its target assignment; the unchanged member if no step is due."""
    match member.state:
        case MemberState.STABLE:
            if member.epoch == target_epoch:
                return member
            return _step(member, member.epoch, target_epoch, target, owned, is_held)
        case MemberState.UNREVOKED_PARTITIONS:
            if _still_owns(owned, member.pending_revocation):
                return member
            return _step(member, member.epoch + 1, target_epoch, target, owned, is_held)
        case MemberState.UNRELEASED_PARTITIONS:
            return _step(member, member.epoch, target_epoch, target, owned, is_held)


def _still_owns(owned: Owned, revoked: Assigned) -> bool:
    """Returns True if the member may still own a revoked partition.

    This is the case if its heartbeat reports such a partition, or reports no partitions at all.
    """
    return owned is None or any(
        not owned.get(topic_id, frozenset()).isdisjoint(revoked[topic_id]) for topic_id in revoked
    )


def _step(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    owned: Owned,
    is_held: Callable[[bytes, int], bool],
) -> ConsumerMember:
    kept: dict[bytes, dict[int, int]] = {}
    revoked: dict[bytes, dict[int, int]] = {}
    added: dict[bytes, list[int]] = {}
    waits = False
    for topic_id in target.keys() | member.assigned.keys():
        wanted = target.get(topic_id, frozenset())
        current = member.assigned.get(topic_id, {})
        for partition, since in current.items():
            (kept if partition in wanted else revoked).setdefault(topic_id, {})[partition] = since
        for partition in wanted - current.keys():
            if is_held(topic_id, partition):
                waits = True
            else:
                added.setdefault(topic_id, []).append(partition)
    if revoked and _still_owns(owned, revoked):
        return _moved(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
    for topic_id, partitions in added.items():
        kept.setdefault(topic_id, {}).update(dict.fromkeys(partitions, target_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return _moved(member, target_epoch, state, kept, {})


def _moved(
    member: ConsumerMember, epoch: int, state: MemberState, assigned: Assigned, pending_revocation: Assigned
) -> ConsumerMember:
    previous_epoch = member.previous_epoch if epoch == member.epoch else member.epoch
    return replace(
        member,
        epoch=epoch,
        previous_epoch=previous_epoch,
        state=state,
        assigned=assigned,
        pending_revocation=pending_revocation,
    )
