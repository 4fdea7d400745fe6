"""Implements scenario commands that make replicas serve damaged or wrong data, and show the findings of the guard."""

from __future__ import annotations

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
from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.faults.lies import FalseAnswers, forge, rot, segment_files

if TYPE_CHECKING:
    from penstock.broker.events import NodeEvent
    from penstock.sim.engine.environment import Environment
    from penstock.sim.engine.machine import Machine

SHOWN = (CorruptionFound, GuardFinding, NodeQuarantined, NodeReleased, QuarantineRefused, ReplicaRefilled)


class GuardCommands:
    """Runs the commands `rot`, `forge`, `claim`, `retreat` and `guard`."""

    def __init__(self, environment: Environment, place: Callable[[str], TopicPartition]) -> None:
        self._environment = environment
        self._place = place
        self.lies = FalseAnswers()
        self._events: list[str] = []
        for machine in environment.machines:
            machine.on_node_event = self._observe
        self.commands: dict[str, Callable[..., Awaitable[str]]] = {
            "rot": self.rot,
            "forge": self.forge,
            "claim": self.claim,
            "retreat": self.retreat,
            "guard": self.guard,
        }

    def _observe(self, machine: Machine, event: NodeEvent) -> None:
        if isinstance(event, SHOWN):
            self._events.append(f"{machine.name}: {event}")

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
        """Shows the events of the guard since the last `guard` command, sorted."""
        events, self._events = self._events, []
        return "\n".join(sorted(set(events)))
