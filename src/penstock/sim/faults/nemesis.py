"""Does the planned faults, one by one and on top of each other, and undoes them again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from penstock.sim.engine.links import Conditions, Link
from penstock.sim.engine.machine import DATA, Machine, State
from penstock.sim.faults.aimed_faults import Aiming
from penstock.sim.faults.cluster_faults import Among
from penstock.sim.faults.lost_machines import DISK, POWER
from penstock.sim.faults.voter_replacement import Replacing
from penstock.sim.run.plan import FaultPlan

if TYPE_CHECKING:
    from penstock.sim.run.world import World

RESTART_S = 1.0
ROTTING = (".log", ".index", ".timeindex")


class Nemesis:
    def __init__(self, world: World) -> None:
        self._world = world
        self._does: dict[str, Callable[[FaultPlan, Random], Awaitable[None]]] = {
            "kill": self._kill,
            "kill in write": self._kill_in_write,
            "restart": self._restart,
            "power": self._power,
            "power in write": self._power_in_write,
            "pause": self._pause,
            "client kill": self._client_kill,
            "cut": self._cut,
            "cut one way": self._cut,
            "lossy": self._worsen,
            "slow": self._worsen,
            "reset": self._reset,
            "stall": self._stall,
            "slow sync": self._slow_sync,
            "full": self._full,
            "write errors": self._errors,
            "read errors": self._errors,
            "rot": self._rot,
            "clock jump": self._clock_jump,
        }
        self._does |= Among(world).does | Aiming(world).does
        self._does["lose a voter"] = Replacing(world).lose_voter

    async def run(self, fault: FaultPlan) -> None:
        await asyncio.sleep(max(0.0, self._world.began + fault.at - self._world.timeline.now))
        await self._does[fault.kind](fault, Random(fault.params["draw"]))  # noqa: S311

    def _tell(self, fault: FaultPlan, what: str) -> None:
        self._world.tell(f"fault {fault.index}", what)

    def _machine(self, random: Random) -> Machine:
        return random.choice(self._world.machines)

    # Processes and machines.

    async def _kill(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        machine.kill()
        self._world.restart(machine, fault.lasts)

    async def _kill_in_write(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)

        def how() -> None:
            machine.kill()
            self._world.restart(machine, fault.lasts)

        self._tell(fault, f"{machine.name} will be killed in its {fault.params['changes']}. change of the disk")
        machine.die_at_change(fault.params["changes"], how)

    async def _restart(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        # A stop that has begun ends, though the time of faults may be over by then.
        if await asyncio.shield(asyncio.ensure_future(machine.stop())):
            self._world.restart(machine, fault.lasts)

    async def _power(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        if self._may_lose_power(fault, machine):
            self._world.lose_power(machine, fault.params["severity"], fault.lasts)

    def _may_lose_power(self, fault: FaultPlan, machine: Machine) -> bool:
        """Beyond what is promised there is nothing to see, where anything is promised at all."""
        world = self._world
        allowed = not world.plan.losses_covered or world.losses.covered(machine, POWER)
        if not allowed:
            self._tell(fault, f"spares {machine.name}: too many have not recovered yet")
        return allowed

    async def _power_in_write(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        severity = fault.params["severity"]

        def how() -> None:
            if self._may_lose_power(fault, machine):
                self._world.lose_power(machine, severity, fault.lasts)
            else:
                machine.kill()
                self._world.restart(machine, fault.lasts)

        self._tell(fault, f"{machine.name} will lose power in its {fault.params['changes']}. change of the disk")
        machine.die_at_change(fault.params["changes"], how)

    async def _pause(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        machine.pause()
        await asyncio.sleep(fault.lasts)
        machine.resume()

    async def _client_kill(self, fault: FaultPlan, random: Random) -> None:
        actors = [each for each in self._world.actors if each.alive]
        if actors:
            actor = random.choice(actors)
            self._tell(fault, f"kills {actor.name}")
            actor.kill()

    # Links.

    def _links(self, fault: FaultPlan, random: Random) -> list[Link]:
        """Between a machine and some of the clients, or all."""
        world = self._world
        machine = self._machine(random)
        hosts = [actor.host for actor in world.actors]
        if not fault.params["whole"] and hosts:
            hosts = [random.choice(hosts)]
        links: list[Link] = []
        for host in hosts:
            there, back = world.fabric.between(host, machine.name)
            if fault.kind == "cut one way":
                links.append(back if fault.params["outgoing"] else there)
            else:
                links += [there, back]
        return links

    async def _cut(self, fault: FaultPlan, random: Random) -> None:
        links = [link for link in self._links(fault, random) if not link.cut]
        for link in links:
            link.cut = True
        self._tell(fault, f"cuts {_names(links)} for {fault.lasts:g} s")
        await asyncio.sleep(fault.lasts)
        for link in links:
            if link.cut:
                link.mend()
        self._tell(fault, f"mends {_names(links)}")

    async def _worsen(self, fault: FaultPlan, random: Random) -> None:
        worse: Conditions = fault.params["conditions"]
        if fault.kind == "lossy":
            worse = replace(self._world.fabric.normal, loss=worse.loss)
        else:
            worse = replace(worse, loss=0.0)
        links = self._links(fault, random)
        for link in links:
            link.conditions = worse
        self._tell(fault, f"{fault.kind}: {_names(links)} for {fault.lasts:g} s")
        await asyncio.sleep(fault.lasts)
        for link in links:
            if link.conditions is worse:
                link.conditions = self._world.fabric.normal

    async def _reset(self, fault: FaultPlan, random: Random) -> None:
        ends = self._world.fabric.connections()
        for end in random.sample(ends, min(len(ends), random.randint(1, 3))):
            stream = end.out if random.random() < 0.5 else end.peer.out
            stream.cut_after = random.choice((1, random.randint(1, 200), random.randint(1, 5_000)))
            self._tell(fault, f"{end!r} will break after {stream.cut_after} bytes")

    # Disks and clocks.

    async def _stall(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        machine.conditions.stall_until = self._world.timeline.now + fault.lasts
        self._tell(fault, f"the disk of {machine.name} stalls for {fault.lasts:g} s")

    async def _slow_sync(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        machine.conditions.sync_s = random.choice((0.05, 0.5))
        self._tell(fault, f"an fsync of {machine.name} takes {machine.conditions.sync_s:g} s for {fault.lasts:g} s")
        await asyncio.sleep(fault.lasts)
        machine.conditions.sync_s = self._world.normal_sync_s

    def _may_fail(self, fault: FaultPlan, machine: Machine) -> bool:
        """A disk that fails is a loss of its machine's, where losses are counted."""
        world = self._world
        if not world.plan.losses_covered:
            return True
        if not world.losses.covered(machine, DISK):
            self._tell(fault, f"spares the disk of {machine.name}: too many have not recovered yet")
            return False
        world.losses.note(machine, DISK)
        return True

    async def _full(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        if not self._may_fail(fault, machine):
            return
        life = machine.incarnation
        machine.disk_faults += 1
        machine.platter.free_bytes = fault.params["free_bytes"]
        self._tell(fault, f"{machine.name} has {fault.params['free_bytes']} bytes left for {fault.lasts:g} s")
        await asyncio.sleep(fault.lasts)
        machine.platter.free_bytes = None
        machine.disk_faults -= 1
        self._repaired(machine, life)

    async def _errors(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        if not self._may_fail(fault, machine):
            return
        life = machine.incarnation
        machine.disk_faults += 1
        kind = "write_error" if fault.kind == "write errors" else "read_error"
        setattr(machine.conditions, kind, fault.params["error"])
        self._tell(fault, f"{machine.name} has {fault.kind} ({fault.params['error']:.0%}) for {fault.lasts:g} s")
        await asyncio.sleep(fault.lasts)
        setattr(machine.conditions, kind, 0.0)
        machine.disk_faults -= 1
        self._repaired(machine, life)

    def _repaired(self, machine: Machine, life: int) -> None:
        """The disk works again; a node that has taken it offline needs a restart to see that."""
        if machine.state is State.SERVING and machine.incarnation == life and not machine.offline:
            self._world.losses.spared(machine)
        if machine.state is State.SERVING and machine.offline:
            self._world.tell(machine.name, "is restarted, now that its disk works again")
            machine.kill()
            self._world.restart(machine, RESTART_S)

    async def _rot(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        topics = {topic.name for topic in self._world.plan.topics}
        sealed: dict[str, list[str]] = {}
        for path, inode in machine.platter.files(DATA):
            directory, _, name = path.rpartition("/")
            topic = directory.rpartition("/")[2].rpartition("-")[0]
            if topic in topics and name.endswith(ROTTING) and inode.data and not inode.pending:
                sealed.setdefault(directory, []).append(path)
        candidates = []
        for directory, paths in sealed.items():
            newest = max(path.rpartition("/")[2][:20] for path in machine.platter.directory(directory).entries)
            candidates += [path for path in paths if path.rpartition("/")[2][:20] < newest]
        if not candidates:
            return
        path = random.choice(sorted(candidates))
        data = machine.platter.inode(path).data
        at = random.randrange(len(data))
        data[at] ^= 1 << random.randrange(8)
        topic, _, partition = path.rpartition("/")[0].rpartition("/")[2].rpartition("-")
        self._world.history.damaged.add((topic, int(partition)))
        self._tell(fault, f"a bit of {path} rots at byte {at}")

    async def _clock_jump(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        machine.clock.jump(fault.params["jump_ms"])
        self._tell(fault, f"the clock of {machine.name} jumps by {fault.params['jump_ms'] / 1000:+g} s")


def _names(links: list[Link]) -> str:
    return ", ".join(f"{link.source}→{link.target}" for link in links) or "nothing"
