"""Matches texts with patterns in RE2's syntax, in time linear in the text and within a fixed number of steps.

Clients choose the patterns and the texts (topic names, transactional ids, client ids). So Python's `re` cannot be used:
a hostile pattern would block the loop for minutes. A pattern becomes a nondeterministic automaton of bounded size. For
each character of the text, the matcher computes the set of states that the automaton can be in. These sets are cached:
they are the states of a deterministic automaton. To compute a set takes one step for each of its states; a pattern of
seventy characters may need sets of thousands of states. Parsing and building take steps too; `Work` counts all steps. A
pattern must match the whole text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.metadata.pattern_syntax import (
    Alternation,
    Begin,
    Chars,
    CharSet,
    End,
    Group,
    Node,
    Repeat,
    Sequence,
    parse,
)
from penstock.metadata.pattern_work import MAX_STEPS, Work
from penstock.protocol.errors import ErrorCode, KafkaError

#: Limit of states: every character of a pattern is a state, once for each of its repetitions.
MAX_STATES = 10_000
#: Steps to create one state, or to visit a node of the pattern without states.
STEPS_PER_NODE = 3
#: Steps to look up a character outside ASCII in ranges and categories.
STEPS_PER_OTHER_CHAR = 20
#: Limit of states in all cached sets of a pattern.
MAX_REMEMBERED_STATES = 60_000

__all__ = ["MAX_STEPS", "Pattern", "Work"]

SPLIT, BEGIN, END = "split", "begin", "end"


@dataclass(frozen=True, slots=True)
class Save:
    """Labels a state that stores the position in the text: the beginning of group n in slot 2n, its end in slot 2n +
    1."""

    slot: int


Label = CharSet | Save | str


@dataclass(slots=True)
class Automaton:
    """Holds the automaton of a pattern.

    State 0 accepts. The label of any other state is a set of characters, a split, a condition on the position in the
    text, or a `Save`, which stores the position. The targets of a split are in the order in which a backtracking
    matcher would try them.
    """

    work: Work
    labels: list[Label] = field(default_factory=lambda: [SPLIT])
    targets: list[tuple[int, ...]] = field(default_factory=lambda: [()])

    def add(self, label: Label, *targets: int) -> int:
        if len(self.labels) >= MAX_STATES:
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                "The regular expression is too large: write it with fewer repetitions.",
            )
        self.labels.append(label)
        self.targets.append(targets)
        return len(self.labels) - 1

    def build(self, node: Node, after: int) -> int:
        """Adds states that match the node and then continue at state `after`. Returns the first of these states."""
        self.work.spend(STEPS_PER_NODE)
        match node:
            case Chars(chars):
                return self.add(chars, after)
            case Sequence(parts):
                for part in reversed(parts):
                    after = self.build(part, after)
                return after
            case Alternation(choices):
                return self.add(SPLIT, *[self.build(choice, after) for choice in choices])
            case Repeat():
                return self._build_repeat(node, after)
            case Group(index, part):
                end = self.add(Save(2 * index + 1), after)
                return self.add(Save(2 * index), self.build(part, end))
            case Begin():
                return self.add(BEGIN, after)
            case End():
                return self.add(END, after)

    def _build_repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            loop = self.add(SPLIT, after)
            self.targets[loop] = _ordered(self.build(node.part, loop), after, node.lazy)
            after = loop
        else:
            for _ in range(node.most - node.least):
                after = self.add(SPLIT, *_ordered(self.build(node.part, after), after, node.lazy))
        for _ in range(node.least):
            after = self.build(node.part, after)
        return after


def _ordered(part: int, after: int, lazy: bool) -> tuple[int, int]:
    return (after, part) if lazy else (part, after)


class _Set:
    """Holds a set of states. `following` caches, for each character read so far, the next set; None if that set is
    empty."""

    __slots__ = ("accepts", "following", "states")

    def __init__(self, states: frozenset[int]) -> None:
        self.states = states
        self.accepts: bool | None = None
        self.following: dict[str, _Set | None] = {}


class Pattern:
    """Compiles a pattern and matches texts with it. Raises INVALID_REGULAR_EXPRESSION for patterns that RE2 refuses."""

    def __init__(self, text: str, work: Work | None = None) -> None:
        work = Work() if work is None else work
        self.text = text
        self._automaton = Automaton(work)
        self._first = self._automaton.build(parse(text, work), 0)
        self._start: _Set | None = None
        self._sets: dict[frozenset[int], _Set] = {}
        self._remembered = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def matches(self, text: str, work: Work | None = None) -> bool:
        work = Work() if work is None else work
        here = self._start
        if here is None:
            here = self._start = self._set(self._closure({self._first}, work, at_begin=True))
        for char in text:
            try:
                following = here.following[char]
            except KeyError:
                following = here.following[char] = self._step(here, char, work)
            if following is None:
                return False
            here = following
        if here.accepts is None:
            work.spend(len(here.states))
            here.accepts = 0 in self._closure(set(here.states), work, at_begin=not text, at_end=True)
        return here.accepts

    def _set(self, states: frozenset[int]) -> _Set:
        found = self._sets.get(states)
        if found is None:
            self._remembered += len(states)
            if self._remembered > MAX_REMEMBERED_STATES:  # sets of this match stay cached until it ends
                self._sets.clear()
                self._start = None
                self._remembered = len(states)
            found = self._sets[states] = _Set(states)
        return found

    def _step(self, here: _Set, char: str, work: Work) -> _Set | None:
        labels, targets = self._automaton.labels, self._automaton.targets
        work.spend(len(here.states) * (1 if char < "\x80" else STEPS_PER_OTHER_CHAR))
        reached: set[int] = set()
        for state in here.states:
            label = labels[state]
            if isinstance(label, CharSet) and char in label:
                reached.update(targets[state])
        return self._set(self._closure(reached, work)) if reached else None

    def _closure(self, states: set[int], work: Work, *, at_begin: bool = False, at_end: bool = False) -> frozenset[int]:
        """Returns `states` and all states that can be reached from them without reading a character.

        A state whose condition does not hold at this position stays in the set, because the condition can hold later.
        """
        labels, targets = self._automaton.labels, self._automaton.targets
        seen = set(states)
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            label = labels[state]
            if label == SPLIT or (label == BEGIN and at_begin) or (label == END and at_end):
                onward = targets[state]
                work.spend(len(onward))
                for target in onward:
                    if target not in seen:
                        seen.add(target)
                        waiting.append(target)
        return frozenset(seen)
