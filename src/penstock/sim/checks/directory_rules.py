"""Checks machines with several log directories while the nodes run.

failed directories take no records    after a failed write or fsync in a directory, the process writes no record there
leaderships leave failed directories  a replica in a failed directory soon loses its leadership if another can lead
free space is kept                    a directory with too little free space takes no records of clients
no start without a disk               a node does not serve while one of its directories is not mounted
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.log.free_space import FreeSpace
from penstock.log.log import Log
from penstock.log.producers import AppendOrigin
from penstock.metadata.image import MetadataImage
from penstock.sim.checks.taps import Tap
from penstock.sim.engine.disk import SimDisk
from penstock.sim.engine.environment import newest_image
from penstock.sim.engine.machine import Machine, State

if TYPE_CHECKING:
    from penstock.sim.engine.network import Fabric

#: A leader in a failed directory is replaced within this time, unless the controller changes or can't be reached.
REPLACED_S = 3.0
#: A node knows within this time that a directory is short of space: it looks every half second.
KNOWN_S = 2.0
#: Requests to append that are further apart are not taken for one time without space.
APART_S = 1.5
SLOW_CALLS = 10


class DirectoryRules:
    def __init__(
        self,
        machines: Sequence[Machine],
        fabric: Fabric,
        controller: Callable[[], Machine | None],
        violated: Callable[[str, str], None],
    ) -> None:
        self._machines = machines
        self._fabric = fabric
        self._controller = controller
        self._violated = violated
        self._reported: set[tuple[str, str]] = set()
        #: Directories in which a change has failed, for each process, with the first failed change.
        self._failed: dict[SimDisk, dict[str, str]] = {}
        #: Process and directory → when it was first and last asked for space while it had too little.
        self._short: dict[tuple[SimDisk, str], tuple[float, float]] = {}
        self._end = 0
        #: Leader in a failed directory → since when it could have been replaced, and by which controller.
        self._leading: dict[tuple[SimDisk, str, int], tuple[float, Machine]] = {}

    def taps(self) -> list[Tap]:
        if all(len(machine.data_directories) == 1 for machine in self._machines):
            return []
        return [
            Tap(SimDisk, "change", self.disk_changes, before=True),
            Tap(FreeSpace, "take", self.space_asked, before=True),
            Tap(Log, "append_as_leader", self.append_begins, before=True),
            Tap(Log, "append_as_leader", self.appended),
        ]

    @property
    def _now(self) -> float:
        return self._fabric.timeline.now

    def _machine(self, disk: object) -> Machine | None:
        return next((machine for machine in self._machines if machine.disk is disk), None)

    def _broken(self, rule: str, where: str, what: str) -> None:
        """Reports a violation of `rule` by the machine or log directory `where`. Ignores repeated violations."""
        if (rule, where) not in self._reported:
            self._reported.add((rule, where))
            self._violated(rule, f"{where} {what}")

    # Disks.

    def disk_changes(self, disk: SimDisk, kind: str, path: str, size: int = 0) -> None:
        if disk.loop.dead:
            return
        directory = f"/{path.split('/', 2)[1]}"
        if disk.conditions.is_broken(path):
            self._failed.setdefault(disk, {}).setdefault(directory, f"{kind} of {path} at {self._now:.3f} s")
        elif kind == "write" and path.endswith(".log") and directory in (failed := self._failed.get(disk, {})):
            what = f"writes to {path} after an error of {failed[directory]}"
            self._broken("failed directories take no records", disk.loop.name, what)

    def serves(self, machine: Machine) -> None:
        for path in machine.unmounted:
            directory = machine.broker.logs.dirs.named(path) if machine.broker is not None else None
            # The node runs without a directory that it could not read when it started.
            if directory is not None and not directory.offline:
                self._broken("no start without a disk", machine.name, f"serves although no disk is mounted at {path}")

    # Free space.

    def space_asked(self, free_space: FreeSpace, path: str, size: int) -> None:
        disk = free_space._disk
        if not isinstance(disk, SimDisk) or (machine := self._machine(disk)) is None:
            return
        key = (disk, path)
        if disk.free_bytes(path)[1] >= machine.min_free_bytes:
            self._short.pop(key, None)
            return
        since, last = self._short.get(key, (self._now, self._now))
        self._short[key] = (since if self._now - last <= APART_S else self._now, self._now)

    def append_begins(self, log: Log, *_: object, **__: object) -> None:
        self._end = log.log_end_offset

    def appended(self, log: Log, *_: object, origin: AppendOrigin = AppendOrigin.CLIENT, **__: object) -> None:
        disk = log.environment.disk
        if origin is not AppendOrigin.CLIENT or log.log_end_offset == self._end or not isinstance(disk, SimDisk):
            return
        since = self._short.get((disk, log.log_dir), (self._now, 0.0))[0]
        allowed = KNOWN_S + SLOW_CALLS * (disk.conditions.slow_s + disk.conditions.sync_s)
        if self._now - since > allowed:
            free = disk.free_bytes(log.log_dir)[1]
            what = f"takes records of clients with {free} bytes left, for {self._now - since:.1f} s below the limit"
            self._broken("free space is kept", f"{disk.loop.name} {log.log_dir}", what)

    # Leaders.

    def look(self) -> None:
        """Checks that replicas in failed directories lose their leaderships."""
        image, controller = newest_image(self._machines), self._controller()
        found: dict[tuple[SimDisk, str, int], tuple[float, Machine]] = {}
        for machine in self._machines:
            if not machine.offline or image is None or controller is None or not self._reaches(machine, controller):
                continue
            for key in self._led_from_failed(machine, image):
                since, by = self._leading.get(key, (self._now, controller))
                found[key] = (since, by) if by is controller else (self._now, controller)
                if by is controller and self._now - since > REPLACED_S:
                    what = f"leads {key[1]}-{key[2]} from a failed directory for more than {REPLACED_S:g} s"
                    self._broken("leaderships leave failed directories", machine.name, what)
        self._leading = found

    def _reaches(self, machine: Machine, controller: Machine) -> bool:
        """Returns True if both machines serve, and no slow disk, cut link or slow link delays their requests."""
        if any(each.loop is None or each.loop.stopped or not each.serving for each in (machine, controller)):
            return False
        links = self._fabric.between(machine.name, controller.name)
        if machine is not controller and any(link.cut or link.conditions != self._fabric.normal for link in links):
            return False
        return not (machine.conditions.slow_s or controller.conditions.slow_s)

    def _led_from_failed(self, machine: Machine, image: MetadataImage) -> list[tuple[SimDisk, str, int]]:
        """Returns the partitions that the machine should no longer lead: their log directory has failed, and another
        in-sync replica could lead. Uses the newest metadata."""
        broker, disk, own = machine.broker, machine.disk, image.brokers.get(machine.node_id)
        if broker is None or disk is None or own is None or own.fenced:
            return []
        serving = {each.node_id for each in self._machines if each.state is State.SERVING and not each.offline}
        others = {each for each in serving if (known := image.brokers.get(each)) is not None and not known.fenced}
        led = []
        for log in broker.logs:
            partition = image.partition(log.topic, log.partition)
            if partition is None or partition.leader != machine.node_id or not broker.logs.dirs.of(log).offline:
                continue
            if others & {*partition.isr} - {machine.node_id}:
                led.append((disk, log.topic, log.partition))
        return led
