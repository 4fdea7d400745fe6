"""Helps the group handlers: describes the client of a request, and builds responses that may wait for a commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.groups.turn import Caller
from penstock.net.later import Later

if TYPE_CHECKING:
    from penstock.broker.requests.context import RequestContext

# every operation on a group: read, delete, describe, describe and alter configs
ALL_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))

R = TypeVar("R")
S = TypeVar("S")


def caller(ctx: RequestContext) -> Caller:
    """Returns the client's id, host and request version. The host is formatted as Java prints an address."""
    return Caller(ctx.client_id or "", f"/{ctx.connection.peer_host}", ctx.api_version)


def finish(result: R | asyncio.Future[R], shape: Callable[[R], S]) -> S | Later[S]:
    """Converts a decision's result to a response with `shape`: at once, or in a `Later` if the result is a future."""
    if isinstance(result, asyncio.Future):
        return Later(result, lambda future: shape(future.result()))
    return shape(result)


def unchanged(response: R) -> R:
    """Returns the response unchanged. Handlers pass this function to `finish` for results that need no conversion."""
    return response
