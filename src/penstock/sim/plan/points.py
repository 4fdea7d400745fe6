"""Defines points: the places of a run at which a fault can be injected, and the faults that can be injected there.

A point is a message between two processes or a step on a disk. It has a kind, and a number among the points of its
kind: `AlterPartition answer#3` is the third answer to an AlterPartition request since the faults of the run began. A
run repeats exactly up to its first fault, so a point that one run has passed can be hit in the next run of its plan.

    hold             the message, and all data behind it on its connection, arrives seconds later
    reorder          the request is held, its sender loses the connection and retries; the held request arrives later
    duplicate        a copy of the request arrives a second time, over another connection
    drop             the connection breaks before the message arrives
    kill-sender, power-sender, pause-sender          the sender stops right after the message has left it
    kill-receiver, power-receiver, pause-receiver    the receiver stops before the message has arrived
    kill, power      the process dies, or its machine loses power, inside the step on its disk
    pause            the process stands still after the step on its disk
    error            the step on the disk fails with EIO
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

REQUEST = " request"
ANSWER = " answer"
#: Beginning of the kinds of messages between a client and a node.
CLIENT = "client "

HOLD, REORDER, DUPLICATE, DROP = "hold", "reorder", "duplicate", "drop"
KILL, POWER, PAUSE, ERROR = "kill", "power", "pause", "error"
SENDER, RECEIVER = "-sender", "-receiver"
STOPS = (KILL, POWER, PAUSE)


class Point(NamedTuple):
    """Describes a point (a message or a step on a disk) that a run has passed."""

    time: float
    kind: str
    nth: int
    role: str
    """Role of the machine that sends the message or owns the disk."""
    receiver_role: str = ""
    """Role of the machine that receives the message; empty for a step on a disk and for a message to a client."""

    def role_for(self, fault: str) -> str:
        """Returns the role of the machine that this fault hits."""
        return (self.receiver_role or self.role) if fault.endswith(RECEIVER) else (self.role or self.receiver_role)


class Cell(NamedTuple):
    """Names a unit of coverage: a kind of points, a fault, and the role of the machine that the fault hits."""

    kind: str
    fault: str
    role: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.fault} ({self.role})"


def faults_at(kind: str) -> tuple[str, ...]:
    """Returns the faults that can be placed at points of a kind."""
    if kind.endswith(REQUEST):
        late: tuple[str, ...] = (HOLD, REORDER, DUPLICATE)
        nodes: tuple[str, ...] = (SENDER, RECEIVER)
        if kind.startswith(CLIENT):
            late, nodes = (HOLD, REORDER), (RECEIVER,)
    elif kind.endswith(ANSWER):
        late = (HOLD,)
        nodes = (SENDER,) if kind.startswith(CLIENT) else (SENDER, RECEIVER)
    else:
        return (KILL, POWER, PAUSE, ERROR)
    return (*late, DROP, *(stop + end for end in nodes for stop in STOPS))


@dataclass(frozen=True, slots=True)
class PointFault:
    """Describes one or two faults at the n-th point of a kind."""

    kind: str
    nth: int
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}#{self.nth}:{'+'.join(self.faults)}"


def parse_point_fault(text: str) -> PointFault:
    """Reads a text such as `AlterPartition answer#3:drop+kill-sender`.

    Raises ValueError if the text does not name a point and its faults.
    """
    point, colon, faults = text.rpartition(":")
    kind, hash_sign, nth = point.rpartition("#")
    if not colon or not hash_sign or not nth.isdigit() or int(nth) < 1:
        raise ValueError(f"{text!r} is not of the form POINT:FAULT: write, for example, 'AlterPartition answer#3:drop'")
    known = faults_at(kind)
    for fault in faults.split("+"):
        if fault not in known:
            raise ValueError(f"{fault!r} is not a fault for {kind!r}: use one of {', '.join(known)}")
    return PointFault(kind, int(nth), tuple(faults.split("+")))


@dataclass(slots=True)
class PointLog:
    """Holds the points that a run has passed, and the faults that happened at some of them."""

    passed: list[Point] = field(default_factory=list)
    happened: list[tuple[Point, str]] = field(default_factory=list)
    """The faults as they were carried out: a power loss that the promises do not cover is carried out as a kill."""

    def cells(self) -> Iterator[Cell]:
        """Yields the coverage cell (kind, fault and role) of every fault that is possible at a passed point. The same
        cell may be yielded more than once."""
        for kind, role, receiver_role in {(each.kind, each.role, each.receiver_role): None for each in self.passed}:
            point = Point(0.0, kind, 0, role, receiver_role)
            for fault in faults_at(kind):
                yield Cell(kind, fault, point.role_for(fault))

    def covered(self) -> Iterator[Cell]:
        for point, fault in self.happened:
            yield Cell(point.kind, fault, point.role_for(fault))
