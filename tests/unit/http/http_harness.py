"""Runs an HTTP server on loopback for tests, with a client that sends and receives raw bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from penstock.http.address import HttpAddress
from penstock.http.messages import Request, Response, text
from penstock.http.server import PER_HOST, HttpServer
from penstock.net.network import RealNetwork

LIMIT_S = 120.0


class Site:
    """Replaces the site of a node: by default it answers with the path of the request."""

    def __init__(self, answer: Callable[[Request], Awaitable[Response]] | None = None) -> None:
        self.asked: list[Request] = []
        self._answer = answer

    async def __call__(self, request: Request) -> Response:
        self.asked.append(request)
        return text(200, request.path) if self._answer is None else await self._answer(request)

    async def close(self) -> None:
        pass


@asynccontextmanager
async def serving(site: Site | None, per_host: int = PER_HOST) -> AsyncIterator[tuple[HttpServer, int]]:
    """Yields a server and its port; without a site the server answers that it is not ready."""
    server = HttpServer(HttpAddress("127.0.0.1", 0), RealNetwork(), per_host=per_host)
    await server.start()
    if site is not None:
        server.serve(lambda: site)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield server, int(server.url.rstrip("/").rpartition(":")[2])
    finally:
        await server.stop()


async def ask(port: int, sent: bytes, *, eof: bool = False) -> bytes:
    """Sends the bytes. Returns all bytes that arrive until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        if eof:
            writer.write_eof()
        try:
            return await reader.read()
        except ConnectionError:
            return b""
    finally:
        writer.close()


def get(path: str = "/", host: str = "localhost", method: str = "GET", more: str = "Connection: close\r\n") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def body(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]
