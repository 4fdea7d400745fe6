"""Defines the context that a handler gets with each request: header fields, connection, and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.net.server import Listener

ANONYMOUS = "User:ANONYMOUS"


class RequestConnection(Protocol):
    """Defines the interface of a request's connection: the methods that handlers use."""

    listener: Listener
    peer_host: str
    peer_port: int
    principal: Any
    #: Facts about the client that outlive the request, such as its software's name.
    state: dict[str, Any]

    def mute_for(self, seconds: float) -> None:
        """Stops handling requests of this connection for the given time."""
        ...

    def on_close(self, callback: Callable[[], None]) -> None:
        """Calls the callback when the connection closes."""
        ...


@dataclass(slots=True)
class RequestContext:
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    connection: RequestConnection
    now_ms: int
    #: True if the request has too many elements to be decoded, handled and encoded in one pass of the event loop.
    large: bool = False

    @property
    def principal(self) -> str:
        """Returns the client's principal in Kafka's form, `User:name`."""
        return self.connection.principal or ANONYMOUS

    @property
    def listener_name(self) -> str:
        return self.connection.listener.name
