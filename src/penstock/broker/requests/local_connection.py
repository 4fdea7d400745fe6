"""Implements the connection of a request without a socket: this node's own request, or a request from an Envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.net.server import Listener

if TYPE_CHECKING:
    from collections.abc import Callable

LOOPBACK = "127.0.0.1"


class LocalConnection:
    """Implements a `RequestConnection` that never closes and can't be muted."""

    __slots__ = ("listener", "peer_host", "peer_port", "principal", "state")

    def __init__(self, listener: str, principal: str | None = None, client_host: str = LOOPBACK) -> None:
        """Creates a connection that handlers treat as a connection to the listener named `listener`."""
        self.listener = Listener(listener)
        self.peer_host = client_host
        self.peer_port = 0
        self.principal: Any = principal
        self.state: dict[str, Any] = {}

    def mute_for(self, seconds: float) -> None:
        """Does nothing: client quotas don't apply to a node's own requests."""

    def on_close(self, callback: Callable[[], None]) -> None:
        """Does nothing: a local connection never closes."""
