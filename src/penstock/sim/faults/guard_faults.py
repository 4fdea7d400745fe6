"""Injects faults that the guard (`broker.guard`) has to find: damaged or forged records of one replica, and a node that
falsely claims to lead.

Each fault waits until the guard has found it, and reports a violation if the guard does not find it in time. A fault is
given up if the machine restarts or its replica leaves the in-sync set meanwhile. Afterwards an operator releases the
nodes that are in quarantine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random

from penstock.client.quarantine import quarantined_nodes, release
from penstock.metadata.controller.quarantine import quarantine_refusal
from penstock.metadata.quarantine import quarantined
from penstock.protocol.errors import KafkaError
from penstock.records.batches import split_batches
from penstock.sim.actors.session import Session
from penstock.sim.engine.loop import run_in
from penstock.sim.engine.machine import Machine
from penstock.sim.faults.lies import FalseAnswers, forge, rot
from penstock.sim.faults.target import FaultTarget
from penstock.sim.plan.plan import FaultPlan

#: The guard finds a fault within this time: a few passes, their confirmations, and an election meanwhile.
FOUND_WITHIN_S = 20.0
POLL_S = 0.5
#: A node in quarantine stays there for this time, while the controller dies, before the operator releases it.
HELD_S = 12.0
#: The operator's work ends when no node was in quarantine for this time.
CALM_S = 15.0
LEAST_CLAIMS = 3


@dataclass(frozen=True, slots=True)
class _Place:
    """Names a committed batch in a file of a machine's replica."""

    machine: Machine
    incarnation: int
    topic: str
    index: int
    path: str
    number: int
    position: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.index}"


