"""Implements scenario commands for log directories: moves of replicas, failing disks, crashes during a write."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase

from penstock.disk.api import DiskError
from penstock.disk.volume import Severity
from penstock.protocol.vocabulary import TopicPartition
from penstock.replication.directory_move import MoveFigures
from penstock.sim.engine.environment import Environment
from penstock.sim.engine.loop import ProcessDied, ProcessKilled, run_in
from penstock.sim.engine.machine import Machine

Place = Callable[[str], TopicPartition]


class MoveCommands:
    """Runs the commands `move`, `moves`, `where`, `directories`, `break-directory`, `replace-directory`, `die-at`,
    `fail-at`."""

    def __init__(self, environment: Environment, place: Place) -> None:
        self._environment = environment
        self._place = place
        #: The moves of a process whose ended moves were shown, and how many.
        self._shown: tuple[object, int] = (None, 0)
        self.commands: dict[str, Callable[..., Awaitable[str]]] = {
            "move": self.move,
            "moves": self.moves,
            "where": self.where,
            "directories": self.directories,
            "break-directory": self.break_directory,
            "replace-directory": self.replace_directory,
            "die-at": self.die_at,
            "fail-at": self.fail_at,
        }

    async def directories(self, paths: str) -> str:
        """Sets the log directories of all machines; allowed only as the first command."""
        return ""

    async def move(self, place: str, path: str, on: str = "n1") -> str:
        """Asks a machine to move its replica of a partition to a directory. Shows the error code of the answer."""
        topic, index = self._place(place)
        machine = self._environment.machine(on)

        async def ask() -> str:
            broker = machine.broker
            assert broker is not None
            target, partition = broker.logs.dirs.find(path), broker.partitions.find(topic, index)
            exists = broker.metadata.image.partition(topic, index) is not None
            return broker.moves.request(topic, index, target, partition, exists=exists).name

        return await self._in(machine, ask())

    async def moves(self, what: str = "settled", on: str = "n1") -> str:
        """Waits until all moves have ended, and shows the moves that ended since the last command. With `now`, shows
        the moves under way instead."""
        machine = self._environment.machine(on)

        async def settle() -> str:
            broker = machine.broker
            assert broker is not None
            if what == "now":
                return "\n".join(f"{_told(each)}, {each.records_left} left" for each in broker.moves.figures())
            await broker.moves.settle()
            ended = list(broker.moves.ended)
            before = self._shown[1] if self._shown[0] is broker.moves else 0
            self._shown = broker.moves, len(ended)
            return "\n".join(_told(each) for each in ended[before:])

        return await self._in(machine, settle())

    async def _in(self, machine: Machine, work: Awaitable[str]) -> str:
        if machine.loop is None:
            return "not running"

        async def done() -> str:
            return await work

        try:
            return await run_in(machine.loop, done())
        except ProcessDied:
            return "died"

    async def where(self, place: str, on: str = "n1") -> str:
        """Shows in which directories a machine has logs of a partition: its current log, and logs that are being copied
        or deleted."""
        topic, index = self._place(place)
        machine = self._environment.machine(on)
        found: list[str] = []
        for path in machine.data_directories:
            for name in sorted(machine.volume.directory(path).entries):
                if name == f"{topic}-{index}":
                    found.append(f"{path} current")
                elif name.startswith(f"{topic}-{index}."):
                    found.append(f"{path} {name.rpartition('-')[2]}")
        return "\n".join(found) or "nowhere"

    async def break_directory(self, path: str, on: str = "n1") -> str:
        """Breaks a log directory of a machine: from now on, every disk call for this directory fails with EIO."""
        self._environment.machine(on).conditions.broken = path
        return ""

    async def replace_directory(self, path: str, on: str = "n1") -> str:
        """Replaces the disk of one directory by an empty disk, on a machine that is down."""
        machine = self._environment.machine(on)
        machine.conditions.broken = ""
        machine.replace_directory(path)
        return ""

    async def die_at(self, kind: str, path: str, what: str = "kill", on: str = "n1") -> str:
        """Makes a machine die inside its next disk change of the given kind on a path that matches the pattern
        `path`."""
        machine = self._environment.machine(on)
        disk = machine.disk
        assert disk is not None

        def how() -> None:
            machine.kill() if what == "kill" else machine.lose_power(Severity.EVERYTHING)

        def on_change(found: str, where: str) -> None:
            if found == kind and fnmatchcase(where, path):
                disk.on_change = None
                disk.loop.kill()
                timeline = machine.fabric.timeline
                timeline.at(timeline.now, how)
                raise ProcessKilled

        disk.on_change = on_change
        return ""

    async def fail_at(self, kind: str, path: str, on: str = "n1") -> str:
        """Makes the next disk change of the given kind fail with EIO, on a path that matches the pattern `path`."""
        disk = self._environment.machine(on).disk
        assert disk is not None

        def on_change(found: str, where: str) -> None:
            if found == kind and fnmatchcase(where, path):
                disk.on_change = None
                raise DiskError(errno.EIO, "input/output error", where)

        disk.on_change = on_change
        return ""


def _told(figures: MoveFigures) -> str:
    reason = f" ({figures.reason})" if figures.reason else ""
    move = f"{figures.topic}-{figures.partition} from {figures.source} to {figures.target}"
    return f"{move}: {figures.state.value}{reason}"
