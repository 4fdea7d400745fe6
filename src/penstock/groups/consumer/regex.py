"""Topic patterns in RE2's syntax, matched in time linear in the name.

Clients choose the patterns, so Python's `re` is out of the question: a hostile one would hold the loop for minutes. A
pattern becomes a nondeterministic automaton of bounded size over the 65 characters that a topic's name may have, and
matching walks sets of its states, which are remembered. A pattern matches a name as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.groups.consumer.regex_syntax import (
    Alternation,
    Begin,
    Chars,
    End,
    Node,
    Repeat,
    Sequence,
    Unmatchable,
    parse,
)
from penstock.protocol.errors import ErrorCode, KafkaError

MAX_STATES = 20_000
MAX_REMEMBERED_SETS = 2000

_SPLIT, _BEGIN, _END = "split", "begin", "end"
Label = frozenset[str] | str


@dataclass(slots=True)
class _Automaton:
    """State 0 accepts. Every other state has a label: characters, a split, or a condition on the position."""

    labels: list[Label] = field(default_factory=lambda: [_SPLIT])
    targets: list[tuple[int, ...]] = field(default_factory=lambda: [()])

    def add(self, label: Label, *targets: int) -> int:
        if len(self.labels) >= MAX_STATES:
            raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, "The regular expression is too large.")
        self.labels.append(label)
        self.targets.append(targets)
        return len(self.labels) - 1

    def build(self, node: Node, after: int) -> int:
        """The state from which the node matches and then goes on to `after`."""
        match node:
            case Chars(chars):
                return self.add(chars, after)
            case Sequence(parts):
                for part in reversed(parts):
                    after = self.build(part, after)
                return after
            case Alternation(choices):
                return self.add(_SPLIT, *[self.build(choice, after) for choice in choices])
            case Repeat():
                return self._build_repeat(node, after)
            case Begin():
                return self.add(_BEGIN, after)
            case End():
                return self.add(_END, after)
            case Unmatchable():
                return self.add(frozenset(), after)

    def _build_repeat(self, node: Repeat, after: int) -> int:
        if node.most is None:
            loop = self.add(_SPLIT, after)
            self.targets[loop] = (self.build(node.part, loop), after)
            after = loop
        else:
            for _ in range(node.most - node.least):
                after = self.add(_SPLIT, self.build(node.part, after), after)
        for _ in range(node.least):
            after = self.build(node.part, after)
        return after


class TopicPattern:
    """Raises INVALID_REGULAR_EXPRESSION for what RE2 wouldn't take."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._automaton = _Automaton()
        start = self._automaton.build(parse(text), 0)
        self._start = self._closure({start}, at_begin=True)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, name: str) -> bool:
        steps = self._steps
        states = self._start
        for char in name:
            following = steps.get((states, char))
            if following is None:
                if len(steps) > MAX_REMEMBERED_SETS:
                    steps.clear()
                following = steps[states, char] = self._step(states, char)
            if not following:
                return False
            states = following
        return 0 in self._closure(set(states), at_begin=not name, at_end=True)

    def _step(self, states: frozenset[int], char: str) -> frozenset[int]:
        labels, targets = self._automaton.labels, self._automaton.targets
        reached: set[int] = set()
        for state in states:
            label = labels[state]
            if isinstance(label, frozenset) and char in label:
                reached.update(targets[state])
        return self._closure(reached)

    def _closure(self, states: set[int], *, at_begin: bool = False, at_end: bool = False) -> frozenset[int]:
        """The states reachable without reading anything. Conditions that may hold later stay in the set."""
        labels, targets = self._automaton.labels, self._automaton.targets
        seen = set(states)
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            label = labels[state]
            if label == _SPLIT or (label == _BEGIN and at_begin) or (label == _END and at_end):
                for target in targets[state]:
                    if target not in seen:
                        seen.add(target)
                        waiting.append(target)
        return frozenset(seen)
