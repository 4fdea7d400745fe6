"""Defines the replies that a dispatcher returns for a request and that a connection sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from penstock.net.framing import Buffer


class Close:
    """Tells the connection to close. Holds the reason for the log."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


CLOSE: Final = Close("the request can't be served")


class WatchedReply(list[Buffer]):
    """Holds the buffers of a response whose transmission is measured. `sent` is called once the transport has sent
    them."""

    __slots__ = ("sent",)

    def __init__(self, buffers: Iterable[Buffer], sent: Callable[[], None]) -> None:
        super().__init__(buffers)
        self.sent = sent


Reply = list[Buffer] | Close | None
"""The buffers of one response without its size prefix; None for a request that gets no response."""
