"""Accepts TLS connections. Counts each connection before its TLS handshake, and sets a deadline for the handshake.

If connections were counted only after the handshake, a peer that connects and sends nothing would hold an uncounted
file descriptor. The TLS server of an event loop does not count such peers. So this module accepts the sockets itself,
and passes each socket to the loop with the current certificate.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.net.limits import Arrival

ProtocolFactory = Callable[[], asyncio.BaseProtocol]

HANDSHAKE_TIMEOUT_S = 10.0
SHUTDOWN_TIMEOUT_S = 5.0
#: Pause after an error of accept that another attempt at once would meet again, such as no free descriptor.
ACCEPT_PAUSE_S = 0.1
#: Connections accepted in one pass of the loop, so that many new peers do not delay the requests of others.
ACCEPTS_PER_PASS = 16
_PASSING = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPROTO})


class TlsAdmission(Protocol):
    """Decides which peers are accepted before their TLS handshake, and counts them."""

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context, with the current certificate, for the next connection."""
        ...

    def enter(self, host: str) -> Arrival | None:
        """Counts a peer whose handshake begins. Returns None if the limits allow no more connections."""
        ...

    def completed(self, host: str) -> None:
        """Notes that the handshake of a peer was successful. `leave` is not called for this peer."""
        ...

    def leave(self, host: str) -> None:
        """Stops counting a peer whose handshake failed."""
        ...

    def failed(self, host: str, reason: str) -> None: ...


class TlsAcceptor:
    """Accepts TLS connections on one listening socket, until the acceptor is closed."""

    def __init__(self, sock: socket.socket, factory: ProtocolFactory, admission: TlsAdmission) -> None:
        self._socket = sock
        self._factory = factory
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        #: Maps the task of each handshake in progress to its host, in the order of their arrival.
        self._handshakes: dict[asyncio.Task[None], str] = {}
        self._pause: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket)
        for task in self._handshakes:
            task.cancel()
        self._socket.close()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """Accepts at most ACCEPTS_PER_PASS waiting connections. The event loop calls this method again if more
        connections wait."""
        for _ in range(ACCEPTS_PER_PASS):
            try:
                peer, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _PASSING:
                    continue
                self._loop.remove_reader(self._socket)
                self._pause = self._loop.call_later(ACCEPT_PAUSE_S, self._listen)
                return
            self._begin(peer, str(address[0]))

    def _begin(self, peer: socket.socket, host: str) -> None:
        arrival = self._admission.enter(host)
        if arrival is None:
            peer.close()
            return
        if arrival.closes is not None:
            self._end_oldest(arrival.closes)
        peer.setblocking(False)
        task = self._loop.create_task(self._shake(peer, host, arrival))
        self._handshakes[task] = host
        task.add_done_callback(partial(self._ended, peer, host))

    def _end_oldest(self, host: str) -> None:
        """Ends the oldest handshake of this host. Does nothing if no handshake of this host is running."""
        oldest = next((task for task, of in self._handshakes.items() if of == host and not task.done()), None)
        if oldest is not None:
            del self._handshakes[oldest]
            oldest.cancel()
            self._admission.leave(host)
            self._admission.failed(host, "its place was needed for a newer connection")

    async def _shake(self, peer: socket.socket, host: str, arrival: Arrival) -> None:
        await self._wait(arrival)
        await self._loop.connect_accepted_socket(
            self._factory,
            peer,
            ssl=self._admission.context(),
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )

    def _ended(self, peer: socket.socket, host: str, task: asyncio.Task[None]) -> None:
        """Updates the counts after a handshake. If the handshake failed or was cancelled, also closes the peer's
        socket."""
        counted = self._handshakes.pop(task, None) is not None
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            if counted:
                self._admission.completed(host)
            return
        peer.close()
        if counted:
            self._admission.leave(host)
        if isinstance(error, OSError):  # includes ssl.SSLError and the time-out
            self._admission.failed(host, _reason(error))
        elif error is not None:
            raise error

    async def _wait(self, arrival: Arrival) -> None:
        """Waits `arrival.wait_s` seconds. Raises ConnectionRefusedError if `arrival` refuses the peer."""
        if arrival.wait_s:
            await asyncio.sleep(arrival.wait_s)
        if arrival.refused is not None:
            raise ConnectionRefusedError(arrival.refused)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return str(error) or type(error).__name__
