"""Handles LeaveGroup v0-5 of a classic group. A request names members by member id or, if static, by instance id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.classic.group import ClassicGroup, Member, State
from penstock.groups.classic.rebalance import expel, membership_shrank
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_13_leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.groups.turn import Turn


def leave(turn: Turn, group: ClassicGroup, identities: Iterable[MemberIdentity]) -> LeaveGroupResponse:
    if group.state is State.DEAD:
        return LeaveGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, members=[])
    responses: list[MemberResponse] = []
    somebody_left = False
    for identity in identities:
        try:
            _leave(turn, group, identity)
            code = ErrorCode.NONE
            somebody_left = True
        except KafkaError as error:
            code = error.code
        responses.append(
            MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code)
        )
    if somebody_left:
        membership_shrank(turn, group)
    return LeaveGroupResponse(members=responses)


def _leave(turn: Turn, group: ClassicGroup, identity: MemberIdentity) -> None:
    if identity.member_id in group.pending_members:
        group.drop_pending(identity.member_id)
    else:
        expel(turn, group, _find(group, identity))


def _find(group: ClassicGroup, identity: MemberIdentity) -> Member:
    if identity.member_id:
        return group.check_member(identity.member_id, identity.group_instance_id)
    instance_id = identity.group_instance_id
    if instance_id is None or instance_id not in group.static_members:
        raise KafkaError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            "The request has neither a member id nor a known instance id: give one of them.",
        )
    return group.members[group.static_members[instance_id]]
