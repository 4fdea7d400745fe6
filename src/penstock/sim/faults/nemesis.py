"""Implements the nemesis, which begins each planned fault at its time and ends it later; faults may overlap."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random

from penstock.sim.engine.disk import NORMAL_SYNC_S
from penstock.sim.engine.links import Conditions, Link
from penstock.sim.engine.machine import Machine
from penstock.sim.faults.aimed_faults import AimedFaults
from penstock.sim.faults.clock_faults import ClockFaults
from penstock.sim.faults.cluster_faults import ClusterFaults
from penstock.sim.faults.directory_faults import DirectoryFaults
from penstock.sim.faults.guard_faults import GuardFaults
from penstock.sim.faults.liars import Liars
from penstock.sim.faults.lost_machines import POWER
from penstock.sim.faults.replica_faults import ReplicaFaults
from penstock.sim.faults.target import FaultTarget
from penstock.sim.faults.voter_replacement import VoterReplacement
from penstock.sim.plan.plan import FaultPlan

ROTTING = (".log", ".index", ".timeindex")


class Nemesis:
    def __init__(self, target: FaultTarget) -> None:
        self._target = target
        self._by_kind: dict[str, Callable[[FaultPlan, Random], Awaitable[None]]] = {
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
        self._by_kind |= ClusterFaults(target).by_kind | AimedFaults(target).by_kind
        self._by_kind |= ClockFaults(target).by_kind | ReplicaFaults(target).by_kind | DirectoryFaults(target).by_kind
        self._by_kind |= Liars(target).by_kind
        self._by_kind |= GuardFaults(target).by_kind
        self._by_kind["lose a voter"] = VoterReplacement(target).lose_voter

    async def run(self, fault: FaultPlan) -> None:
        await asyncio.sleep(max(0.0, self._target.began + fault.at - self._target.timeline.now))
        await self._by_kind[fault.kind](fault, Random(fault.params["draw"]))  # noqa: S311

    def _machine(self, random: Random) -> Machine:
        return random.choice(self._target.machines)

    # Processes and machines.

    async def _kill(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        machine.kill()
        self._target.restart(machine, fault.lasts)

    async def _kill_in_write(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)

        def how() -> None:
            machine.kill()
            self._target.restart(machine, fault.lasts)

        self._target.note(fault, f"{machine.name} will be killed in its {fault.params['changes']}. change of the disk")
        machine.die_at_change(fault.params["changes"], how)

    async def _restart(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        # A stop that has begun is not cancelled when the time of faults is over.
        if await asyncio.shield(asyncio.ensure_future(machine.stop())):
            self._target.restart(machine, fault.lasts)

    async def _power(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        if self._may_lose_power(fault, machine):
            self._target.lose_power(machine, fault.params["severity"], fault.lasts)

    def _may_lose_power(self, fault: FaultPlan, machine: Machine) -> bool:
        """Returns True if acknowledged records survive this power loss, or if the plan promises nothing after power
        losses."""
        target = self._target
        allowed = not target.plan.losses_covered or target.losses.covered(machine, POWER)
        if not allowed:
            self._target.note(fault, f"spares {machine.name}: too many have not recovered yet")
        return allowed

    async def _power_in_write(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        severity = fault.params["severity"]

        def how() -> None:
            if self._may_lose_power(fault, machine):
                self._target.lose_power(machine, severity, fault.lasts)
            else:
                machine.kill()
                self._target.restart(machine, fault.lasts)

        self._target.note(fault, f"{machine.name} will lose power in its {fault.params['changes']}. change of the disk")
        machine.die_at_change(fault.params["changes"], how)

    async def _pause(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        machine.pause()
        await asyncio.sleep(fault.lasts)
        machine.resume()

    async def _client_kill(self, fault: FaultPlan, random: Random) -> None:
        actors = [each for each in self._target.actors if each.alive]
        if actors:
            actor = random.choice(actors)
            self._target.note(fault, f"kills {actor.name}")
            actor.kill()

    # Links.

    def _links(self, fault: FaultPlan, random: Random) -> list[Link]:
        """Returns the links between a random machine and one client, or all clients if the parameter `whole` is set."""
        target = self._target
        machine = self._machine(random)
        hosts = target.client_hosts
        if not fault.params["whole"] and hosts:
            hosts = [random.choice(hosts)]
        links: list[Link] = []
        for host in hosts:
            there, back = target.fabric.between(host, machine.name)
            if fault.kind == "cut one way":
                links.append(back if fault.params["outgoing"] else there)
            else:
                links += [there, back]
        return links

    async def _cut(self, fault: FaultPlan, random: Random) -> None:
        links = [link for link in self._links(fault, random) if not link.cut]
        for link in links:
            link.cut = True
        self._target.note(fault, f"cuts {_names(links)} for {fault.lasts:g} s")
        await asyncio.sleep(fault.lasts)
        for link in links:
            if link.cut:
                link.mend()
        self._target.note(fault, f"mends {_names(links)}")

    async def _worsen(self, fault: FaultPlan, random: Random) -> None:
        worse: Conditions = fault.params["conditions"]
        if fault.kind == "lossy":
            worse = replace(self._target.fabric.normal, loss=worse.loss)
        else:
            worse = replace(worse, loss=0.0)
        links = self._links(fault, random)
        for link in links:
            link.conditions = worse
        self._target.note(fault, f"{fault.kind}: {_names(links)} for {fault.lasts:g} s")
        await asyncio.sleep(fault.lasts)
        for link in links:
            if link.conditions is worse:
                link.conditions = self._target.fabric.normal

    async def _reset(self, fault: FaultPlan, random: Random) -> None:
        ends = self._target.fabric.connections()
        for end in random.sample(ends, min(len(ends), random.randint(1, 3))):
            stream = end.out if random.random() < 0.5 else end.peer.out
            stream.cut_after = random.choice((1, random.randint(1, 200), random.randint(1, 5_000)))
            self._target.note(fault, f"{end!r} will break after {stream.cut_after} bytes")

    # Disks and clocks.

    async def _stall(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        machine.conditions.stall_until = self._target.timeline.now + fault.lasts
        self._target.note(fault, f"the disk of {machine.name} stalls for {fault.lasts:g} s")

    async def _slow_sync(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        machine.conditions.sync_s = random.choice((0.05, 0.5))
        self._target.note(
            fault, f"an fsync of {machine.name} takes {machine.conditions.sync_s:g} s for {fault.lasts:g} s"
        )
        await asyncio.sleep(fault.lasts)
        machine.conditions.sync_s = NORMAL_SYNC_S

    async def _full(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        if not self._target.may_fail(fault, machine):
            return
        incarnation = machine.incarnation
        machine.disk_faults += 1
        machine.volume.free_bytes = fault.params["free_bytes"]
        self._target.note(fault, f"{machine.name} has {fault.params['free_bytes']} bytes left for {fault.lasts:g} s")
        await asyncio.sleep(fault.lasts)
        machine.volume.free_bytes = None
        machine.disk_faults -= 1
        self._target.repaired(machine, incarnation)

    async def _errors(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        if not self._target.may_fail(fault, machine):
            return
        incarnation = machine.incarnation
        machine.disk_faults += 1
        kind = "write_error" if fault.kind == "write errors" else "read_error"
        setattr(machine.conditions, kind, fault.params["error"])
        self._target.note(fault, f"{machine.name} has {fault.kind} ({fault.params['error']:.0%}) for {fault.lasts:g} s")
        await asyncio.sleep(fault.lasts)
        setattr(machine.conditions, kind, 0.0)
        machine.disk_faults -= 1
        self._target.repaired(machine, incarnation)

    async def _rot(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        topics = {topic.name for topic in self._target.plan.topics}
        sealed: dict[str, list[str]] = {}
        for path, inode in (found for each in machine.data_directories for found in machine.volume.files(each)):
            directory, _, name = path.rpartition("/")
            topic = directory.rpartition("/")[2].rpartition("-")[0]
            if topic in topics and name.endswith(ROTTING) and inode.data and not inode.pending:
                sealed.setdefault(directory, []).append(path)
        candidates = []
        for directory, paths in sealed.items():
            newest = max(path.rpartition("/")[2][:20] for path in machine.volume.directory(directory).entries)
            candidates += [path for path in paths if path.rpartition("/")[2][:20] < newest]
        if not candidates:
            return
        path = random.choice(sorted(candidates))
        data = machine.volume.inode(path).data
        at = random.randrange(len(data))
        data[at] ^= 1 << random.randrange(8)
        topic, _, partition = path.rpartition("/")[0].rpartition("/")[2].rpartition("-")
        self._target.history.damaged.add((topic, int(partition)))
        self._target.note(fault, f"a bit of {path} rots at byte {at}")

    async def _clock_jump(self, fault: FaultPlan, random: Random) -> None:
        machine = self._machine(random)
        machine.clock.jump(fault.params["jump_ms"])
        self._target.note(fault, f"the clock of {machine.name} jumps by {fault.params['jump_ms'] / 1000:+g} s")


def _names(links: list[Link]) -> str:
    return ", ".join(f"{link.source}→{link.target}" for link in links) or "nothing"
