"""Holds the target of faults: a run's machines, links and actors, its machines that have not recovered, and its
story."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.sim.actors.actor import Actor
from penstock.sim.actors.session import Clients
from penstock.sim.checks.guard_rules import GuardRules
from penstock.sim.checks.history import History
from penstock.sim.checks.quorum_logs import QuorumLogs
from penstock.sim.checks.story import Story
from penstock.sim.checks.watcher import Watcher
from penstock.sim.engine.environment import Environment
from penstock.sim.engine.loop import Timeline
from penstock.sim.engine.machine import Machine, State
from penstock.sim.engine.network import Fabric
from penstock.sim.faults.lost_machines import DISK, POWER, LostMachines
from penstock.sim.faults.supervisor import Supervisor
from penstock.sim.plan.plan import FaultPlan, Plan

if TYPE_CHECKING:
    from penstock.disk.volume import Severity
    from penstock.sim.engine.node_code import NodeCode

#: A node whose disk works again is restarted after this time.
RESTART_S = 1.0


@dataclass(slots=True)
class FaultTarget:
    plan: Plan
    environment: Environment
    clients: Clients
    actors: Sequence[Actor]
    story: Story
    watcher: Watcher
    quorum_logs: QuorumLogs
    losses: LostMachines
    supervisor: Supervisor
    #: Hosts of clients that are not actors.
    other_clients: list[str] = field(default_factory=list)
    #: Virtual time at which the time of faults began.
    began: float = 0.0
    guard: GuardRules = field(init=False)

    def __post_init__(self) -> None:
        self.guard = GuardRules(self.machines, lambda: self.timeline.now, self.story.add, self.story.violated)
        self.watcher.on_node_event.append(self.guard.node_event)
        self.watcher.on_look.append(self.guard.look)

    @property
    def machines(self) -> list[Machine]:
        return self.environment.machines

    @property
    def fabric(self) -> Fabric:
        return self.environment.fabric

    @property
    def timeline(self) -> Timeline:
        return self.environment.timeline

    @property
    def history(self) -> History:
        return self.clients.history

    @property
    def client_hosts(self) -> list[str]:
        return [actor.host for actor in self.actors] + self.other_clients

    @property
    def controller(self) -> Machine | None:
        """Returns the machine whose node leads the quorum, as far as the watcher knows."""
        leader = self.watcher.quorum_leader
        return next((machine for machine in self.machines if machine.node_id == leader), None)

    def note(self, fault: FaultPlan, what: str) -> None:
        """Adds a line about a fault to the story of the run (a text about its events)."""
        self.story.add(f"fault {fault.index}", what)

    def restart(self, machine: Machine, after_s: float) -> None:
        self.supervisor.restart(machine, after_s)

    def kill(self, machine: Machine, down_s: float) -> None:
        """Kills the process of a machine. The process starts again after `down_s` seconds."""
        machine.kill()
        self.supervisor.restart(machine, down_s)

    def lose_power(self, machine: Machine, severity: Severity, off_s: float) -> None:
        """Switches a machine off. The machine starts again after `off_s` seconds."""
        if not self.plan.layout.single_node and self.losses.covered(machine, POWER):
            self.history.covered_losses += 1
        else:
            self.history.power_losses.append(self.timeline.now)
        self.losses.note(machine, POWER)
        machine.lose_power(severity)
        self.restart(machine, off_s)

    def finish_upgrade(self, code: NodeCode) -> None:
        """Upgrades the machines that still run the old version. Called when the time of faults is over."""
        for machine in self.machines:
            if machine.code.version != code.version:
                machine.kill()
                machine.code = code

    def may_fail(self, fault: FaultPlan, machine: Machine) -> bool:
        """Returns True if acknowledged records survive a disk fault of this machine, and then counts the fault as a
        loss."""
        if not self.plan.losses_covered:
            return True
        if not self.losses.covered(machine, DISK):
            self.note(fault, f"spares the disk of {machine.name}: too many have not recovered yet")
            return False
        self.losses.note(machine, DISK)
        return True

    def repaired(self, machine: Machine, incarnation: int) -> None:
        """Restarts a node that has taken its disk offline. Called when the disk works again."""
        if machine.state is State.SERVING and machine.incarnation == incarnation and not machine.offline:
            self.losses.spared(machine)
        if machine.state is State.SERVING and machine.offline:
            self.story.add(machine.name, "is restarted: its disk works again")
            machine.kill()
            self.restart(machine, RESTART_S)
