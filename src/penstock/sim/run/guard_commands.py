"""Implements scenario commands that make replicas serve damaged or wrong data, and show the findings of the guard."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.broker.events.kinds import (
    CorruptionFound,
    GuardFinding,
    NodeQuarantined,
    NodeReleased,
    QuarantineRefused,
    ReplicaRefilled,
)
from penstock.client.quarantine import quarantined_nodes, release
from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.faults.lies import FalseAnswers, forge, rot, segment_files
from penstock.sim.run.record_commands import As, Participant

if TYPE_CHECKING:
    from penstock.broker.events import NodeEvent
    from penstock.sim.engine.environment import Environment
    from penstock.sim.engine.machine import Machine

DIGEST = re.compile(", digest [0-9a-f]+")
SHOWN = (CorruptionFound, GuardFinding, NodeQuarantined, NodeReleased, QuarantineRefused, ReplicaRefilled)


class GuardCommands:
    """Runs the commands `rot`, `forge`, `claim`, `retreat`, `guard`, `accuse`, `boot`, `quarantined` and `pardon`."""

    def __init__(self, environment: Environment, act_as: As, place: Callable[[str], TopicPartition]) -> None:
        self._environment = environment
        self._as = act_as
        self._place = place
        self.lies = FalseAnswers()
        self._events: set[str] = set()
        self._booting: list[asyncio.Future[bool]] = []
        for machine in environment.machines:
            machine.on_node_event = self._observe
        self.commands: dict[str, Callable[..., Awaitable[str]]] = {
            "rot": self.rot,
            "forge": self.forge,
            "claim": self.claim,
            "retreat": self.retreat,
            "guard": self.guard,
            "accuse": self.accuse,
            "boot": self.boot,
            "quarantined": self.quarantined,
            "pardon": self.pardon,  # `release` is a command for held requests
        }

    def _observe(self, machine: Machine, event: NodeEvent) -> None:
        """Notes an event as text, without digests: digests depend on the timestamps of the records."""
        if isinstance(event, SHOWN):
            self._events.add(DIGEST.sub("", str(event)))

    async def rot(self, name: str, place: str, byte: str) -> str:
        """Flips a bit in the first segment file of a machine's replica."""
        machine = self._environment.machine(name)
        rot(machine, segment_files(machine, *self._place(place))[0], int(byte))
        return ""

    async def forge(self, name: str, place: str, batch: str = "0") -> str:
        """Changes a batch of a machine's replica and corrects its checksum."""
        machine = self._environment.machine(name)
        offset = forge(machine, segment_files(machine, *self._place(place))[0], int(batch))
        return "no such batch" if offset is None else f"the batch at offset {offset} is forged"

    async def claim(self, name: str, place: str) -> str:
        """Makes a node claim that it leads a partition."""
        self.lies.leads.add((self._environment.machine(name).node_id, *self._place(place)))
        return ""

    async def retreat(self, name: str, place: str) -> str:
        """Makes a follower fetch once from the start of its log."""
        self.lies.retreats.add((self._environment.machine(name).node_id, *self._place(place)))
        return ""

    async def guard(self) -> str:
        """Shows the events of the guard since the last `guard` command, each once, sorted."""
        events, self._events = self._events, set()
        return "\n".join(sorted(events))

    async def accuse(self, name: str, accused: str, place: str) -> str:
        """Makes a node send a false suspicion of another node to the controller."""
        broker, node_id = self._environment.machine(name).broker, self._environment.machine(accused).node_id
        assert broker is not None
        assert broker.guard is not None
        topic, index = self._place(place)
        broker.guard.suspicions.add(node_id, broker.partitions.get(topic, index).topic_id, index, 0)
        broker.lifecycle.beat_now()
        return ""

    async def boot(self, name: str) -> str:
        """Starts a machine without waiting until it serves: a node in quarantine waits for its release."""
        self._booting.append(asyncio.ensure_future(self._environment.machine(name).start()))
        return ""

    async def quarantined(self) -> str:
        """Shows the nodes in quarantine, as the cluster lists them."""

        async def work(role: Participant) -> str:
            return " ".join(f"n{each}" for each in await quarantined_nodes(await role.connected())) or "nobody"

        return await self._as("operator", work)

    async def pardon(self, name: str) -> str:
        """Releases a node from quarantine, as an operator does."""

        async def work(role: Participant) -> str:
            done = await release(await role.connected(), self._environment.machine(name).node_id)
            return "released" if done else "not in quarantine"

        return await self._as("operator", work)
