"""Counts the points that a run passes, and injects faults at chosen points. A point is a place at which a fault can be
injected (see `plan.points`). The counter also notes which role the machine has at a point."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.protocol.errors import KafkaError
from penstock.sim.engine.machine import Machine, State
from penstock.sim.engine.point_kinds import METADATA_LOG, FileKind, MessageKinds, file_kind
from penstock.sim.faults.point_faults import Message, PointFaults
from penstock.sim.faults.target import FaultTarget
from penstock.sim.plan.points import ANSWER, CLIENT, REQUEST, Point, PointFault, PointLog

if TYPE_CHECKING:
    from penstock.sim.engine.connection import Endpoint
    from penstock.sim.engine.loop import ProcessLoop

#: Roles of a machine; the first one that applies.
STARTING, STOPPING, CONTROLLER = "starting", "stopping", "controller"
COORDINATOR, LEADER, FOLLOWER = "coordinator", "leader", "follower"


class PointCounter:
    """Counts points between the calls `begin` and `end`. Draws no random numbers, and writes to the trace only if a
    fault happens."""

    def __init__(self, target: FaultTarget, loop: ProcessLoop, *, record: bool) -> None:
        self._target = target
        self._record = record
        self._counts: dict[str, int] = {}
        self._kinds = MessageKinds()
        self._machines = {machine.name: machine for machine in target.machines}
        self._chosen: dict[tuple[str, int], PointFault] = {(each.kind, each.nth): each for each in target.plan.points}
        self._disk_kinds: dict[tuple[str, str], tuple[str, FileKind]] = {}
        #: Machine → the metadata image and quorum leader for which its role was found, and that role.
        self._roles: dict[Machine, tuple[object, int, str]] = {}
        self.log = PointLog()
        self._faults = PointFaults(target, loop, self.log)

    def begin(self) -> None:
        self._target.fabric.taps = [*self._target.fabric.taps, self._written]
        for machine in self._target.machines:
            machine.watch_disk(partial(self._disk_step, machine))

    def end(self) -> None:
        """Stops counting and ends all faults."""
        self._target.fabric.taps = [tap for tap in self._target.fabric.taps if tap != self._written]
        for machine in self._target.machines:
            machine.watch_disk(None)
        self._faults.end()

    def _count(self, kind: str, role: str, receiver_role: str = "") -> tuple[Point, PointFault | None]:
        nth = self._counts[kind] = self._counts.get(kind, 0) + 1
        point = Point(self._target.timeline.now, kind, nth, role, receiver_role)
        if self._record:
            self.log.passed.append(point)
        return point, self._chosen.get((kind, nth))

    # Messages.

    def _written(self, end: Endpoint, data: bytes) -> None:
        sender = self._machines.get(end.host.name)
        receiver = self._machines.get(end.get_extra_info("peername")[0])
        if (sender is None and receiver is None) or self._faults.own(end):
            return
        for frame in self._kinds.frames(end, data):
            between_nodes = sender is not None and receiver is not None
            name = frame.name if between_nodes else CLIENT + frame.name.partition("(")[0]
            kind = name + (REQUEST if end.outgoing else ANSWER)
            point, fault = self._count(kind, self._role(sender), self._role(receiver))
            if fault is not None:
                self._faults.at_message(fault, point, Message(end, data, frame.start, sender, receiver))

    def _role(self, machine: Machine | None) -> str:
        if machine is None:
            return ""
        if machine.state is not State.SERVING:
            return STOPPING if machine.state is State.STOPPING else STARTING
        broker = machine.broker
        image = broker.metadata.image if broker is not None else None
        leader = self._target.watcher.quorum_leader
        known = self._roles.get(machine)
        if known is not None and known[0] is image and known[1] == leader:
            return known[2]
        role = self._find_role(machine, leader)
        self._roles[machine] = (image, leader, role)
        return role

    def _find_role(self, machine: Machine, quorum_leader: int) -> str:
        image = machine.image
        if machine.node_id == quorum_leader and not machine.layout.single_node:
            return CONTROLLER
        if image is None:
            return FOLLOWER
        led = {
            topic.name.startswith("__")
            for topic in image.topics.values()
            for part in topic.partitions.values()
            if part.leader == machine.node_id
        }
        return COORDINATOR if True in led else LEADER if led else FOLLOWER

    # Disks.

    def _disk_step(self, machine: Machine, step: str, path: str) -> None:
        known = self._disk_kinds.get((step, path))
        if known is None:
            kind = file_kind(path)
            known = self._disk_kinds[step, path] = (f"{step} {kind.name}", kind)
        name, kind = known
        point, fault = self._count(name, self._role_for(machine, kind))
        if fault is not None:
            self._faults.at_disk(fault, point, machine, path)

    def _role_for(self, machine: Machine, kind: FileKind) -> str:
        """Returns the machine's role in the partition of a file; the role of the whole machine if the file has no
        partition."""
        if kind.partition < 0 or machine.state is not State.SERVING:
            return self._role(machine)
        if kind.topic == METADATA_LOG:
            return CONTROLLER if self._target.watcher.quorum_leader == machine.node_id else FOLLOWER
        broker = machine.broker
        if broker is None:
            return FOLLOWER
        try:
            partition = broker.partitions.get(kind.topic, kind.partition)
        except KafkaError:
            return FOLLOWER
        return LEADER if partition.image.leader == machine.node_id else FOLLOWER
