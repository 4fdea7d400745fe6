"""Runs a node in this process while another process attacks its listeners, and prints the measurements.

Run as `python tests/fuzz/attacked_node.py FRAMES SEED`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.client.login import Login
from penstock.disk.memory import MemoryDisk
from penstock.net.connection import Connection, Dispatch
from penstock.net.later import Later
from penstock.net.loop import run as run_loop
from penstock.net.network import RealNetwork
from penstock.net.reply import Reply
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.protocol.messages.api_03_metadata import MetadataRequest
from penstock.security.scram_arguments import parse_scram_user
from penstock.testing.tokens import TokenIssuer

USERS = 'x.PlainLoginModule required username="admin" password="a" user_admin="a" user_ann="secret";'
TICK_S = 0.002
LOGIN_PAUSE_S = 0.5


@dataclass(slots=True)
class Figures:
    sent: int = 0
    dispatched: int = 0
    #: Logins of the right client, and all logins that the node accepted.
    logins: int = 0
    accepted: int = 0
    #: Longest CPU time of the event loop between two ticks. Other programs of the machine do not count.
    longest_stall_ms: float = 0.0
    resident_mb: float = 0.0
    #: Growth of the memory after the first third of the frames.
    grown_mb: float = 0.0
    escaped: list[str] | None = None


class Escaped(logging.Handler):
    """Collects log lines with a stack trace: each shows an exception that the node did not expect."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and len(self.lines) < 20:
            self.lines.append(logging.Formatter().format(record))


def resident_mb() -> float:
    gc.collect()
    with Path("/proc/self/statm").open() as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def certificate(place: Path) -> Path:
    names = ("-subj", "/CN=localhost", "-days", "2", "-keyout", str(place / "key"), "-out", str(place / "crt"))
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    subprocess.run(["openssl", "req", "-x509", *key, *names], check=True, capture_output=True)
    both = place / "server.pem"
    both.write_text((place / "key").read_text() + (place / "crt").read_text())
    return both


def node_in(place: Path) -> Node:
    overrides = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": USERS,
        "sasl.oauthbearer.jwks.endpoint.url": TokenIssuer().write_keys(place / "keys.json"),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificate(place)),
        "connection.failed.authentication.delay.ms": "20",
    }
    node = make_node(local_settings("/data", port=0, overrides=overrides), MemoryDisk(), seed=1)
    texts = [f"SCRAM-SHA-{size}=[name=ann,password=d]" for size in (256, 512)]
    format_if_new(node, tuple(parse_scram_user(text, random.Random(1).randbytes) for text in texts))
    return node


class Watch:
    """Measures a node under attack, on the node's own event loop."""

    def __init__(self, node: Node) -> None:
        self.figures = Figures()
        self._node = node
        self._dispatch: Dispatch = node._server.dispatch
        self._settled_mb = 0.0
        self._cpu = time.thread_time()
        node._server.use(self._count)
        self._tick()

    def _count(self, connection: Connection, frame: memoryview) -> Reply | Later[Reply]:
        self.figures.dispatched += 1
        stranger = connection.principal is None
        reply = self._dispatch(connection, frame)
        self.figures.accepted += stranger and connection.principal is not None
        return reply

    def _tick(self) -> None:
        now = time.thread_time()
        self.figures.longest_stall_ms = max(self.figures.longest_stall_ms, (now - self._cpu) * 1000)
        self._cpu = now
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    async def log_in_until(self, done: asyncio.Event) -> None:
        """Logs in as a valid client again and again until the attack ends."""
        port = int(self._node.bootstrap.rpartition(":")[2])
        logins = (Login("PLAIN", "ann", "secret"), Login("SCRAM-SHA-512", "ann", "d"))
        while not done.is_set():
            settings = ConnectionSettings(login=logins[self.figures.logins % 2])
            peer = await BrokerConnection.open(RealNetwork(), "127.0.0.1", port, settings)
            assert (await peer.request(MetadataRequest(topics=None))).topics == []
            peer.close()
            await peer.wait_closed()
            self.figures.logins += 1
            await asyncio.sleep(LOGIN_PAUSE_S)

    def settle(self) -> None:
        self._settled_mb = resident_mb()
        self._cpu = time.thread_time()

    async def end(self) -> None:
        self._timer.cancel()
        async with asyncio.timeout(30):
            while self._node._server.counts.total:  # noqa: ASYNC110 - nobody tells when the last connection is gone
                await asyncio.sleep(0.05)
        self.figures.resident_mb = resident_mb()
        self.figures.grown_mb = self.figures.resident_mb - self._settled_mb


async def sent_by_attacker(node: Node, frames: int, seed: int) -> int:
    ports = [node.bootstrap_of(name).rpartition(":")[2] for name in ("SASL_PLAINTEXT", "SASL_SSL")]
    program = str(Path(__file__).with_name("strangers.py"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, program, *ports, str(frames), str(seed), stdout=subprocess.PIPE
    )
    answer, _ = await process.communicate()
    return int(answer)


async def main(frames: int, seed: int) -> None:
    escaped = Escaped()
    logging.getLogger().addHandler(escaped)
    with tempfile.TemporaryDirectory() as place:
        node = node_in(Path(place))
        await node.start()
        watch, done = Watch(node), asyncio.Event()
        client = asyncio.ensure_future(watch.log_in_until(done))
        watch.figures.sent = await sent_by_attacker(node, frames // 3, seed)
        watch.settle()
        watch.figures.sent += await sent_by_attacker(node, frames - frames // 3, seed + 1)
        done.set()
        await client
        await watch.end()
        await node.stop()
    watch.figures.escaped = escaped.lines
    print(json.dumps(asdict(watch.figures)))


if __name__ == "__main__":
    run_loop(main(int(sys.argv[1]), int(sys.argv[2])))
