"""Tests the simulated network: connections between two processes over links that delay, lose, cut and hold bytes."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from penstock.sim.engine.links import Conditions
from penstock.sim.engine.loop import ProcessLoop, Timeline
from penstock.sim.engine.network import Fabric, SimNetwork
from penstock.sim.engine.trace import Trace


@dataclass
class Peer(asyncio.Protocol):
    data: bytearray = field(default_factory=bytearray)
    pieces: int = 0
    lost: list[str] = field(default_factory=list)
    paused: int = 0
    resumed: int = 0
    eof: int = 0
    transport: Any = None
    at: float = -1.0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces += 1
        self.at = asyncio.get_running_loop().time()

    def eof_received(self) -> bool:
        self.eof += 1
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(type(exc).__name__)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.resumed += 1


@dataclass
class Pair:
    """Holds a server process on host s and a client process on host c."""

    seed: int = 1
    server: Peer = field(default_factory=Peer)
    client: Peer = field(default_factory=Peer)

    def __post_init__(self) -> None:
        self.timeline = Timeline(Random(self.seed))
        self.fabric = Fabric(self.timeline, Random(self.seed), Trace(self.timeline))
        self.there: ProcessLoop = self.timeline.process("server")
        self.here: ProcessLoop = self.timeline.process("client")
        self.network = SimNetwork(self.fabric, "c", self.here)
        self.fabric.host("s")

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        async def main() -> None:
            await SimNetwork(self.fabric, "s", self.there).listen("s", 1, lambda: self.server)
            await test

        self.timeline.run(main(), self.here, until=10_000)
        assert self.timeline.failures == []

    async def connect(self) -> None:
        await self.network.connect("s", 1, lambda: self.client)
        await asyncio.sleep(0.01)


def test_bytes_arrive_in_order_although_they_are_split_into_pieces_of_any_size() -> None:
    pair = Pair()
    pair.fabric.split = 1.0
    pair.fabric.join = 0.0
    sent = Random(5).randbytes(5_000)

    async def run() -> None:
        await pair.connect()
        for start in range(0, len(sent), 100):
            pair.client.transport.write(sent[start : start + 100])
        await asyncio.sleep(1)

    pair.run(run())
    assert pair.server.data == sent
    assert pair.server.pieces > 60


def test_link_with_a_small_bandwidth_delays_bytes() -> None:
    pair = Pair()

    async def run() -> None:
        await pair.connect()
        pair.fabric.link("c", "s").conditions = Conditions(delay_s=2, jitter_s=0, bytes_per_s=100)
        start = asyncio.get_running_loop().time()
        pair.client.transport.write(bytes(1_000))
        await asyncio.sleep(60)
        assert pair.server.at - start == pytest.approx(12)

    pair.run(run())


def test_packet_loss_delays_bytes_but_no_byte_is_lost() -> None:
    pair = Pair()

    async def run() -> None:
        await pair.connect()
        pair.fabric.link("c", "s").conditions = Conditions(loss=0.7)
        for number in range(20):
            pair.client.transport.write(bytes([number]))
        await asyncio.sleep(100)
        assert pair.server.at > 0.4

    pair.run(run())
    assert pair.server.data == bytes(range(20))


def test_a_link_cut_in_one_direction_still_carries_bytes_in_the_other_direction() -> None:
    pair = Pair()

    async def run() -> None:
        await pair.connect()
        pair.fabric.link("c", "s").cut = True
        pair.client.transport.write(b"held")
        pair.server.transport.write(b"through")
        await asyncio.sleep(30)
        assert pair.client.data == b"through"
        assert not pair.server.data
        pair.fabric.link("c", "s").mend()
        await asyncio.sleep(1)

    pair.run(run())
    assert pair.server.data == b"held"


def test_bytes_sent_over_a_cut_link_arrive_after_the_link_is_mended() -> None:
    pair = Pair()

    async def run() -> None:
        await pair.connect()
        pair.fabric.link("c", "s").cut = True
        pair.client.transport.write(b"late")
        pair.client.transport.abort()
        await asyncio.sleep(30)
        pair.fabric.mend_all()
        await asyncio.sleep(1)

    pair.run(run())
    assert pair.server.data == b"late"
    assert pair.server.lost == ["ConnectionResetError"]
    assert pair.client.lost == ["NoneType"]


def test_closing_a_connection_sends_unsent_bytes_first() -> None:
    pair = Pair()

    async def run() -> None:
        await pair.connect()
        pair.client.transport.write(b"the rest")
        pair.client.transport.close()
        await asyncio.sleep(1)

    pair.run(run())
    assert pair.server.data == b"the rest"
    assert (pair.server.eof, pair.server.lost, pair.client.lost) == (1, ["NoneType"], ["NoneType"])


def test_writer_of_a_connection_is_paused_until_its_peer_reads() -> None:
    pair = Pair()

    async def run() -> None:
        await pair.connect()
        pair.server.transport.pause_reading()
        for _ in range(50):
            pair.client.transport.write(bytes(10_000))
        await asyncio.sleep(1)
        assert (pair.client.paused, pair.client.resumed) == (1, 0)
        pair.server.transport.resume_reading()
        await asyncio.sleep(1)

    pair.run(run())
    assert pair.client.resumed == 1
    assert len(pair.server.data) == 500_000


def test_a_connection_can_break_in_the_middle_of_a_write() -> None:
    pair = Pair()
    pair.fabric.split = 0

    async def run() -> None:
        await pair.connect()
        pair.fabric.connections()[0].out.cut_after = 7
        pair.client.transport.write(bytes(100))
        await asyncio.sleep(1)

    pair.run(run())
    assert len(pair.server.data) == 7
    assert pair.server.lost == pair.client.lost == ["ConnectionResetError"]


def test_killed_process_closes_its_connections_but_a_machine_that_loses_power_does_not() -> None:
    for power in (False, True):
        pair = Pair()

        async def run(pair: Pair = pair, power: bool = power) -> None:
            await pair.connect()
            pair.there.kill()
            if power:
                pair.fabric.power_lost("s")
            else:
                pair.fabric.process_died("s", pair.there)
            await asyncio.sleep(5)

        pair.run(run())
        assert pair.client.lost == ([] if power else ["NoneType"])


def test_restarted_machine_resets_connections_from_before_its_restart() -> None:
    pair = Pair()

    async def run() -> None:
        await pair.connect()
        pair.there.kill()
        pair.fabric.power_lost("s")
        pair.client.transport.write(b"lost")
        await asyncio.sleep(5)
        assert pair.client.lost == []
        pair.fabric.power_back("s")
        await asyncio.sleep(11)

    pair.run(run())
    assert pair.client.lost == ["ConnectionResetError"]


def test_a_connection_to_a_machine_that_stays_off_times_out() -> None:
    pair = Pair()

    async def run() -> None:
        await pair.connect()
        pair.fabric.power_lost("s")
        pair.client.transport.write(b"anybody?")
        await asyncio.sleep(100)
        assert pair.client.lost == []
        await asyncio.sleep(100)

    pair.run(run())
    assert pair.client.lost == ["TimeoutError"]


def test_connect_is_refused_without_a_listener_and_times_out_if_the_machine_has_no_power() -> None:
    pair = Pair()

    async def run() -> None:
        with pytest.raises(ConnectionRefusedError):
            await pair.network.connect("s", 2, Peer)
        pair.fabric.power_lost("s")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await pair.network.connect("s", 1, Peer)
        with pytest.raises(OSError, match="timed out"):
            await pair.network.connect("s", 1, Peer)
        with pytest.raises(OSError, match="no host"):
            await pair.network.connect("nowhere", 1, Peer)

    pair.run(run())


def test_a_port_has_one_listener_at_a_time() -> None:
    pair = Pair()

    async def run() -> None:
        there = SimNetwork(pair.fabric, "s", pair.there)
        with pytest.raises(OSError, match="in use"):
            await there.listen("s", 1, Peer)
        listening = await there.listen("s", 0, Peer)
        assert listening.port != 0
        listening.close()
        with pytest.raises(ConnectionRefusedError):
            await pair.network.connect("s", listening.port, Peer)

    pair.run(run())


def test_a_process_killed_while_it_connects_leaves_no_half_open_connection() -> None:
    pair = Pair()
    pair.fabric.normal = Conditions(delay_s=0.1, jitter_s=0.0)
    hasty = pair.timeline.process("hasty")

    async def test() -> None:
        pair.fabric.handshake(pair.fabric.host("h"), hasty, pair.fabric.host("s"), 1)
        await asyncio.sleep(0.15)  # the SYN has arrived, its answer is in flight
        assert len(pair.fabric.host("s").endpoints) == 1
        hasty.kill()
        await asyncio.sleep(1)
        assert pair.server.lost == ["NoneType"]
        assert len(pair.fabric.host("s").endpoints) == 0

    pair.run(test())
