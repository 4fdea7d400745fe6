"""Sends frames to a SASL listener without ever logging in: nothing is served, no exception escapes, memory stays flat,
and no frame holds the event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import struct
import sys
import time
from pathlib import Path

import pytest

from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.client.login import Login
from penstock.disk.memory import MemoryDisk
from penstock.net.later import Later
from penstock.net.loop import run as run_loop
from penstock.net.network import RealNetwork
from penstock.net.server import Connection, Dispatch, Reply
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.protocol.messages.api_03_metadata import MetadataRequest
from penstock.security.scram_arguments import parse_scram_user

sys.path.insert(0, str(Path(__file__).parent))
from frames import FrameMaker

JAAS = 'x required username="a" password="b-secret" user_a="b-secret" user_ann="c-secret";'
SECURED = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "connection.failed.authentication.delay.ms": "0",
}
CONNECTIONS = 16
PATIENCE_SECONDS = 2.0
#: CPU time that one frame may take on the event loop.
MOST_SECONDS = 0.05
MECHANISMS = (b"PLAIN", b"SCRAM-SHA-256", b"SCRAM-SHA-512", b"GSSAPI", b"\xff\xfe", b"")


class Strangers:
    """Makes the frames of one connection: logins that fail, broken tokens, requests out of turn, and random bytes."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._others = FrameMaker(seed)

    def frames(self) -> list[bytes]:
        """Returns requests that are answered, which keep the connection open, and then hostile ones."""
        answered = [self._versions() for _ in range(self._dice.randrange(22))]
        return answered + [self._frame() for _ in range(self._dice.randrange(1, 6))]

    def _frame(self) -> bytes:
        dice = self._dice
        kinds = (self._handshake, self._token, self._bare_token, self._versions, self._random, self._other)
        made = dice.choice(kinds)()
        if dice.random() < 0.3 and made:
            position = dice.randrange(len(made))
            made = made[:position] + dice.randbytes(dice.randrange(4)) + made[position + 1 :]
        return made or b"\0"

    def _handshake(self) -> bytes:
        name = self._dice.choice(MECHANISMS)
        return struct.pack(">hhih", 17, self._dice.randrange(3), 1, -1) + struct.pack(">h", len(name)) + name

    def _token(self) -> bytes:
        token = self._bare_token()
        if self._dice.random() < 0.5:
            return struct.pack(">hhih", 36, self._dice.randrange(2), 1, -1) + struct.pack(">i", len(token)) + token
        return struct.pack(">hhih", 36, 2, 1, -1) + b"\0" + bytes([min(len(token) + 1, 127)]) + token + b"\0"

    def _bare_token(self) -> bytes:
        dice = self._dice
        user = dice.choice((b"ann", b"bob", b"nobody", b"a" * 900, b"=2C", "ü".encode(), b""))
        return dice.choice(
            (
                b"\0" + user + b"\0wrong",
                user + b"\0ann\0wrong",
                b"n,,n=" + user + b",r=" + dice.randbytes(12).hex().encode(),
                b"n,,n=" + user + b",r=x,tokenauth=true",
                b"c=biws,r=" + dice.randbytes(30).hex().encode() + b",p=AAAA",
                b"n" + b"," * 8_000,
                dice.randbytes(dice.randrange(1, 2_000)),
            )
        )

    def _versions(self) -> bytes:
        return struct.pack(">hhih", 18, self._dice.randrange(5), 1, -1) + b"\0\2x\2y\0"

    def _random(self) -> bytes:
        return self._dice.randbytes(self._dice.randrange(1, 200))

    def _other(self) -> bytes:
        return self._others.mutated()[:400_000]


class Watched:
    """Counts frames, and remembers the longest CPU time of one frame and the frames that were served to strangers."""

    def __init__(self, dispatch: Dispatch) -> None:
        self.dispatch = dispatch
        self.frames = 0
        self.longest_s = 0.0

    def __call__(self, connection: Connection, frame: memoryview) -> Reply | Later[Reply]:
        self.frames += 1
        began = time.thread_time()
        reply = self.dispatch(connection, frame)
        self.longest_s = max(self.longest_s, time.thread_time() - began)
        assert connection.principal is None, "a frame of a stranger has logged in"
        return reply


async def exchange(host: str, port: int, frames: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            writer.write(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
            writer.write_eof()
            while await reader.read(1 << 16):
                pass
    except (TimeoutError, ConnectionError):
        return
    finally:
        writer.transport.abort()


def resident_bytes() -> int:
    with Path("/proc/self/statm").open() as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def attack(node: Node, frames: int, seed: int) -> tuple[int, float]:
    """Returns the memory growth after the first third, and the longest CPU time of a frame."""
    host, _, port = node.bootstrap.rpartition(":")
    before = node._server.dispatch
    watched = Watched(before)
    node._server.use(watched)
    settled = 0

    async def keep_on(number: int) -> None:
        nonlocal settled
        strangers = Strangers(seed * 1000 + number)
        while watched.frames < frames:
            await exchange(host, int(port), strangers.frames())
            if settled == 0 and watched.frames >= frames // 3:
                settled = resident_bytes()

    await asyncio.gather(*(keep_on(number) for number in range(CONNECTIONS)))
    node._server.use(before)
    return resident_bytes() - settled, watched.longest_s


async def survive(frames: int, seed: int) -> tuple[int, float]:
    node = make_node(local_settings("/data", overrides=SECURED), MemoryDisk(), seed=seed)
    texts = [f"SCRAM-SHA-{size}=[name=ann,password=d]" for size in (256, 512)]
    format_if_new(node, tuple(parse_scram_user(text, random.Random(1).randbytes) for text in texts))
    await node.start()
    try:
        found = await attack(node, frames, seed)
        port = int(node.bootstrap.rpartition(":")[2])
        for login in (Login("PLAIN", "ann", "c-secret"), Login("SCRAM-SHA-512", "ann", "d")):
            peer = await BrokerConnection.open(RealNetwork(), "127.0.0.1", port, ConnectionSettings(login=login))
            assert (await peer.request(MetadataRequest(topics=None))).topics == []
            peer.close()
    finally:
        await node.stop(1.0)
    return found


def run(frames: int, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    grown, longest_s = run_loop(survive(frames, seed))
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert grown < 32 * 1024 * 1024, f"memory grew by {grown >> 20} MiB over two thirds of the run"
    assert longest_s < MOST_SECONDS, f"one frame took {longest_s * 1000:.0f} ms of the event loop"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_five_thousand_frames_before_authentication_do_not_harm_the_node(caplog: pytest.LogCaptureFixture) -> None:
    run(5_000, 1, caplog)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_million_frames_before_authentication_do_not_harm_the_node(caplog: pytest.LogCaptureFixture) -> None:
    run(1_000_000, int(os.environ.get("FUZZ_SEED", "2")), caplog)
