"""Passes requests of the quorum's APIs to the quorum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from penstock.protocol.errors import KafkaError, without_frames

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext

R = TypeVar("R")


async def answered(broker: ControllerParts, ctx: RequestContext, request: Any, response: type[R]) -> R:
    """Returns the quorum's response to the request.

    If the quorum raises KafkaError, sets the error code at the top level of the response.
    """
    try:
        answer: R = await broker.metadata.answer_peer(request, ctx.listener_name)
        return answer
    except KafkaError as error:
        without_frames(error)  # the quorum's future keeps it
        refused: Any = response()
        refused.error_code = error.code
        if hasattr(refused, "error_message"):
            refused.error_message = error.message
        return refused  # type: ignore[no-any-return]
