"""A response that is already bytes: kept from an earlier request, or too large to be encoded on the loop."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.protocol.codec import encode

if TYPE_CHECKING:
    from penstock.disk.api import Disk

#: Items of an answer that is encoded at once; with more it is encoded in a thread.
SMALL_ITEMS = 2_000


@dataclass(frozen=True, slots=True)
class Encoded:
    """The body at the version that was asked for, without the header."""

    body: bytes
    throttle_time_ms: int = 0


def encoded_aside(disk: Disk, response: Any, version: int) -> Awaitable[Encoded]:
    """Encodes the response in a thread of the disk's; nothing else may hold the response."""
    return disk.run(lambda: Encoded(encode(response, version)))
