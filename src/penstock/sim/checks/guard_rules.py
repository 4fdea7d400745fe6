"""Checks the guard, which finds nodes with wrong data: it accuses only nodes that a fault has changed, and no partition
uses a node in quarantine.

A fault adds the nodes that it changes to `wrong`, and asks these rules whether the guard has found the change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.broker.events import NodeEvent
from penstock.broker.events.kinds import GuardFinding, NodeQuarantined, NodeReleased, ReplicaRefilled
from penstock.guard.findings import Kind
from penstock.metadata.image import MetadataImage
from penstock.metadata.quarantine import quarantined
from penstock.sim.engine.machine import Machine

ACCUSED, OUT_OF_USE = "honest nodes are not accused", "nodes in quarantine are not used"


class _Seen(NamedTuple):
    time: float
    node: str
    event: NodeEvent


class GuardRules:
    def __init__(
        self,
        machines: Sequence[Machine],
        now: Callable[[], float],
        tell: Callable[[str, str], None],
        violated: Callable[[str, str], None],
    ) -> None:
        """Creates the rules. `tell` adds a line to the story of the run; `violated` reports a violation."""
        self._machines = machines
        self._now = now
        self._add_line = tell
        self.violated = violated
        #: The ids of nodes that a fault has made wrong at some time of the run.
        self.wrong: set[int] = set()
        self._seen: list[_Seen] = []
        self._reported: set[tuple[str, int]] = set()

    def _broken(self, rule: str, node_id: int, what: str) -> None:
        if (rule, node_id) not in self._reported:
            self._reported.add((rule, node_id))
            self.violated(rule, what)

    def node_event(self, node: str, event: NodeEvent) -> None:
        """Records an event of the guard, and checks that a fault has changed the accused node."""
        match event:
            case GuardFinding(accused=accused):
                if accused >= 0 and accused not in self.wrong and event.finding != Kind.AUTHENTICATION.value:
                    self._broken(ACCUSED, accused, f"{node}: {event}")
            case NodeQuarantined(node_id=node_id):
                if node_id not in self.wrong:
                    self._broken(ACCUSED, node_id, f"{node}: {event}")
            case ReplicaRefilled() | NodeReleased():
                pass
            case _:
                return
        self._seen.append(_Seen(self._now(), node, event))
        self._add_line(node, str(event))

    def found(self, since: float, accused: int, partition: str) -> bool:
        """Returns True if any node has accused the replica of node `accused` at or after the time `since`."""
        return any(
            each.time >= since
            and isinstance(each.event, GuardFinding)
            and (each.event.accused, each.event.partition) == (accused, partition)
            for each in self._seen
        )

    def refilled(self, since: float, node: str, partition: str) -> bool:
        return any(
            each.time >= since
            and each.node == node
            and isinstance(each.event, ReplicaRefilled)
            and each.event.partition == partition
            for each in self._seen
        )

    def look(self) -> None:
        """Checks the newest metadata: a node in quarantine is fenced, leads nothing and is in no in-sync set."""
        images = [machine.image for machine in self._machines if machine.image is not None]
        newest: MetadataImage | None = max(images, key=lambda each: each.offset, default=None)
        held = {} if newest is None else quarantined(newest)
        if newest is None or not held:
            return
        for node_id in held:
            if not newest.brokers[node_id].fenced:
                self._broken(OUT_OF_USE, node_id, f"node {node_id} is in quarantine and not fenced")
            for topic in newest.topics.values():
                for index, part in topic.partitions.items():
                    if part.leader == node_id or (node_id in part.isr and len(part.isr) > 1):
                        self._broken(
                            OUT_OF_USE, node_id, f"node {node_id} is in quarantine: {topic.name}-{index} {part}"
                        )
