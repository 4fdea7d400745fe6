"""Opens sockets: a node gets a `RealNetwork` in production, and the simulator's `Network` in a simulation."""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from penstock.net.handshake import TlsAcceptor, TlsAdmission

ProtocolFactory = Callable[[], asyncio.BaseProtocol]

# Attempts to find a port that is free on all addresses of a host.
FREE_PORT_ATTEMPTS = 16
UNLIMITED = 2_147_483_647


class Listening(Protocol):
    """Declares the interface of an open listening socket, or of several sockets on the same port."""

    @property
    def port(self) -> int:
        """Returns the port in use; if port 0 was requested, the port that the system chose."""
        ...

    def close(self) -> None:
        """Stops accepting connections. Accepted connections stay open."""
        ...


class Network(Protocol):
    @property
    def max_connections(self) -> int:
        """Returns how many connections the process can accept with its file descriptors."""
        ...

    async def listen(
        self,
        host: str,
        port: int,
        factory: ProtocolFactory,
        *,
        backlog: int = 50,
        tls: TlsAdmission | None = None,
    ) -> Listening: ...

    async def connect(
        self,
        host: str,
        port: int,
        factory: ProtocolFactory,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connects to `host` and `port`, and passes the connection to the protocol that `factory` makes.

        Raises OSError.
        """
        ...

    async def resolve(self, host: str) -> list[str]:
        """Returns the addresses of a host name. Raises OSError."""
        ...


@dataclass(slots=True)
class _RealListening:
    port: int
    servers: list[asyncio.AbstractServer | TlsAcceptor] = field(default_factory=list)

    def close(self) -> None:
        for server in self.servers:
            server.close()


@dataclass(frozen=True, slots=True)
class RealNetwork:
    """Opens TCP sockets on the running event loop. A socket buffer size of -1 leaves the size to the operating
    system."""

    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    max_connections: int = UNLIMITED

    async def listen(
        self,
        host: str,
        port: int,
        factory: ProtocolFactory,
        *,
        backlog: int = 50,
        tls: TlsAdmission | None = None,
    ) -> Listening:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets = self._bind(list(dict.fromkeys(infos)), port)
        listening = _RealListening(sockets[0].getsockname()[1])
        try:
            while sockets:
                if tls is None:
                    listening.servers.append(await loop.create_server(factory, sock=sockets[0], backlog=backlog))
                else:
                    sockets[0].listen(backlog)
                    listening.servers.append(TlsAcceptor(sockets[0], factory, tls))
                del sockets[0]
        except BaseException:
            listening.close()
            for rest in sockets:
                rest.close()
            raise
        return listening

    def _bind(self, infos: list[Any], port: int) -> list[socket.socket]:
        """Returns one bound socket per address of the host. All sockets have the same port."""
        for attempt in range(FREE_PORT_ATTEMPTS):
            sockets: list[socket.socket] = []
            chosen = port
            try:
                for family, kind, proto, _, address in infos:
                    bound = self._bind_one(family, kind, proto, (address[0], chosen, *address[2:]))
                    if bound is not None:
                        sockets.append(bound)
                        chosen = chosen or bound.getsockname()[1]
            except OSError as error:
                for opened in sockets:
                    opened.close()
                if port == 0 and error.errno == errno.EADDRINUSE and attempt + 1 < FREE_PORT_ATTEMPTS:
                    continue
                raise
            if not sockets:
                raise OSError(errno.EADDRNOTAVAIL, "no address of the host belongs to this machine: use another host")
            return sockets
        raise AssertionError

    def _bind_one(self, family: int, kind: int, proto: int, address: Any) -> socket.socket | None:
        """Binds a socket. Returns None if this machine doesn't have the address, for example ::1 without IPv6."""
        try:
            sock = socket.socket(family, kind, proto)
        except OSError:
            return None
        try:
            if os.name == "posix":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # Accepted sockets inherit these options of the listener.
            self._tune(sock)
            sock.bind(address)
        except OSError as error:
            sock.close()
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                return None
            raise
        sock.setblocking(False)
        return sock

    def _tune(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.send_buffer_bytes)
        if self.receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)

    async def connect(
        self,
        host: str,
        port: int,
        factory: ProtocolFactory,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        await asyncio.get_running_loop().create_connection(factory, host, port, ssl=tls)

    async def resolve(self, host: str) -> list[str]:
        infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(info[4][0]) for info in infos))
