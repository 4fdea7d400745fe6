"""Injects the faults at chosen points of a run; `plan.points` defines the kinds of points and of faults.

A fault runs inside the call of the process that reached the point. All numbers (how long, how bad) are drawn from a
random stream of that point, so that the same seed and choice give the same run.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, NoReturn

from penstock.disk.api import DiskError
from penstock.disk.volume import Severity
from penstock.sim.engine.connection import RESET, Endpoint, Stream
from penstock.sim.engine.loop import ProcessKilled
from penstock.sim.engine.machine import Machine
from penstock.sim.faults.lost_machines import DISK
from penstock.sim.faults.lost_machines import POWER as POWER_LOSS
from penstock.sim.faults.target import FaultTarget
from penstock.sim.plan.points import (
    DROP,
    DUPLICATE,
    ERROR,
    HOLD,
    KILL,
    PAUSE,
    POWER,
    RECEIVER,
    REORDER,
    SENDER,
    STOPS,
    Point,
    PointFault,
    PointLog,
)

if TYPE_CHECKING:
    from penstock.sim.engine.loop import ProcessLoop

SIZE_BYTES = 4
#: How long a message is held, and how long a machine is down or paused.
HELD_S = (0.3, 1.5, 4.0, 9.0)
DOWN_S = (0.1, 1.0, 4.0)
PAUSED_S = (0.5, 2.0, 6.0)
#: A disk that has failed works again after this time.
REPAIRED_S = 0.5
#: How long a copy's connection is kept open for the answer, which nobody reads.
COPY_S = 5.0


@dataclass(frozen=True, slots=True)
class Message:
    """Describes a frame that a process is writing to a connection."""

    end: Endpoint
    data: bytes
    """The bytes of the write, which may have other frames before and behind this one."""
    start: int
    sender: Machine | None
    receiver: Machine | None

    @property
    def frame(self) -> bytes:
        size = int.from_bytes(self.data[self.start : self.start + SIZE_BYTES], "big")
        return self.data[self.start : self.start + SIZE_BYTES + size]


class _Copy(asyncio.Protocol):
    """Sends a copy of a request over a separate connection and ignores the answer."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._frame)


