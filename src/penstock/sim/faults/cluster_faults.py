"""Injects faults that need several machines: network partitions, and faults of machines that lead partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random

from penstock.sim.engine.links import Conditions, Link
from penstock.sim.engine.loop import ProcessDied, run_in
from penstock.sim.engine.machine import Machine, State
from penstock.sim.faults.lost_machines import WIPE
from penstock.sim.faults.target import FaultTarget
from penstock.sim.plan.plan import FaultPlan

Pair = tuple[str, str]
HELD_CONNECTIONS = 3


def split(names: Sequence[str], random: Random) -> list[Pair]:
    """Returns the links to cut so that two random groups of machines don't reach each other."""
    shuffled = random.sample(names, len(names))
    at = random.randint(1, len(names) - 1)
    return _both_ways((one, other) for one in shuffled[:at] for other in shuffled[at:])


def ring(names: Sequence[str], random: Random) -> list[Pair]:
    """Returns the links to cut so that each machine reaches only its two neighbours in a ring.

    Three machines would all be neighbours, so one of their three links is cut.
    """
    order = random.sample(names, len(names))
    apart = [
        (order[one], order[other])
        for one in range(len(order))
        for other in range(one + 2, len(order))
        if len(order) == 3 or (one, other) != (0, len(order) - 1)
    ]
    return _both_ways(apart)


def isolated(name: str, names: Sequence[str], direction: str = "both") -> list[Pair]:
    others = [other for other in names if other != name]
    match direction:
        case "out":
            return [(name, other) for other in others]
        case "in":
            return [(other, name) for other in others]
        case _:
            return _both_ways((name, other) for other in others)


def _both_ways(pairs: Iterable[Pair]) -> list[Pair]:
    return [pair for one, other in pairs for pair in ((one, other), (other, one))]


async def _move_led_replicas(machine: Machine, random: Random) -> None:
    broker = machine.broker
    assert broker is not None
    for partition in [each for each in broker.partitions if each.is_leader]:
        target = random.choice([each for each in broker.logs.dirs if each.path != partition.log.log_dir])
        broker.moves.request(partition.topic, partition.index, target, partition)


