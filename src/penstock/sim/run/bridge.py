"""Connects real clients, over loopback sockets, to a simulated cluster whose virtual time follows the real clock.

    real client ⇄ 127.0.0.1:port of machine n2 ⇄ simulated connection from the host `clients` to n2's listener BRIDGE

The machines, their disks and the faults come from a plan, and so from a seed. The timing of the real clients does not
come from the seed, so a run cannot be repeated exactly. Each machine that holds partitions advertises its own port. If
the computer is too slow, virtual time falls behind the real clock, and the clients see a slow cluster.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import cast

from penstock.sim.checks.story import StoryLine, Violation
from penstock.sim.engine.clock import EPOCH_MS
from penstock.sim.engine.connection import Endpoint
from penstock.sim.engine.machine import PORT, Machine
from penstock.sim.plan.plan import Plan
from penstock.sim.run.simulation import Simulation

HOST = "127.0.0.1"
#: The port of each machine's listener for real clients, in the simulated network.
BRIDGE_PORT = 9094
CLIENTS = "clients"
#: Longest time that the simulation runs before sockets are served again.
BUDGET_S = 0.02
#: Longest pause of an idle simulation.
IDLE_S = 0.05
#: Virtual time may fall behind the real clock by this much; then the lag is forgotten.
MAX_LAG_S = 1.0


class BridgedCluster:
    """Runs the cluster of a plan on the running event loop, without the plan's actors and topics."""

    def __init__(self, plan: Plan, *, first_port: int = 0) -> None:
        ahead_ms = int(time.time() * 1000) - EPOCH_MS  # brokers refuse records of clients that are hours ahead
        clocks = tuple((skew + ahead_ms, drift) for skew, drift in plan.clocks)
        plan = replace(plan, actors=(), topics=(), skew_ms=plan.skew_ms + ahead_ms, clocks=clocks)
        self.simulation = Simulation(plan)
        self.simulation.target.other_clients.append(CLIENTS)
        self.timeline = self.simulation.timeline
        self.clients = self.timeline.process(CLIENTS)
        self.fabric = self.simulation.environment.fabric
        self.fabric.host(CLIENTS)
        #: Set when the time of faults is over and all machines are healed.
        self.healed = threading.Event()
        self.addresses: list[str] = []
        self._first_port = first_port
        self._servers: list[asyncio.Server] = []
        self._cleanup = ExitStack()
        self._wake: asyncio.TimerHandle | None = None

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self.addresses)

    @property
    def violations(self) -> list[Violation]:
        return self.simulation.story.violations

    @property
    def story(self) -> list[StoryLine]:
        return self.simulation.story.lines

    async def start(self) -> None:
        """Opens the sockets, starts the machines, and returns when they serve. Then the faults begin."""
        self._loop = asyncio.get_running_loop()
        brokers = [machine for machine in self.simulation.machines if machine.holds_partitions]
        for index, machine in enumerate(brokers):
            port = self._first_port + index if self._first_port else 0
            server = await self._loop.create_server(partial(_RealEnd, self, machine), HOST, port)
            self._servers.append(server)
            address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
            self.addresses.append(address)
            machine.overrides |= _listeners(machine, address)
        self._cleanup.enter_context(self.simulation.environment.running())
        self._zero = self._loop.time() - self.timeline.now
        self._serving: asyncio.Future[None] = self._loop.create_future()
        with self.timeline.inside(self.simulation.loop):
            self._world = self.simulation.loop.create_task(self._run())
        self._world.add_done_callback(self._world_ended)
        self._pump()
        await self._serving

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        if self._wake is not None:
            self._wake.cancel()
        self._wake = None
        self._cleanup.close()

    # The simulation.

    async def _run(self) -> None:
        simulation = self.simulation
        if not all(await simulation.environment.power_on()):
            lines = "\n".join(map(str, self.story))
            raise RuntimeError(f"The machines did not start:\n{lines}")
        supervisors = simulation.begin_supervision()
        self._serving.set_result(None)
        faults = simulation.begin_faults()
        await asyncio.sleep(simulation.plan.duration_s)
        await simulation.heal(faults)
        self.healed.set()
        await asyncio.gather(*supervisors)

    def _world_ended(self, world: asyncio.Task[None]) -> None:
        error = None if world.cancelled() else world.exception()
        if error is not None and not self._serving.done():
            self._serving.set_exception(error)
        elif error is not None:
            self.simulation.story.violated("no exceptions", repr(error))

    def pump_soon(self) -> None:
        """Lets the simulation run as soon as the loop is free, because a real client has sent something."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = self._loop.call_later(0, self._pump)

    def _pump(self) -> None:
        """Runs the simulation until its virtual time equals the real time, then waits for its next event."""
        loop, timeline = self._loop, self.timeline
        began = loop.time()
        now = began - self._zero
        timeline.advance(now, lambda: loop.time() < began + BUDGET_S)
        lag = now - timeline.now
        if lag > MAX_LAG_S:
            self._zero += lag
        pause = 0.0 if lag > 0 else min(IDLE_S, max(0.0, timeline.next_event - (loop.time() - self._zero)))
        self._wake = loop.call_later(pause, self._pump)


def _listeners(machine: Machine, address: str) -> dict[str, str]:
    """Returns the properties that give a machine a listener for real clients, besides its other listeners."""
    own = machine.settings()
    listeners = [*own.list("listeners"), f"BRIDGE://{machine.name}:{BRIDGE_PORT}"]
    return {
        "listeners": ",".join(listeners),
        "advertised.listeners": f"PLAINTEXT://{machine.name}:{PORT},BRIDGE://{address}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,BRIDGE:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }


class _RealEnd(asyncio.Protocol):
    """Passes the bytes from a real client's socket to a simulated connection to one machine."""

    def __init__(self, cluster: BridgedCluster, machine: Machine) -> None:
        self._cluster = cluster
        self._machine = machine
        self._end: Endpoint | None = None
        #: Bytes that arrived before the simulated connection was open.
        self._early: list[bytes] = []
        self._lost = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports don't inherit from asyncio's
        cluster = self._cluster
        fabric = cluster.fabric
        source, target = fabric.host(CLIENTS), fabric.host(self._machine.name)
        handshake = fabric.handshake(source, cluster.clients, target, BRIDGE_PORT)
        handshake.outcome.add_done_callback(self._connected)
        cluster.pump_soon()

    def _connected(self, outcome: asyncio.Future[Endpoint]) -> None:
        if outcome.exception() is not None:
            self.transport.abort()
            return
        end = outcome.result()
        if self._lost:
            end.killed()
            return
        self._end = end
        end.attach(_SimulatedEnd(self.transport))
        for data in self._early:
            end.write(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        if self._end is None:
            self._early.append(data)
        else:
            self._end.write(data)
        self._cluster.pump_soon()

    def pause_writing(self) -> None:
        if self._end is not None:
            self._end.pause_reading()

    def resume_writing(self) -> None:
        if self._end is not None:
            self._end.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        if self._end is not None:
            self._end.close()
        self._cluster.pump_soon()


class _SimulatedEnd(asyncio.Protocol):
    """Passes the bytes from the simulated connection to the real client."""

    def __init__(self, real: asyncio.Transport) -> None:
        self._real = real

    def data_received(self, data: bytes) -> None:
        self._real.write(data)

    def pause_writing(self) -> None:
        self._real.pause_reading()

    def resume_writing(self) -> None:
        if not self._real.is_closing():
            self._real.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if error is None:
            self._real.close()
        else:
            self._real.abort()
