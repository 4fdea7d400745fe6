"""A response that is already bytes: what a handler returns when it has kept the answer of an earlier request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Encoded:
    """The body at the version that was asked for, without the header."""

    body: bytes
    throttle_time_ms: int = 0
