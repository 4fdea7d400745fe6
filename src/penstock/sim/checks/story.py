"""Writes the story of a run as lines of text: its faults, the state changes of its machines, and the broken rules."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.sim.engine.loop import Timeline
from penstock.sim.engine.machine import State
from penstock.sim.engine.trace import Trace


@dataclass(frozen=True, slots=True)
class StoryLine:
    time: float
    who: str
    what: str
    state: State | None = None
    """The state that a machine entered with this line; None if the line is about something else."""

    def __str__(self) -> str:
        return f"{self.time:9.3f} s  {self.who:<9} {self.what}"


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.what}"


@dataclass(slots=True)
class Story:
    timeline: Timeline
    trace: Trace
    lines: list[StoryLine] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    def add(self, who: str, what: str) -> None:
        """Adds a line to the story of the run and to the trace."""
        self.trace.note(who, what)
        self.lines.append(StoryLine(self.timeline.now, who, what))

    def add_state(self, who: str, what: str, state: State | None) -> None:
        """Adds a line about a machine to the story only, because the machine itself writes the line to the trace."""
        self.lines.append(StoryLine(self.timeline.now, who, what, state))

    def violated(self, rule: str, what: str) -> None:
        """Adds a broken rule to the verdict and to the story."""
        self.violations.append(Violation(rule, what))
        self.add("verdict", f"{rule}: {what}")
