"""A response that is already bytes: kept from an earlier request, or too large to be encoded on the loop."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.protocol.codec import encode

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.requests.context import RequestContext

#: Items of an answer that is encoded at once; with more it is encoded in a thread.
SMALL_ITEMS = 2_000


@dataclass(frozen=True, slots=True)
class Encoded:
    """The body at the version that was asked for, without the header."""

    body: bytes
    throttle_time_ms: int = 0


def encoded_aside(broker: Broker, ctx: RequestContext, response: Any) -> Awaitable[Encoded]:
    """The response's bytes, made in a thread; nothing else may hold the response."""
    version = ctx.api_version
    return broker.logs.environment.disk.run(lambda: Encoded(encode(response, version)))
