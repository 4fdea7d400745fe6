"""Sends mutated frames to a running node over real sockets, and checks that they do not harm the node.

No exception is unhandled, memory does not grow, and other clients are served.
"""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import sys
from pathlib import Path

import pytest

from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.disk.memory import MemoryDisk
from penstock.net.later import Later
from penstock.net.loop import run as run_loop
from penstock.net.server import Connection, Dispatch, Reply
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node

sys.path.insert(0, str(Path(__file__).parent))
from frames import FrameMaker

PING = struct.pack(">hhih", 18, 0, 0x5EED, -1)
PIPELINE = 4
CONNECTIONS = 16
PATIENCE_SECONDS = 0.25  # a frame may be a parked fetch; then the connection is abandoned


async def exchange(host: str, port: int, frames: list[bytes]) -> None:
    """Sends frames and a final ApiVersions request.

    Reads until the response to this request, until the node closes the connection, or until the time limit.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            writer.write(b"".join(struct.pack(">i", len(f)) + f for f in [*frames, PING]))
            tail = b""
            while chunk := await reader.read(1 << 16):
                tail = (tail + chunk)[-1024:]
                if struct.pack(">i", 0x5EED) in tail:
                    return
    except (TimeoutError, ConnectionError):
        return
    finally:
        writer.transport.abort()


def resident_bytes() -> int:
    with Path("/proc/self/statm").open() as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Counted:
    """Counts the frames that reach the dispatcher. After a frame that closes the connection, later frames are lost."""

    def __init__(self, dispatch: Dispatch) -> None:
        self.dispatch = dispatch
        self.frames = 0

    def __call__(self, connection: Connection, frame: memoryview) -> Reply | Later[Reply]:
        self.frames += 1
        return self.dispatch(connection, frame)


async def attack(node: Node, frames: int, seed: int) -> int:
    """Sends the frames on the node's own loop, over real sockets. Returns the memory growth after the first third."""
    maker = FrameMaker(seed)
    host, _, port = node.bootstrap.rpartition(":")
    server = node._server
    counted = Counted(server.dispatch)
    server.use(counted)
    settled = 0

    async def keep_on() -> None:
        nonlocal settled
        while counted.frames < frames:
            await exchange(host, int(port), [maker.mutated() for _ in range(PIPELINE)])
            if settled == 0 and counted.frames >= frames // 3:
                settled = resident_bytes()

    await asyncio.gather(*(keep_on() for _ in range(CONNECTIONS)))
    return resident_bytes() - settled


async def survive(frames: int, seed: int) -> int:
    settings = local_settings("/data", port=0, overrides={"socket.request.max.bytes": "1048576"})
    node = make_node(settings, MemoryDisk(), seed=seed)
    format_if_new(node)
    await node.start()
    try:
        async with AsyncClient(node.bootstrap) as client:
            await Admin(client).create_topic("fuzz", 1)
            await Admin(client).create_topic("unnamed", 1)  # no frame names it: a frame may delete the other one
        grown = await attack(node, frames, seed)
        async with AsyncClient(node.bootstrap) as client:
            assert "unnamed" in [topic.name for topic in await Admin(client).list_topics()]
    finally:
        await node.stop()
    return grown


def run(frames: int, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    grown = run_loop(survive(frames, seed))
    escaped = [record.getMessage() for record in caplog.records if record.exc_info]
    assert escaped == []
    assert grown < 48 * 1024 * 1024, f"memory grew by {grown >> 20} MiB over two thirds of the run"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_five_thousand_mutated_frames_do_not_harm_the_node(caplog: pytest.LogCaptureFixture) -> None:
    run(5_000, 1, caplog)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_million_mutated_frames_do_not_harm_the_node(caplog: pytest.LogCaptureFixture) -> None:
    run(1_000_000, int(os.environ.get("FUZZ_SEED", "2")), caplog)
