"""Accepts TLS connections. Counts each of them before its TLS handshake, and sets a deadline for the handshake.

Otherwise a peer that connects and sends nothing would use a file descriptor that no limit counts. The event loops can't
count such peers, so this module accepts the sockets and passes each socket to the loop with the current certificate.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from penstock.net.limits import Arrival

ProtocolFactory = Callable[[], asyncio.BaseProtocol]

HANDSHAKE_TIMEOUT_S = 10.0
SHUTDOWN_TIMEOUT_S = 5.0
#: Pause after an error of accept that another attempt at once would meet again, such as no free descriptor.
ACCEPT_PAUSE_S = 0.1
_PASSING = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPROTO})


class TlsAdmission(Protocol):
    """Decides which peers are accepted before their TLS handshake, and counts them."""

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context, with the current certificate, for the next connection."""
        ...

    def enter(self, host: str) -> Arrival | None:
        """Counts a peer whose handshake begins. Returns None if the limits allow no more connections."""
        ...

    def leave(self, host: str) -> None:
        """Stops counting a peer whose handshake failed.

        After a successful handshake, the connection remains counted.
        """
        ...

    def failed(self, host: str, reason: str) -> None: ...


class TlsAcceptor:
    """Accepts TLS connections on one listening socket, until the acceptor is closed."""

    def __init__(self, sock: socket.socket, factory: ProtocolFactory, admission: TlsAdmission) -> None:
        self._socket = sock
        self._factory = factory
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        self._accepting.cancel()
        for task in self._handshakes:
            task.cancel()
        self._socket.close()

    async def _accept(self) -> None:
        while True:
            try:
                peer, address = await self._loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno not in _PASSING:
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            host = str(address[0])
            arrival = self._admission.enter(host)
            if arrival is None:
                peer.close()
                continue
            task = self._loop.create_task(self._shake(peer, host, arrival))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake(self, peer: socket.socket, host: str, arrival: Arrival) -> None:
        connected = False
        try:
            await self._wait(peer, arrival)
            await self._loop.connect_accepted_socket(
                self._factory,
                peer,
                ssl=self._admission.context(),
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
                ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
            connected = True
        except OSError as error:  # includes ssl.SSLError and the time-out
            self._admission.failed(host, _reason(error))
        finally:
            if not connected:
                self._admission.leave(host)

    async def _wait(self, peer: socket.socket, arrival: Arrival) -> None:
        """Waits `arrival.wait_s` seconds before the handshake. Closes the peer's socket if the peer is refused."""
        try:
            if arrival.wait_s:
                await asyncio.sleep(arrival.wait_s)
            if arrival.refused is not None:
                raise ConnectionRefusedError(arrival.refused)
        except BaseException:
            peer.close()
            raise


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    return str(error) or type(error).__name__
