"""Explores every state that a small model can reach. Returns the shortest sequence of steps that breaks an invariant.

A model defines its first state, the possible steps from a state, and the invariants. Its steps call the node's own pure
functions, so the model cannot differ from the code. States are hashable values.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Model(Protocol[S]):
    def first(self) -> S: ...

    def steps(self, state: S) -> Iterator[tuple[str, S]]:
        """Yields each possible step: its text and the state after it."""

    def broken(self, state: S) -> str:
        """Returns a description of the invariant that the state breaks; an empty text if it breaks none."""


@dataclass
class Explored:
    states: int
    steps: int
    depth: int
    cpu_s: float
    broken: str = ""
    way: list[str] = field(default_factory=list)
    """The steps to the state that breaks an invariant."""

    def __str__(self) -> str:
        figures = f"{self.states:,} states, {self.steps:,} steps, depth {self.depth}, {self.cpu_s:.1f} s of CPU"
        if not self.broken:
            return f"all invariants hold: {figures}"
        lines = [f"{number:3}. {step}" for number, step in enumerate(self.way, 1)]
        return "\n".join([f"BROKEN after {len(self.way)} steps: {self.broken} ({figures})", *lines])


class TooManyStatesError(AssertionError):
    """Raised if the model has more states than its limit: the search is incomplete. Choose smaller bounds."""


def explore(model: Model[S], *, most_states: int = 1_000_000) -> Explored:
    """Visits all states, breadth first, so that a counterexample is as short as possible."""
    began = time.process_time()
    first = model.first()
    came_from: dict[S, tuple[S, str] | None] = {first: None}
    waiting: deque[tuple[S, int]] = deque([(first, 0)])
    steps = depth = 0
    while waiting:
        state, depth = waiting.popleft()
        if problem := model.broken(state):
            spent = time.process_time() - began
            return Explored(len(came_from), steps, depth, spent, problem, _way(came_from, state))
        for text, after in model.steps(state):
            steps += 1
            if after not in came_from:
                came_from[after] = (state, text)
                waiting.append((after, depth + 1))
        if len(came_from) > most_states:
            raise TooManyStatesError(
                f"the model has more than {most_states:,} states after {depth} steps: choose smaller bounds"
            )
    return Explored(len(came_from), steps, depth, time.process_time() - began)


def _way(came_from: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    way: list[str] = []
    while (before := came_from[state]) is not None:
        state, text = before
        way.append(text)
    return way[::-1]


def require_broken(found: Explored, words: Iterable[str]) -> None:
    """Asserts that the search found a counterexample, and that its steps contain the given words in this order."""
    assert found.broken, str(found)
    text = "\n".join(found.way)
    for word in words:
        assert word in text, str(found)
        text = text[text.index(word) + len(word) :]
