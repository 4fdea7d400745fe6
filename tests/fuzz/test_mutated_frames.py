"""Mutated frames against a live node over real sockets: no exception escapes, memory stays flat, others are served."""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
from collections.abc import Awaitable
from pathlib import Path

import pytest

from penstock.net.server import Connection, Dispatch, Reply
from penstock.testing import Broker

sys.path.insert(0, str(Path(__file__).parent))
from frames import FrameMaker

PING = struct.pack(">hhih", 18, 0, 0x5EED, -1)
PIPELINE = 8
PATIENCE_SECONDS = 0.25  # a frame may have asked for a long poll; then the connection is given up


def exchange(address: tuple[str, int], frames: list[bytes]) -> None:
    """Sends frames and a last ApiVersions; reads until that is answered, the node hangs up, or patience ends."""
    with socket.create_connection(address) as connection:
        connection.settimeout(PATIENCE_SECONDS)
        try:
            connection.sendall(b"".join(struct.pack(">i", len(f)) + f for f in [*frames, PING]))
            tail = b""
            while chunk := connection.recv(1 << 16):
                tail = (tail + chunk)[-1024:]
                if struct.pack(">i", 0x5EED) in tail:
                    return
        except (TimeoutError, ConnectionError):
            return


def resident_bytes() -> int:
    with Path("/proc/self/statm").open() as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Counted:
    """The dispatcher, and how many frames reached it: one that closes its connection takes those behind it along."""

    def __init__(self, dispatch: Dispatch) -> None:
        self.dispatch = dispatch
        self.frames = 0

    def __call__(self, connection: Connection, frame: memoryview) -> Reply | Awaitable[Reply]:
        self.frames += 1
        return self.dispatch(connection, frame)


def run(frames: int, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    maker = FrameMaker(seed)
    caplog.set_level(logging.ERROR)
    with Broker(topics={"fuzz": 1}, config={"socket.request.max.bytes": "1048576"}) as broker:
        address = (broker.host, broker.port)
        server = broker.node._server
        counted = Counted(server.dispatch)
        server.dispatch = counted
        settled = 0
        while counted.frames < frames:
            exchange(address, [maker.mutated() for _ in range(PIPELINE)])
            if settled == 0 and counted.frames >= frames // 3:
                settled = resident_bytes()
        grown = resident_bytes() - settled
        escaped = [record.getMessage() for record in caplog.records if record.exc_info]
        assert escaped == []
        assert grown < 48 * 1024 * 1024, f"memory grew by {grown >> 20} MiB over two thirds of the run"
        exchange(address, [])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_twenty_thousand_mutated_frames_hurt_nobody(caplog: pytest.LogCaptureFixture) -> None:
    run(20_000, 1, caplog)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_million_mutated_frames_hurt_nobody(caplog: pytest.LogCaptureFixture) -> None:
    run(1_000_000, int(os.environ.get("FUZZ_SEED", "2")), caplog)
