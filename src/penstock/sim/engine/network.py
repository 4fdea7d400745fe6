"""Implements the simulated `Network`: hosts, listeners and TCP-like connections over links. Faults change the links.

A process sees the network as a kernel shows it. A connection may be refused, stay unanswered, or be reset in the middle
of a frame. It may be half open, because the other machine lost power. Bytes arrive in pieces of any size;
`pause_writing` is called if the peer does not read. Data in flight still arrives after its sender has given up.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random

from penstock.net.handshake import TlsAdmission
from penstock.net.network import UNLIMITED, Listening, ProtocolFactory
from penstock.sim.engine.connection import Endpoint, Stream
from penstock.sim.engine.links import Channel, Conditions, Link
from penstock.sim.engine.loop import ProcessLoop, Timeline
from penstock.sim.engine.trace import Trace

FIRST_FREE_PORT = 30_000

Tap = Callable[[Endpoint, bytes], None]


@dataclass(slots=True, eq=False)
class Host:
    """Simulates a machine on the network."""

    name: str
    up: bool = True
    listeners: dict[int, SimListening] = field(default_factory=dict)
    endpoints: dict[Endpoint, None] = field(default_factory=dict)
    next_port: int = FIRST_FREE_PORT

    def free_port(self) -> int:
        self.next_port += 1
        return self.next_port


@dataclass(slots=True, eq=False)
class SimListening:
    host: Host
    port: int
    loop: ProcessLoop
    factory: ProtocolFactory

    def close(self) -> None:
        if self.host.listeners.get(self.port) is self:
            del self.host.listeners[self.port]


class Fabric:
    """Holds all hosts and the links between them."""

    def __init__(self, timeline: Timeline, random: Random, trace: Trace) -> None:
        self.timeline = timeline
        self.random = random
        self.trace = trace
        self.hosts: dict[str, Host] = {}
        self.links: dict[tuple[str, str], Link] = {}
        #: The conditions of links without faults.
        self.normal = Conditions()
        #: Share of writes that are cut into pieces, and share of reads that join pieces.
        self.split = 0.1
        self.join = 0.3
        #: Seconds after which TCP gives up on a machine that doesn't answer.
        self.give_up_s = 120.0
        #: Called with every write, by the end that writes, before the bytes are sent.
        self.taps: list[Tap] = []

    def host(self, name: str) -> Host:
        found = self.hosts.get(name)
        if found is None:
            found = self.hosts[name] = Host(name)
        return found

    def link(self, source: str, target: str) -> Link:
        found = self.links.get((source, target))
        if found is None:
            found = Link(source, target, self.timeline, self.random, self.normal)
            self.links[source, target] = found
        return found

    def between(self, one: str, other: str) -> tuple[Link, Link]:
        return self.link(one, other), self.link(other, one)

    def mend_all(self) -> None:
        """Mends all links and resets their conditions."""
        for link in self.links.values():
            link.conditions = self.normal
            if link.cut:
                link.mend()

    # Machines.

    def process_died(self, name: str, loop: ProcessLoop) -> None:
        """Closes all listeners and connections of a process, as its kernel does."""
        host = self.host(name)
        for listening in [each for each in host.listeners.values() if each.loop is loop]:
            listening.close()
        for endpoint in [each for each in host.endpoints if each.loop is loop]:
            endpoint.killed()

    def power_lost(self, name: str) -> None:
        """Drops all listeners and connections of a host; no peer is notified."""
        host = self.host(name)
        host.up = False
        host.listeners.clear()
        for endpoint in list(host.endpoints):
            endpoint.vanish()
        host.endpoints.clear()

    def power_back(self, name: str) -> None:
        self.host(name).up = True

    def connections(self) -> list[Endpoint]:
        """Returns, for every open connection, the end that opened it."""
        return [end for host in self.hosts.values() for end in host.endpoints if end.outgoing]

    def heard_out(self, name: str, peers: Collection[str]) -> bool:
        """Returns True if only hosts in `peers` have open connections to the host `name`: no bytes of a client are on
        their way."""
        return all(end.outgoing or end.peer.host.name in peers for end in self.host(name).endpoints)

    # Handshakes.

    def handshake(self, source: Host, loop: ProcessLoop, target: Host, port: int) -> Handshake:
        return Handshake(self, source, loop, target, port)


class Handshake:
    """Simulates the opening of a connection: a SYN and its answer."""

    def __init__(self, fabric: Fabric, source: Host, loop: ProcessLoop, target: Host, port: int) -> None:
        self._fabric = fabric
        self._source = source
        self._target = target
        self._port = port
        self._loop = loop
        self.outcome: asyncio.Future[Endpoint] = loop.create_future()
        self._back = Channel(fabric.link(target.name, source.name), self._answered)
        Channel(fabric.link(source.name, target.name), self._arrived).send(None)
        fabric.timeline.at(fabric.timeline.now + fabric.give_up_s, self._give_up)

    def _fail(self, error: OSError) -> None:
        def fail() -> None:
            if not self.outcome.done():
                self.outcome.set_exception(error)

        self._loop.call_soon(fail)

    def forget(self) -> None:
        """Closes the connection if it was established at the moment at which the process cancelled its connect call."""
        if self.outcome.done() and not self.outcome.cancelled() and self.outcome.exception() is None:
            self.outcome.result().killed()

    def _give_up(self) -> None:
        self._fail(TimeoutError(errno.ETIMEDOUT, "the connection timed out"))

    def _arrived(self, _: None) -> None:
        fabric, target = self._fabric, self._target
        if not target.up:
            return
        listening = target.listeners.get(self._port)
        if listening is None or listening.loop.dead:
            self._back.send(None)
            return
        there, back = fabric.between(self._source.name, target.name)
        client = Endpoint(fabric, self._loop, self._source, (target.name, self._port), outgoing=True)
        server = Endpoint(fabric, listening.loop, target, (self._source.name, self._source.free_port()), outgoing=False)
        client.peer, server.peer = server, client
        client.out, server.out = Stream(fabric, there, client, server), Stream(fabric, back, server, client)
        target.endpoints[server] = None
        listening.loop.call_soon(server.accept, listening.factory)
        self._back.send(client)

    def _answered(self, client: Endpoint | None) -> None:
        if not self._source.up:
            return
        if self._loop.dead:
            if client is not None:
                client.killed()  # the process has died: its kernel refuses the connection
            return
        if client is None:
            self._fail(ConnectionRefusedError(errno.ECONNREFUSED, "the connection was refused"))
            return
        self._source.endpoints[client] = None

        def hand_over() -> None:
            if self.outcome.done():
                client.killed()  # the process has cancelled its request
            else:
                self.outcome.set_result(client)

        self._loop.call_soon(hand_over)


class SimNetwork:
    """Offers the simulated network to one process."""

    max_connections: int = UNLIMITED

    def __init__(self, fabric: Fabric, host: str, loop: ProcessLoop) -> None:
        self._fabric = fabric
        self._host = fabric.host(host)
        self._loop = loop

    async def listen(
        self,
        host: str,
        port: int,
        factory: ProtocolFactory,
        *,
        backlog: int = 50,
        tls: TlsAdmission | None = None,
    ) -> Listening:
        port = port or self._host.free_port()
        if port in self._host.listeners:
            raise OSError(errno.EADDRINUSE, f"port {port} is in use: choose another port")
        listening = SimListening(self._host, port, self._loop, factory)
        self._host.listeners[port] = listening
        return listening

    async def connect(
        self, host: str, port: int, factory: ProtocolFactory, *, tls: ssl.SSLContext | None = None
    ) -> None:
        target = self._fabric.hosts.get(host)
        if target is None:
            raise OSError(errno.EHOSTUNREACH, f"the simulated network has no host {host}")
        handshake = self._fabric.handshake(self._host, self._loop, target, port)
        try:
            endpoint = await handshake.outcome
        except asyncio.CancelledError:
            handshake.forget()
            raise
        endpoint.attach(factory())

    async def resolve(self, host: str) -> list[str]:
        return [host]
