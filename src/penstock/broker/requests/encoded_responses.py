"""Holds responses that are already bytes: cached from an earlier request, or large and encoded in a thread."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.protocol.codec import encode

if TYPE_CHECKING:
    from penstock.disk.api import Disk

#: A response with more items than this is encoded in a thread.
SMALL_ITEMS = 2_000


@dataclass(frozen=True, slots=True)
class Encoded:
    """Holds the body of a response, encoded in the request's version, without the header."""

    body: bytes
    throttle_time_ms: int = 0


def encoded_aside(disk: Disk, response: Any, version: int) -> Awaitable[Encoded]:
    """Encodes the response in a thread of `disk`. The caller must not keep a reference to the response."""
    return disk.run(lambda: Encoded(encode(response, version)))
