"""Matches texts with a pattern and returns the texts of its groups, within a fixed number of steps.

The result is the same as that of a backtracking matcher, which prefers the first alternative and respects greedy and
lazy repetitions. But the time is linear in the text: the matcher follows all alternatives in parallel, in their order,
and joins alternatives that reach the same state. Python's `re` would try the alternatives one after the other. For a
pattern such as `(.*?),OU=(.*?),O=…` this can take minutes, and a peer chooses the text (the subject of its
certificate).
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.metadata.pattern_syntax import CharSet, parse_groups
from penstock.metadata.pattern_work import Work
from penstock.metadata.patterns import BEGIN, END, SPLIT, Automaton, Save
from penstock.protocol.errors import KafkaError

#: A position for each slot of the groups; None for a slot that was not reached.
Slots = tuple[int | None, ...]


class GroupPattern:
    """Compiles a pattern in RE2's syntax, and finds the texts of its groups."""

    def __init__(self, text: str) -> None:
        """Compiles the pattern. Raises ValueError if its syntax is not supported."""
        work = Work()
        try:
            node, self.groups = parse_groups(text, work)
            self._automaton = Automaton(work)
            self._start = self._automaton.build(node, 0)
        except KafkaError as problem:
            raise ValueError(problem.message or str(problem)) from None

    def match(self, text: str) -> tuple[str, ...] | None:
        """Returns the whole text and the text of each group, or None if the pattern does not match the whole text.

        A group that took no part in the match has the text "". Raises ValueError if the match takes too many steps.
        """
        try:
            slots = self._run(text, Work())
        except KafkaError as problem:
            raise ValueError(problem.message or str(problem)) from None
        if slots is None:
            return None
        found = [text]
        for begin, end in zip(slots[2::2], slots[3::2], strict=True):
            found.append("" if begin is None or end is None else text[begin:end])
        return tuple(found)

    def _run(self, text: str, work: Work) -> Slots | None:
        labels, targets = self._automaton.labels, self._automaton.targets
        first: Slots = (None,) * (2 * self.groups + 2)
        here = self._closure([(self._start, first)], 0, len(text), work)
        for at, char in enumerate(text, 1):
            moved = []
            for state, slots in here.items():
                label = labels[state]
                if isinstance(label, CharSet) and char in label:
                    moved.append((targets[state][0], slots))
            here = self._closure(moved, at, len(text), work)
            if not here:
                return None
        return here.get(0)

    def _closure(self, states: Iterable[tuple[int, Slots]], at: int, end: int, work: Work) -> dict[int, Slots]:
        """Follows all transitions of the automaton that read no character. Returns the reached states that read a
        character or accept, the preferred state first."""
        labels, targets = self._automaton.labels, self._automaton.targets
        found: dict[int, Slots] = {}
        seen: set[int] = set()
        waiting = list(states)[::-1]
        while waiting:
            state, slots = waiting.pop()
            if state in seen:
                continue
            seen.add(state)
            work.spend(1)
            label = labels[state]
            match label:
                case Save(slot):
                    slots = (*slots[:slot], at, *slots[slot + 1 :])
                    waiting.append((targets[state][0], slots))
                case _ if state == 0:
                    found[0] = slots
                case str() if label == SPLIT or (label == BEGIN and at == 0) or (label == END and at == end):
                    waiting += [(target, slots) for target in reversed(targets[state])]
                case str():
                    pass  # a condition that does not hold here
                case _:
                    found[state] = slots
        return found
