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
from penstock.http.places import Limit, Places
from penstock.net.limits import AT_ONCE, Arrival, ConnectionCounts, LimitedLog, Limits

if TYPE_CHECKING:
    import ssl

    from penstock.http.connection import HttpConnection
    from penstock.http.messages import Request, Response
    from penstock.net.network import Listening, Network

logger = logging.getLogger(__name__)

#: TLS handshakes that may be in progress at a time: in all, and of one host.
MAX_HANDSHAKES, MAX_HANDSHAKES_OF_HOST = 128, 48
#: Default of penstock.http.max.connections.per.ip.
PER_HOST = 32
STOP_S = 1.0


class Site(Protocol):
    async def __call__(self, request: Request) -> Response: ...

    async def close(self) -> None: ...


class Handshakes:
    """Limits the number of TLS handshakes in progress, so that slow peers do not block other peers.

    If all hosts together have reached the limit, a new handshake ends the oldest handshake of the host that has the
    most handshakes in progress.
    """

    def __init__(self, tls: Callable[[], ssl.SSLContext]) -> None:
        self._tls = tls
        self._counts = ConnectionCounts(
            Limits(
                max_connections=MAX_HANDSHAKES, max_connections_per_ip=MAX_HANDSHAKES_OF_HOST, loopback_connections=0
            )
        )
        self._log = LimitedLog(logger, time.monotonic)

    def context(self) -> ssl.SSLContext:
        return self._tls()

    def enter(self, host: str) -> Arrival | None:
        if self._counts.refusal(host, protected=True) is not None:  # the limit of the host
            return None
        arrival = Arrival(closes=self._counts.most()) if self._counts.full else AT_ONCE
        self._counts.add(host)
        return arrival

    def completed(self, host: str) -> None:
        self._counts.remove(host)

    def leave(self, host: str) -> None:
        self._counts.remove(host)

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
        *,
        per_host: int = PER_HOST,
    ) -> None:
        """Prepares the server. `tls` returns the current TLS context; None serves without TLS.

        `per_host` limits the connections of one address.
        """
        self.names = Names(address, names)
        self.stopping = False
        self._address = address
        self._network = network
        self._handshakes = None if tls is None else Handshakes(tls)
        self._listening: Listening | None = None
        self._places: Places[HttpConnection] = Places(per_host)
        self._log = LimitedLog(logger, time.monotonic)
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
        return len(self._places)

    @property
    def open_connections(self) -> list[HttpConnection]:
        return list(self._places)

    def serve(self, make: Callable[[], Site]) -> None:
        """Sets the function that makes the site; the site answers all requests.

        The function is called in a thread at the first request, because its imports take some time.
        """
        self._make = make

    async def stop(self) -> None:
        self.stopping = True
        if self._listening is not None:
            self._listening.close()
        for connection in self.open_connections:
            connection.finish()
        try:
            async with asyncio.timeout(STOP_S):
                await self._quiet.wait()
        except TimeoutError:
            for connection in self.open_connections:
                connection.abort()
        if self._site is not None:
            await self._site.close()

    # --- called by connections

    def _connection(self) -> HttpConnection:
        from penstock.http.connection import HttpConnection

        return HttpConnection(self)

    def admit(self, connection: HttpConnection) -> Response | None:
        """Registers a connection. If a limit is reached, closes another connection, or admits the new connection only
        for probes (`/livez`, `/readyz`).

        Returns None if the connection is admitted for all requests; otherwise the error response for requests that are
        not probes.
        """
        from penstock.http.messages import TOO_MANY, TOO_MANY_OF_HOST

        entry = self._places.enter(connection)
        self._quiet.clear()
        if entry.closed is not None:
            self._close_for_others(entry.closed)
        match entry.on_trial:
            case None:
                return None
            case Limit.HOST:
                return TOO_MANY_OF_HOST
            case Limit.ALL:
                return TOO_MANY

    def refuse_unread(self, connection: HttpConnection, size: int) -> Response | None:
        """Closes slow connections of the same host if the host would otherwise have too many unread bytes.

        Returns None if a response of `size` bytes may be sent, else the error response to send instead.
        """
        from penstock.http.messages import TOO_MUCH_UNREAD

        slow = self._places.in_the_way(connection, size)
        if slow is None:
            return TOO_MUCH_UNREAD
        for each in slow:
            self._close_for_others(each)
        return None

    def _close_for_others(self, connection: HttpConnection) -> None:
        if connection.reads_slowly:
            self._log.info("slow", lambda: f"HTTP connection of {connection.host} closed: it does not read its answer")
        connection.abort()

    def forget(self, connection: HttpConnection) -> None:
        self._places.leave(connection)
        if not self._places:
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