class GuardFaults:
    def __init__(self, target: FaultTarget) -> None:
        self._target = target
        self._lies = FalseAnswers()
        #: Set while no node lies: the operator releases no node before.
        self._honest = asyncio.Event()
        self._honest.set()
        self.by_kind: dict[str, Callable[[FaultPlan, Random], Awaitable[None]]] = {
            "rot a replica": self._rot,
            "forge a record": self._forge,
            "lying node": self._lie,
        }

    # Records.

    async def _rot(self, fault: FaultPlan, random: Random) -> None:
        place = self._choose(random, in_sync=2)
        if place is None:
            return
        at = place.position + random.randrange(place.size)
        self._target.note(fault, f"a bit of {place.path} on {place.machine.name} rots at byte {at}")
        rot(place.machine, place.path, at)
        await self._is_found(place, in_sync=2, rule="rotten replicas are found")

    async def _forge(self, fault: FaultPlan, random: Random) -> None:
        place = self._choose(random, in_sync=3)
        if place is None:
            return
        offset = forge(place.machine, place.path, place.number)
        self._target.note(fault, f"{place.machine.name} forges the batch at offset {offset} of {place.name}")
        await self._is_found(place, in_sync=3, rule="forged records are found")

    def _choose(self, random: Random, in_sync: int) -> _Place | None:
        """Returns a committed batch of a replica in a partition with enough in-sync replicas; None if there is none."""
        plans = {topic.name for topic in self._target.plan.topics if not topic.shrinks}
        found: list[_Place] = []
        for machine in self._target.machines:
            broker = machine.broker
            for partition in () if broker is None or not machine.serving else broker.partitions:
                isr = partition.image.isr
                clean = (partition.topic, partition.index) not in self._target.history.damaged
                if partition.topic in plans and clean and machine.node_id in isr and len(isr) >= in_sync:
                    found += self._batches(machine, partition.topic, partition.index)
        return random.choice(found) if found else None

    def _batches(self, machine: Machine, topic: str, index: int) -> list[_Place]:
        assert machine.broker is not None
        log = machine.broker.partitions.get(topic, index).log
        places = []
        for segment in log.segments if not log.offline else ():
            position = 0
            data = bytes(machine.volume.inode(segment.file.path).data)
            for number, (header, batch) in enumerate(split_batches(data, allow_partial=True)):
                if log.log_start_offset <= header.base_offset and header.next_offset <= log.high_watermark:
                    where = (topic, index, segment.file.path, number, position, len(batch))
                    places.append(_Place(machine, machine.incarnation, *where))
                position += len(batch)
        return places

    async def _is_found(self, place: _Place, in_sync: int, rule: str) -> None:
        """Waits until the guard has accused the replica and the replica is refilled. Reports a violation if this takes
        too long."""
        target, rules, since = self._target, self._target.guard, self._target.timeline.now
        node_id, name = place.machine.node_id, place.machine.name
        rules.wrong.add(node_id)
        target.history.damaged.add((place.topic, place.index))
        try:
            while not (rules.found(since, node_id, place.name) and rules.refilled(since, name, place.name)):
                if self._gone(place.machine, place.incarnation) or self._in_sync(place) < in_sync:
                    return
                if target.timeline.now > since + FOUND_WITHIN_S:
                    known = "found and not refilled" if rules.found(since, node_id, place.name) else "not found"
                    rules.violated(rule, f"{place.path} of {name} is damaged at byte {place.position} and {known}")
                    return
                await asyncio.sleep(POLL_S)
        finally:
            target.supervisor.operate(self._release_all())

    def _gone(self, machine: Machine, incarnation: int) -> bool:
        return machine.incarnation != incarnation or not machine.serving

    def _in_sync(self, place: _Place) -> int:
        """Returns the number of in-sync replicas of the partition; 0 if the machine's replica is not in sync."""
        image = self._target.environment.newest_image
        found = None if image is None else image.partition(place.topic, place.index)
        return len(found.isr) if found is not None and place.machine.node_id in found.isr else 0

    # Claims.

    async def _lie(self, fault: FaultPlan, random: Random) -> None:
        """Makes a node claim to lead partitions of other leaders, until some time after the node was put in quarantine.

        Kills the active controller meanwhile: the quarantine must survive the kill.
        """
        target = self._target
        machine = random.choice([each for each in target.machines if each.holds_partitions])
        claims = self._led_by_others(machine)
        if machine is target.controller or not machine.serving or len(claims) < LEAST_CLAIMS or self._lies.leads:
            return
        target.guard.wrong.add(machine.node_id)
        target.note(fault, f"{machine.name} claims to lead {', '.join(f'{topic}-{index}' for topic, index in claims)}")
        lies = {(machine.node_id, topic, index) for topic, index in claims}
        self._lies.leads |= lies
        self._honest.clear()
        try:
            with self._lies.installed():
                if await self._is_quarantined(machine, claims):
                    controller = target.controller
                    if controller is not None and controller is not machine:
                        target.kill(controller, fault.lasts)
                    await asyncio.sleep(HELD_S)
        finally:
            self._lies.leads -= lies
            if not self._lies.leads:
                self._honest.set()
            target.supervisor.operate(self._release_all())

    def _led_by_others(self, machine: Machine) -> list[tuple[str, int]]:
        partitions = () if machine.broker is None else machine.broker.partitions
        return sorted((each.topic, each.index) for each in partitions if not each.is_leader)

    async def _is_quarantined(self, machine: Machine, claims: list[tuple[str, int]]) -> bool:
        """Waits until the node is in quarantine. Returns False if this takes too long, or if the machine restarts."""
        target, since, incarnation = self._target, self._target.timeline.now, machine.incarnation
        while True:
            image = target.environment.newest_image
            if self._gone(machine, incarnation):
                return False
            if image is not None and machine.node_id in quarantined(image):
                return True
            if target.timeline.now > since + FOUND_WITHIN_S:
                false = len([each for each in self._led_by_others(machine) if each in claims])
                if self._may_be_quarantined(machine) and false >= LEAST_CLAIMS:
                    what = f"{machine.name} claims to lead {false} partitions and is not in quarantine"
                    target.guard.violated("false leaders are quarantined", what)
                return False
            if not self._may_be_quarantined(machine):
                since = target.timeline.now
            await asyncio.sleep(POLL_S)

    def _may_be_quarantined(self, machine: Machine) -> bool:
        """Returns True if a controller is active, and the cluster can do without the machine."""
        image, controller = self._target.environment.newest_image, self._target.controller
        broker = None if controller is None or not controller.serving else controller.broker
        if image is None or broker is None or not broker.controller.active:
            return False
        return quarantine_refusal(image, machine.node_id, broker.controller.rules) is None

    # The operator.

    async def _release_all(self) -> None:
        await self._honest.wait()
        target = self._target
        loop = target.timeline.process("operator of the guard")
        session = target.clients.session("operator of the guard", "operator", loop)
        await run_in(loop, _release_all(session))


async def _release_all(session: Session) -> None:
    """Releases all nodes in quarantine, again and again, until no node has been in quarantine for CALM_S seconds."""
    calm_s = 0.0
    while calm_s < CALM_S:
        try:
            async with session.client() as client:
                held = await quarantined_nodes(client)
                for node_id in held:
                    await release(client, node_id)
                calm_s = 0.0 if held else calm_s + POLL_S
        except KafkaError as error:
            session.note(f"tries again: {error.code.name}")
        await asyncio.sleep(POLL_S)
