"""Moves a member of a consumer group or streams group from its current assignment to its target assignment.

First the member revokes the partitions that are not in the target. Its epoch increases only when its heartbeat no
longer reports these partitions. Then it gets the partitions that the target adds, as soon as no other member holds
them. An assignment maps keys to partitions. In a consumer group a key is a topic id; in a streams group it is a role
and a subtopology.

STABLE ──new target──► UNREVOKED_PARTITIONS ──no revoked partition is reported──► UNRELEASED_PARTITIONS or STABLE
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from penstock.protocol.errors import ErrorCode, KafkaError

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2

K = TypeVar("K", bound=Hashable)
Held = Mapping[K, Mapping[int, int]]  # key → partition → the member epoch in which it was assigned
Wanted = Mapping[K, frozenset[int]]


class MemberState(IntEnum):
    STABLE = 0
    UNREVOKED_PARTITIONS = 1  # has to revoke partitions first
    UNRELEASED_PARTITIONS = 2  # waits for partitions that another member still holds


class Reconcilable(Protocol):
    """Declares the fields of a member that reconciliation reads and replaces.

    The members of consumer and streams groups are frozen dataclasses with these fields.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def epoch(self) -> int: ...
    @property
    def previous_epoch(self) -> int: ...
    @property
    def state(self) -> MemberState: ...
    @property
    def assigned(self) -> Mapping[Any, Mapping[int, int]]: ...
    @property
    def pending_revocation(self) -> Mapping[Any, Mapping[int, int]]: ...


M = TypeVar("M", bound=Reconcilable)


def reconcile(
    member: M, target_epoch: int, target: Wanted[K], owned: Wanted[K] | None, is_held: Callable[[K, int], bool]
) -> M:
    """Returns the member after one step towards its target assignment: it gets partitions to revoke, or new partitions.

    Returns the same member if there is nothing to change. `owned` contains the partitions that the member reports; None
    if the request leaves them out.
    """
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


def _still_owns(owned: Wanted[K] | None, revoked: Held[K]) -> bool:
    """Returns True if the member may still own a revoked partition.

    This is the case if its heartbeat reports such a partition, or reports no partitions at all.
    """
    return owned is None or any(not owned.get(key, frozenset()).isdisjoint(revoked[key]) for key in revoked)


@dataclass(slots=True)
class _Difference(Generic[K]):
    """Compares a member's assignment with its target assignment."""

    kept: dict[K, dict[int, int]]
    revoked: dict[K, dict[int, int]]
    added: dict[K, list[int]]
    waits: bool = False  # the target adds partitions that another member still holds


def _difference(current: Held[K], target: Wanted[K], is_held: Callable[[K, int], bool]) -> _Difference[K]:
    found: _Difference[K] = _Difference({}, {}, {})
    for key in target.keys() | current.keys():
        wanted = target.get(key, frozenset())
        held = current.get(key, {})
        for partition, since in held.items():
            (found.kept if partition in wanted else found.revoked).setdefault(key, {})[partition] = since
        for partition in wanted - held.keys():
            if is_held(key, partition):
                found.waits = True
            else:
                found.added.setdefault(key, []).append(partition)
    return found


def _step(
    member: M,
    epoch: int,
    target_epoch: int,
    target: Wanted[K],
    owned: Wanted[K] | None,
    is_held: Callable[[K, int], bool],
) -> M:
    found = _difference(member.assigned, target, is_held)
    if found.revoked and _still_owns(owned, found.revoked):
        return _moved(member, epoch, MemberState.UNREVOKED_PARTITIONS, found.kept, found.revoked)
    for key, partitions in found.added.items():
        found.kept.setdefault(key, {}).update(dict.fromkeys(partitions, target_epoch))
    state = MemberState.UNRELEASED_PARTITIONS if found.waits else MemberState.STABLE
    return _moved(member, target_epoch, state, found.kept, {})


def _moved(member: M, epoch: int, state: MemberState, assigned: Held[K], pending_revocation: Held[K]) -> M:
    previous_epoch = member.previous_epoch if epoch == member.epoch else member.epoch
    return replace(
        member,
        epoch=epoch,
        previous_epoch=previous_epoch,
        state=state,
        assigned=assigned,
        pending_revocation=pending_revocation,
    )


def check_member_epoch(member: Reconcilable, epoch: int, owned: Wanted[K] | None) -> None:
    """Raises FENCED_MEMBER_EPOCH for a wrong member epoch.

    The previous epoch is accepted if the member reports only partitions that are assigned to it: it may have missed the
    response with the new epoch.
    """
    if epoch in (JOIN_EPOCH, member.epoch):
        return
    missed = epoch == member.previous_epoch and epoch < member.epoch and _within(owned, member.assigned)
    if not missed:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The member is in epoch {member.epoch}, not {epoch}: give up all partitions and join again.",
        )


def _within(owned: Wanted[K] | None, assigned: Held[K]) -> bool:
    return owned is not None and all(indexes <= assigned.get(key, {}).keys() for key, indexes in owned.items())


def indexes_of(assigned: Held[K]) -> dict[K, frozenset[int]]:
    """Returns an assignment without the assignment epochs: the partition indexes of each topic or subtopology. Leaves
    out topics and subtopologies without partitions."""
    return {key: frozenset(partitions) for key, partitions in assigned.items() if partitions}
