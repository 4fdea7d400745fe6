"""Simulates a split network: connections to nodes of other groups break, and new connections get no answer."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.net.handshake import TlsAdmission
from penstock.net.network import Listening, ProtocolFactory, RealNetwork


@dataclass(slots=True, eq=False)
class SplitNetwork:
    """Opens the sockets of one node. `owners` maps each port to its node; ports without a node are always reachable.

    Call `cut` and `heal` on the node's event loop.
    """

    real: RealNetwork
    owners: Mapping[int, int]
    unreachable: frozenset[int] = frozenset()
    _connections: dict[asyncio.Transport, int] = field(default_factory=dict)
    #: Connects without an answer, as in a network that drops every packet.
    _silent: set[asyncio.Future[None]] = field(default_factory=set)

    @property
    def max_connections(self) -> int:
        return self.real.max_connections

    async def listen(
        self,
        host: str,
        port: int,
        factory: ProtocolFactory,
        *,
        backlog: int = 50,
        tls: TlsAdmission | None = None,
    ) -> Listening:
        return await self.real.listen(host, port, factory, backlog=backlog, tls=tls)

    async def connect(
        self, host: str, port: int, factory: ProtocolFactory, *, tls: ssl.SSLContext | None = None
    ) -> None:
        node = self.owners.get(port)
        if node in self.unreachable:
            await self._no_answer()
        transport, _ = await asyncio.get_running_loop().create_connection(factory, host, port, ssl=tls)
        if node is None:
            return
        if node in self.unreachable:  # the split came while the connection was opened
            transport.abort()
            return
        self._connections = {each: peer for each, peer in self._connections.items() if not each.is_closing()}
        self._connections[transport] = node

    async def resolve(self, host: str) -> list[str]:
        return await self.real.resolve(host)

    async def _no_answer(self) -> None:
        """Waits until the caller gives up. Raises a timeout error if the split changes or ends before that."""
        waiting = asyncio.get_running_loop().create_future()
        self._silent.add(waiting)
        try:
            await waiting
        finally:
            self._silent.discard(waiting)

    async def cut(self, unreachable: frozenset[int]) -> None:
        """Makes the given nodes unreachable, breaks connections to them, and makes all other nodes reachable."""
        self.unreachable = unreachable
        for transport, node in self._connections.items():
            if node in unreachable:
                transport.abort()
        for waiting in list(self._silent):
            if not waiting.done():
                waiting.set_exception(TimeoutError(errno.ETIMEDOUT, "the network was split"))
