"""Runs a server on loopback and raw clients for it, on asyncio's event loop and on uvloop."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import uvloop

from penstock.net.connection import Connection, Dispatch
from penstock.net.limits import Limits
from penstock.net.reply import Reply
from penstock.net.server import Listener, Server

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


def run_on(loop: str, test: Coroutine[Any, Any, None], timeout_s: float = 120.0) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(timeout_s):
            await test

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(bounded())


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def echo(connection: Connection, request: memoryview) -> Reply:
    return [b"<", request, b">"]


async def until(condition: Callable[[], object]) -> None:
    """Runs the event loop until the condition holds. If it never holds, the time limit of the test ends the wait."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


class RawClient:
    """Sends and receives frames. It knows only their size prefix, no other part of the protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.transport = cast(asyncio.Transport, writer.transport)

    def send(self, *bodies: bytes) -> None:
        self.writer.write(b"".join(map(frame, bodies)))

    async def receive(self) -> bytes:
        size = struct.unpack(">i", await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(size)

    async def ask(self, body: bytes) -> bytes:
        self.send(body)
        return await self.receive()

    async def closed_by_server(self) -> bytes:
        """Returns the bytes that arrive until the server closes the connection."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class Harness:
    def __init__(self, server: Server) -> None:
        self.server = server
        self._clients: list[RawClient] = []

    @property
    def port(self) -> int:
        return self.server.listeners[0].port

    async def client(self) -> RawClient:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        client = RawClient(reader, writer)
        self._clients.append(client)
        return client

    @property
    def only_connection(self) -> Connection:
        (connection,) = self.server.connections.values()
        return connection

    async def close_clients(self) -> None:
        for client in self._clients:
            await client.close()


@asynccontextmanager
async def serving(
    dispatch: Dispatch = echo,
    limits: Limits | None = None,
    listeners: Iterable[Listener] | None = None,
    *,
    nanoseconds: Callable[[], int] = lambda: 0,
) -> AsyncIterator[Harness]:
    server = Server(dispatch, limits, nanoseconds=nanoseconds)
    await server.start(listeners or [Listener()])
    harness = Harness(server)
    try:
        yield harness
    finally:
        await harness.close_clients()
        await server.stop(grace_s=5.0)
