"""Injects faults of one log directory of a machine, while its other directories work.

The disk of the directory breaks, is slow, fills up, is replaced, or is not mounted when the machine restarts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from penstock.log.checkpoints import META_PROPERTIES_FILE
from penstock.sim.engine.machine import Machine
from penstock.sim.faults.lost_machines import WIPE
from penstock.sim.faults.target import FaultTarget
from penstock.sim.plan.plan import FaultPlan

#: How much longer a call to a slow disk takes.
SLOW_S = (0.005, 0.05, 0.3)
#: Times until an operator restarts a node whose disk works again; meanwhile its directory stays offline.
NOTICED_S = (0.0, 9.0)
#: How long a directory is nearly full: long enough that the node notices it.
FULL_S = (3.0, 8.0)


class DirectoryFaults:
    def __init__(self, target: FaultTarget) -> None:
        self._target = target
        self.by_kind: dict[str, Callable[[FaultPlan, Random], Awaitable[None]]] = {
            "break a directory": self._break,
            "break a leader's directory": self._break_leader,
            "break a directory at restart": self._break_at_restart,
            "unmount a directory": self._unmount,
            "replace a directory": self._replace,
            "slow directory": self._slow,
            "directory nearly full": self._nearly_full,
        }

    def _directory(self, random: Random) -> tuple[Machine, str] | None:
        """Draws a machine and one of its log directories. Prefers directories that hold logs.

        Never draws the directory of the metadata log, and never a machine that has a missing or unformatted disk.
        """
        machines = [each for each in self._target.machines if each.holds_partitions and _is_whole(each)]
        if not machines:
            return None
        machine = random.choice(machines)
        candidates = [path for path in machine.data_directories if path != machine.metadata_directory]
        used = [path for path in candidates if _holds_logs(machine, path)]
        return machine, random.choice(used or candidates)

    async def _break(self, fault: FaultPlan, random: Random) -> None:
        drawn = self._directory(random)
        if drawn is not None and self._target.may_fail(fault, drawn[0]):
            await self._broken(fault, *drawn, random.choice(NOTICED_S))

    async def _break_leader(self, fault: FaultPlan, random: Random) -> None:
        """Breaks a log directory in which a machine has a replica that leads."""
        image = self._target.environment.newest_image
        led = [
            (machine, log.log_dir)
            for machine in self._target.machines
            if image is not None and (broker := machine.broker) is not None
            for log in broker.logs
            if log.log_dir != machine.metadata_directory
            and (known := image.partition(log.topic, log.partition)) is not None
            and known.leader == machine.node_id
        ]
        if led and self._target.may_fail(fault, (drawn := random.choice(led))[0]):
            await self._broken(fault, *drawn, random.choice(NOTICED_S))

    async def _break_at_restart(self, fault: FaultPlan, random: Random) -> None:
        """Breaks a directory while the machine is down, so that the node starts without it."""
        drawn = self._directory(random)
        if drawn is None or not self._target.may_fail(fault, drawn[0]):
            return
        self._target.kill(drawn[0], 0.5)
        await self._broken(fault, *drawn, random.choice(NOTICED_S))

    async def _broken(self, fault: FaultPlan, machine: Machine, path: str, noticed_s: float) -> None:
        target, incarnation, conditions = self._target, machine.incarnation, machine.conditions
        if conditions.broken:
            return
        machine.disk_faults += 1
        conditions.broken = path
        target.note(fault, f"the disk at {path} of {machine.name} fails for {fault.lasts:g} s")
        await asyncio.sleep(fault.lasts)
        conditions.broken = ""
        target.note(fault, f"the disk at {path} of {machine.name} works again")
        await asyncio.sleep(noticed_s)
        machine.disk_faults -= 1
        target.repaired(machine, incarnation)

    async def _unmount(self, fault: FaultPlan, random: Random) -> None:
        """Stops or kills the node and starts it without the disk. When the fault ends, mounts the disk and restarts the
        node."""
        drawn = self._directory(random)
        if drawn is None:
            return
        machine, path = drawn
        if fault.params["whole"]:
            await asyncio.shield(asyncio.ensure_future(machine.stop()))
        machine.kill()  # a node that is starting does not stop
        machine.disk_faults += 1
        machine.unmount(path)
        self._target.restart(machine, 0.2)
        await asyncio.sleep(fault.lasts)
        machine.kill()  # it may be starting
        machine.mount(path)
        machine.disk_faults -= 1
        self._target.restart(machine, 0.2)

    async def _replace(self, fault: FaultPlan, random: Random) -> None:
        """Replaces the disk of a directory by an empty disk, as an operator does if a failed disk can't be repaired."""
        drawn = self._directory(random)
        if drawn is None:
            return
        (machine, path), target = drawn, self._target
        if machine.unmounted or machine.conditions.broken or not target.losses.covered(machine, WIPE):
            target.note(fault, f"spares the disk at {path} of {machine.name}: too many have not recovered yet")
            return
        target.losses.note(machine, WIPE)
        machine.kill()
        machine.replace_directory(path)
        target.restart(machine, fault.lasts)

    async def _slow(self, fault: FaultPlan, random: Random) -> None:
        drawn = self._directory(random)
        if drawn is None or drawn[0].conditions.slow:
            return
        machine, path = drawn
        conditions = machine.conditions
        conditions.slow, conditions.slow_s = path, random.choice(SLOW_S)
        self._target.note(
            fault, f"each call to the disk at {path} of {machine.name} takes {conditions.slow_s:g} s more"
        )
        await asyncio.sleep(fault.lasts)
        conditions.slow, conditions.slow_s = "", 0.0

    async def _nearly_full(self, fault: FaultPlan, random: Random) -> None:
        drawn = self._directory(random)
        if drawn is None or drawn[0].volume.free_bytes is not None or not self._target.may_fail(fault, drawn[0]):
            return
        machine, path = drawn
        incarnation, conditions = machine.incarnation, machine.conditions
        machine.disk_faults += 1
        free = int(random.choice((0.5, 1.1, 2.0)) * machine.min_free_bytes) + fault.params["free_bytes"]
        machine.volume.free_bytes, conditions.filling = free, path
        lasts = random.choice(FULL_S)
        self._target.note(fault, f"the disk at {path} of {machine.name} has {free} bytes left for {lasts:g} s")
        await asyncio.sleep(lasts)
        machine.volume.free_bytes, conditions.filling = None, ""
        machine.disk_faults -= 1
        self._target.repaired(machine, incarnation)


def _is_whole(machine: Machine) -> bool:
    """Returns True if the machine has several log directories, all of them formatted."""
    paths = machine.data_directories
    return len(paths) > 1 and all(machine.volume.find(f"{path}/{META_PROPERTIES_FILE}") for path in paths)


def _holds_logs(machine: Machine, path: str) -> bool:
    return any(each.endswith(".log") for each, _ in machine.volume.files(path))