class ClusterFaults:
    """Carries out the faults that need several machines; each kind of fault is one method."""

    def __init__(self, target: FaultTarget) -> None:
        self._target = target
        self.by_kind: dict[str, Callable[[FaultPlan, Random], Awaitable[None]]] = {
            "isolate": self._isolate,
            "isolate one way": self._isolate,
            "isolate a leader": self._isolate_leader,
            "isolate a moving leader": self._isolate_moving_leader,
            "split": self._split,
            "ring": self._ring,
            "cut two": self._cut_two,
            "cut two one way": self._cut_two,
            "hold": self._hold,
            "slow two": self._worsen_two,
            "lossy two": self._worsen_two,
            "kill a leader": self._kill_leader,
            "kill the controller": self._kill_controller,
            "pause a leader": self._pause_leader,
            "rolling restart": self._rolling_restart,
            "kill all": self._kill_all,
            "wipe": self._wipe,
        }

    @property
    def _names(self) -> list[str]:
        return [machine.name for machine in self._target.machines]

    def _leader(self, random: Random) -> Machine:
        """Returns a machine that leads some partition; any machine if none leads."""
        target = self._target
        image = target.environment.newest_image
        leaders = sorted(
            {part.leader for topic in image.topics.values() for part in topic.partitions.values()} if image else ()
        )
        known = [machine for machine in target.machines if machine.node_id in leaders]
        return random.choice(known or target.machines)

    def _controller(self) -> Machine:
        target = self._target
        leads = target.watcher.quorum_leader
        return next((machine for machine in target.machines if machine.node_id == leads), target.machines[0])

    # Network partitions.

    async def _part(self, fault: FaultPlan, pairs: list[Pair], what: str) -> None:
        links = [link for link in (self._target.fabric.link(*pair) for pair in pairs) if not link.cut]
        for link in links:
            link.cut = True
        self._target.note(fault, f"{what} for {fault.lasts:g} s")
        await asyncio.sleep(fault.lasts)
        for link in links:
            if link.cut:
                link.mend()
        self._target.note(fault, "mends it")

    def _clients(self, fault: FaultPlan) -> list[str]:
        return self._target.client_hosts if fault.params["whole"] else []

    async def _isolate(self, fault: FaultPlan, random: Random) -> None:
        direction = "both" if fault.kind == "isolate" else "out" if fault.params["outgoing"] else "in"
        machine = random.choice(self._target.machines)
        await self._cut_off(fault, machine, direction)

    async def _isolate_leader(self, fault: FaultPlan, random: Random) -> None:
        machine = self._controller() if random.random() < 0.4 else self._leader(random)
        await self._cut_off(fault, machine, random.choice(("both", "both", "out", "in")))

    async def _isolate_moving_leader(self, fault: FaultPlan, random: Random) -> None:
        """Starts to move a leader's replicas to other log directories, and isolates the leader's machine.

        The moves can't end without the controller. Meanwhile the copies get records that the machine must truncate when
        it follows the next leader.
        """
        machine = self._leader(random)
        if machine.loop is not None and machine.state is State.SERVING:
            with suppress(ProcessDied):
                await run_in(machine.loop, _move_led_replicas(machine, random))
        await self._cut_off(fault, machine, "both")

    async def _cut_off(self, fault: FaultPlan, machine: Machine, direction: str) -> None:
        pairs = isolated(machine.name, self._names + self._clients(fault), direction)
        how = {"both": "", "out": ", in its outgoing direction", "in": ", in its incoming direction"}
        from_whom = " and from clients" if fault.params["whole"] else ""
        await self._part(fault, pairs, f"cuts {machine.name} off from the others{from_whom}{how[direction]}")

    async def _split(self, fault: FaultPlan, random: Random) -> None:
        pairs = split(self._names, random)
        camps = sorted({one for one, _ in pairs[:1]} | {one for one, other in pairs[::2]})
        rest = [name for name in self._names if name not in camps]
        await self._part(fault, pairs, f"splits {', '.join(camps)} from {', '.join(rest)}")

    async def _ring(self, fault: FaultPlan, random: Random) -> None:
        pairs = ring(self._names, random)
        named = ", ".join(f"{one}–{other}" for one, other in pairs[::2])
        await self._part(fault, pairs, f"leaves a ring: {named or 'nothing'} cut")

    def _two(self, fault: FaultPlan, random: Random) -> list[Pair]:
        one, other = random.sample(self._names, 2)
        return [(one, other)] if fault.kind.endswith("one way") else [(one, other), (other, one)]

    async def _cut_two(self, fault: FaultPlan, random: Random) -> None:
        pairs = self._two(fault, random)
        arrow = "→" if len(pairs) == 1 else "–"
        await self._part(fault, pairs, f"cuts {pairs[0][0]}{arrow}{pairs[0][1]}")

    async def _worsen_two(self, fault: FaultPlan, random: Random) -> None:
        fabric = self._target.fabric
        worse: Conditions = fault.params["conditions"]
        worse = replace(fabric.normal, loss=worse.loss) if fault.kind == "lossy two" else replace(worse, loss=0.0)
        links: list[Link] = [fabric.link(*pair) for pair in self._two(fault, random)]
        for link in links:
            link.conditions = worse
        self._target.note(fault, f"{fault.kind}: {links[0].source}–{links[0].target} for {fault.lasts:g} s")
        await asyncio.sleep(fault.lasts)
        for link in links:
            if link.conditions is worse:
                link.conditions = fabric.normal

    async def _hold(self, fault: FaultPlan, random: Random) -> None:
        """Holds back the bytes of some connections between machines; other connections work."""
        names = set(self._names)
        ends = [
            end
            for end in self._target.fabric.connections()
            if end.host.name in names and end.get_extra_info("peername")[0] in names
        ]
        chosen = random.sample(ends, min(len(ends), random.randint(1, HELD_CONNECTIONS)))
        streams = [end.out if random.random() < 0.5 else end.peer.out for end in chosen]
        for stream in streams:
            stream.hold()
        self._target.note(
            fault, f"holds back what is on {', '.join(map(repr, chosen)) or 'nothing'} for {fault.lasts:g} s"
        )
        try:
            await asyncio.sleep(fault.lasts)
        finally:
            for stream in streams:
                stream.release()

    # Machines.

    async def _kill_leader(self, fault: FaultPlan, random: Random) -> None:
        self._kill(self._leader(random), fault)

    async def _kill_controller(self, fault: FaultPlan, random: Random) -> None:
        self._kill(self._controller(), fault)

    def _kill(self, machine: Machine, fault: FaultPlan) -> None:
        machine.kill()
        self._target.restart(machine, fault.lasts)

    async def _pause_leader(self, fault: FaultPlan, random: Random) -> None:
        machine = self._controller() if random.random() < 0.4 else self._leader(random)
        machine.pause()
        await asyncio.sleep(fault.lasts)
        machine.resume()

    async def _kill_all(self, fault: FaultPlan, random: Random) -> None:
        target = self._target
        self._target.note(fault, "kills every process")
        for machine in random.sample(target.machines, len(target.machines)):
            machine.kill()
            target.restart(machine, random.uniform(0.1, 1.0) * fault.lasts)

    async def _rolling_restart(self, fault: FaultPlan, random: Random) -> None:
        target = self._target
        self._target.note(fault, "restarts one machine after the other")
        for machine in random.sample(target.machines, len(target.machines)):
            if await asyncio.shield(asyncio.ensure_future(machine.stop())):
                target.restart(machine, 0.5)
            await asyncio.sleep(max(1.0, fault.lasts / 2))

    async def _wipe(self, fault: FaultPlan, random: Random) -> None:
        target = self._target
        candidates = [machine for machine in target.machines if machine.holds_partitions]
        machine = random.choice(candidates)
        if not target.losses.covered(machine, WIPE):
            self._target.note(fault, f"spares {machine.name}: too many have not recovered yet")
            return
        target.losses.note(machine, WIPE)
        machine.kill()
        machine.wipe()
        target.restart(machine, fault.lasts)