class PointFaults:
    def __init__(self, target: FaultTarget, loop: ProcessLoop, log: PointLog) -> None:
        self._target = target
        self._loop = loop
        self._log = log
        self._held: dict[Stream, None] = {}
        #: Disks that fail: machine → its incarnation at that time.
        self._failed: dict[Machine, int] = {}
        self._ended = False

    def own(self, end: Endpoint) -> bool:
        """Returns True if `end` belongs to a connection that a fault opened to send a copied request."""
        return end.loop is self._loop or end.peer.loop is self._loop

    def end(self) -> None:
        """Releases all data that faults still hold back. Paused machines continue when they are healed."""
        self._ended = True
        for stream in list(self._held):
            self._release(stream)
        for machine in list(self._failed):
            self._repair(machine)

    def _random(self, fault: PointFault) -> Random:
        return Random(f"{self._target.plan.seed}/{fault.kind}#{fault.nth}")  # noqa: S311

    def _later(self, seconds: float, what: partial[None]) -> None:
        def once() -> None:
            if not self._ended:
                what()

        self._target.timeline.at(self._target.timeline.now + seconds, once)

    def _note(self, point: Point, fault: str, what: str) -> None:
        self._log.happened.append((point, fault))
        self._target.story.add("point", f"{point.kind}#{point.nth}: {what}")

    # Messages.

    def at_message(self, fault: PointFault, point: Point, message: Message) -> None:
        """Injects the faults planned for a message, just before it is written. May end the process that writes the
        message."""
        random = self._random(fault)
        names = f"{message.end.host.name}→{message.end.get_extra_info('peername')[0]}"
        sent = DROP not in fault.faults
        for each in fault.faults:
            if each == DROP:
                self._note(point, each, f"the connection {names} breaks before it arrives")
                self._break(message)
            elif each in (HOLD, REORDER):
                self._hold(point, each, message, names, random.choice(HELD_S))
            elif each == DUPLICATE:
                self._duplicate(point, message, names, random.choice(HELD_S))
        for each in fault.faults:
            kind = each.removesuffix(RECEIVER)
            if kind in STOPS and message.receiver is not None and message.receiver is not message.sender:
                self._stop_soon(point, each, message.receiver, kind, random)
        for each in fault.faults:
            kind = each.removesuffix(SENDER) if each != each.removesuffix(SENDER) else ""
            if kind == PAUSE and message.sender is not None:
                self._stop_soon(point, each, message.sender, kind, random)
            elif kind and message.sender is not None:
                if sent:
                    message.end.out.write(message.data)
                self._die(point, each, message.sender, kind, random)

    def _break(self, message: Message) -> None:
        out = message.end.out
        out.cut_after = max(1, out.unsent_bytes + message.start)

    def _hold(self, point: Point, fault: str, message: Message, names: str, seconds: float) -> None:
        lost = fault == REORDER
        also = ", and its sender loses the connection" if lost else ""
        self._note(point, fault, f"is held on {names} for {seconds:g} s{also}")
        stream = message.end.out
        stream.hold()
        self._held[stream] = None
        self._later(seconds, partial(self._release, stream))
        if lost:
            message.end.receive(RESET)

    def _release(self, stream: Stream) -> None:
        if stream in self._held:
            del self._held[stream]
            stream.release()

    def _duplicate(self, point: Point, message: Message, names: str, seconds: float) -> None:
        self._note(point, DUPLICATE, f"a copy goes from {names} again after {seconds:g} s")
        host, port = message.end.get_extra_info("peername")
        self._later(seconds, partial(self._send_copy, message.frame, message.end.host.name, host, port))

    def _send_copy(self, frame: bytes, source: str, host: str, port: int) -> None:
        fabric = self._target.fabric
        if not fabric.host(source).up:
            return
        handshake = fabric.handshake(fabric.host(source), self._loop, fabric.host(host), port)

        def connected(outcome: asyncio.Future[Endpoint]) -> None:
            if outcome.cancelled() or outcome.exception() is not None:
                return  # the receiver is down: the copy is lost
            end = outcome.result()
            end.attach(_Copy(frame))
            self._loop.call_later(COPY_S, end.close)

        handshake.outcome.add_done_callback(connected)

    # Machines.

    def _severity(self, random: Random) -> Severity:
        return random.choice((Severity.SOME, Severity.SOME, Severity.EVERYTHING))

    def _allowed(self, kind: str, machine: Machine) -> str:
        """Returns `kind`. Returns KILL instead of POWER if acknowledged records would not survive the power loss."""
        return KILL if kind == POWER and not self._target.losses.covered(machine, POWER_LOSS) else kind

    def _carried_out(self, fault: str, kind: str) -> str:
        return fault.replace(POWER, KILL) if kind == KILL else fault

    def _stop_soon(self, point: Point, fault: str, machine: Machine, kind: str, random: Random) -> None:
        """Stops a machine (kill, power loss or pause) when the code that runs now has returned to the event loop."""
        kind = self._allowed(kind, machine)
        self._note(point, self._carried_out(fault, kind), f"{kind} of {machine.name}")
        timeline = self._target.timeline
        seconds = random.choice(PAUSED_S if kind == PAUSE else DOWN_S)
        severity = self._severity(random)
        timeline.at(timeline.now, partial(self._stop, machine, kind, seconds, severity))

    def _stop(self, machine: Machine, kind: str, seconds: float, severity: Severity) -> None:
        target = self._target
        if machine.loop is None:
            return
        if kind == PAUSE:
            machine.pause()
            self._later(seconds, partial(machine.resume))
        elif kind == POWER:
            target.lose_power(machine, severity, seconds)
        else:
            target.kill(machine, seconds)

    def _die(self, point: Point, fault: str, machine: Machine, kind: str, random: Random) -> NoReturn:
        """Ends the process immediately, inside the call that reached the point."""
        self._stop_soon(point, fault, machine, kind, random)
        assert machine.loop is not None
        machine.loop.kill()
        raise ProcessKilled

    # Disks.

    def at_disk(self, fault: PointFault, point: Point, machine: Machine, path: str) -> None:
        """Injects the faults that are planned for a step on a disk. May end the process, or raise DiskError."""
        random = self._random(fault)
        for each in fault.faults:
            if each == PAUSE:
                self._stop_soon(point, each, machine, PAUSE, random)
            elif each == ERROR:
                self._fail(point, machine, path)
            else:
                self._die(point, each, machine, each, random)

    def _fail(self, point: Point, machine: Machine, path: str) -> None:
        target = self._target
        if machine in self._failed or not target.losses.covered(machine, DISK):
            where = f"{point.kind}#{point.nth}"
            target.story.add("point", f"{where}: spares {machine.name}: too many have not recovered yet")
            return
        self._note(point, ERROR, f"fails on {machine.name} with EIO")
        target.losses.note(machine, DISK)
        machine.disk_faults += 1
        self._failed[machine] = machine.incarnation
        self._later(REPAIRED_S, partial(self._repair, machine))
        raise DiskError(errno.EIO, "input/output error", path)

    def _repair(self, machine: Machine) -> None:
        incarnation = self._failed.pop(machine, None)
        if incarnation is not None:
            machine.disk_faults -= 1
            self._target.repaired(machine, incarnation)
