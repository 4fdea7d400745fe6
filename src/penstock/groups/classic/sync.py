"""Handles SyncGroup v0-5 and Heartbeat v0-4 of a classic group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.classic.journal import record_group
from penstock.groups.classic.rebalance import (
    assign,
    fail_syncs,
    keep_alive,
    prepare_rebalance,
    sync_error,
    sync_received,
    synced,
)
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.groups.turn import Token, Turn
    from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest


def sync(turn: Turn, group: ClassicGroup, request: SyncGroupRequest, token: Token) -> None:
    try:
        _sync(turn, group, request, token)
    except KafkaError as error:
        turn.reply(token, sync_error(error.code))


def _sync(turn: Turn, group: ClassicGroup, request: SyncGroupRequest, token: Token) -> None:
    if group.state is State.DEAD:
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group is being deleted: find its coordinator again.")
    member = group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"The group is in generation {group.generation}: rejoin.")
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol):
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            "SyncGroup names another protocol type or assignor than the JoinGroup response: rejoin.",
        )
    match group.state:
        case State.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "The group is rebalancing: rejoin.")
        case State.COMPLETING_REBALANCE:
            if member.awaiting_sync is not None:
                turn.reply(member.awaiting_sync, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
            member.awaiting_sync = token
            sync_received(group, member.member_id)
            if group.leader == member.member_id:
                _store(turn, group, {each.member_id: each.assignment for each in request.assignments})
        case State.STABLE:
            sync_received(group, member.member_id)
            keep_alive(turn, member)
            turn.reply(token, synced(group, member))
        case _:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "The group is empty: join it.")


def _differs(given: str | None, expected: str | None) -> bool:
    return given is not None and expected is not None and given != expected


def _store(turn: Turn, group: ClassicGroup, assignments: dict[str, bytes]) -> None:
    generation = group.generation
    record_group(turn, group, assignments)

    def stored(later: Turn, code: ErrorCode) -> None:
        # A member may have joined or left while the record was being committed; then this generation is outdated.
        if group.state is not State.COMPLETING_REBALANCE or group.generation != generation:
            return
        if code is ErrorCode.NONE:
            assign(later, group, assignments)
        else:
            fail_syncs(later, group, code)
            prepare_rebalance(later, group)

    turn.after.append(stored)


def heartbeat(group: ClassicGroup, generation: int, member_id: str, instance_id: str | None, now_ms: int) -> ErrorCode:
    """Handles a Heartbeat request.

    Members send heartbeats often, so this costs only one dictionary lookup and one store.
    """
    member = group.members.get(member_id)
    if member is None or instance_id is not None:
        try:
            member = group.check_member(member_id, instance_id)
        except KafkaError as error:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE if group.state is State.DEAD else error.code
    if generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if member.session.armed:  # a member with a parked request has no deadline to extend
        member.session.deadline_ms = max(member.session.deadline_ms, now_ms + member.session_timeout_ms)
    if group.state is State.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE
