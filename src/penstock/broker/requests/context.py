"""What a handler knows about a request besides its body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.net.connection import Connection

ANONYMOUS = "User:ANONYMOUS"


@dataclass(slots=True)
class RequestContext:
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    connection: Connection
    now_ms: int
    #: The request has more elements than are decoded, handled and encoded in one go.
    large: bool = False

    @property
    def principal(self) -> str:
        """Kafka's form, `User:name`."""
        return self.connection.principal or ANONYMOUS

    @property
    def listener_name(self) -> str:
        return self.connection.listener.name
