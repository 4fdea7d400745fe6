"""Runs the HTTP listener of a node.

Parser and pages are imported at the first connection, because many brokers never have an HTTP client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from penstock.http.address import HttpAddress, Names
from penstock.net.limits import AT_ONCE, LimitedLog

if TYPE_CHECKING:
    import ssl

    from penstock.http.connection import HttpConnection
    from penstock.http.messages import Request, Response
    from penstock.net.limits import Arrival
    from penstock.net.network import Listening, Network

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
#: TLS handshakes that may be in progress at a time: in all, and of one host.
MAX_HANDSHAKES, MAX_HANDSHAKES_OF_HOST = 128, 48
STOP_S = 1.0


class Site(Protocol):
    async def __call__(self, request: Request) -> Response: ...

    async def close(self) -> None: ...


class Handshakes:
    """Counts the TLS handshakes in progress, in all and per host, so that slow peers can't block new connections."""

    def __init__(self, tls: Callable[[], ssl.SSLContext]) -> None:
        self._tls = tls
        self._by_host: dict[str, int] = {}
        self._log = LimitedLog(logger, time.monotonic)

    def context(self) -> ssl.SSLContext:
        return self._tls()

    def enter(self, host: str) -> Arrival | None:
        mine = self._by_host.get(host, 0)
        if mine >= MAX_HANDSHAKES_OF_HOST or sum(self._by_host.values()) >= MAX_HANDSHAKES:
            return None
        self._by_host[host] = mine + 1
        return AT_ONCE

    def leave(self, host: str) -> None:
        left = self._by_host.pop(host, 0) - 1
        if left > 0:
            self._by_host[host] = left

    def failed(self, host: str, reason: str) -> None:
        self._log.info("handshake", lambda: f"the TLS handshake of {host} with the HTTP listener failed: {reason}")


class HttpServer:
    """Listens from `start` to `stop`. Serves requests once `serve` was called."""

    def __init__(
        self,
        address: HttpAddress,
        network: Network,
        names: Iterable[str] = (),
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """Prepares the server. `tls` returns the current TLS context; None serves without TLS."""
        self.names = Names(address, names)
        self.stopping = False
        self._address = address
        self._network = network
        self._handshakes = None if tls is None else Handshakes(tls)
        self._listening: Listening | None = None
        self._connections: set[HttpConnection] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._make: Callable[[], Site] | None = None
        self._site: Site | None = None
        self._making = asyncio.Lock()

    async def start(self) -> None:
        """Opens the listener. Raises OSError if the address can't be bound."""
        host, port = self._address.host, self._address.port
        self._listening = await self._network.listen(host, port, self._connection, tls=self._handshakes)

    @property
    def url(self) -> str:
        assert self._listening is not None
        return self._address.url(self._listening.port)

    @property
    def connections(self) -> int:
        return len(self._connections)

    def serve(self, make: Callable[[], Site]) -> None:
        """Sets the function that makes the site; the site answers all requests.

        The function is called in a thread at the first request, because its imports take some time.
        """
        self._make = make

    async def stop(self) -> None:
        self.stopping = True
        if self._listening is not None:
            self._listening.close()
        for connection in list(self._connections):
            connection.finish()
        try:
            async with asyncio.timeout(STOP_S):
                await self._quiet.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
        if self._site is not None:
            await self._site.close()

    # --- called by connections

    def _connection(self) -> HttpConnection:
        from penstock.http.connection import HttpConnection

        return HttpConnection(self)

    def admit(self, connection: HttpConnection) -> Response | None:
        """Registers a connection and returns None.

        If too many connections are open, closes a connection without a request in progress, so that idle peers can't
        keep health probes away. If all connections have a request in progress, returns the response that refuses the
        new connection.
        """
        from penstock.http.messages import TOO_MANY

        if self._handshakes is not None:
            self._handshakes.leave(connection.peer.host)
        if len(self._connections) >= MAX_CONNECTIONS:
            idle = next((each for each in self._connections if each.idle), None)
            if idle is None:
                return TOO_MANY
            idle.abort()
            self._connections.discard(idle)
        self._connections.add(connection)
        self._quiet.clear()
        return None

    def forget(self, connection: HttpConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._quiet.set()

    async def respond(self, request: Request) -> Response:
        from penstock.http.messages import NOT_READY, STARTING

        site = self._site or await self._made()
        if site is None:
            return STARTING if request.path == "/livez" else NOT_READY
        return await site(request)

    async def _made(self) -> Site | None:
        async with self._making:  # concurrent first requests share one task
            if self._site is None and self._make is not None:
                self._site = await asyncio.to_thread(self._make)
        return self._site
