"""Heartbeat v0-4: keeps a member's session alive, and reports when the member must rejoin. Static members since v3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.groups import membership
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_12_heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext


def handle(broker: Broker, ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    try:
        coordinator = broker.groups.coordinator(request.group_id)
        shard = coordinator.active()
    except KafkaError as error:
        if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return HeartbeatResponse()  # no session ends while the coordinator loads
        raise
    code = membership.heartbeat(
        shard,
        request.group_id,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
        coordinator.now_ms,
    )
    coordinator.arm()
    return HeartbeatResponse(error_code=code)
