"""Parses patterns in RE2's syntax into a tree.

Supported are literals, classes, groups, alternation, repetition, anchors and the flags i, m, s and U.

Back references and look-around are refused, as in RE2. Word boundaries are refused too, because names do not need
them.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, NoReturn

from penstock.metadata.pattern_work import Work
from penstock.protocol.errors import ErrorCode, KafkaError

#: Longest pattern, in characters.
MAX_LENGTH = 1_000
#: Steps of `Work` for each character of a pattern, mostly for its set of characters.
STEPS_PER_CHAR = 16
MAX_REPEAT = 1000
MAX_DEPTH = 100

_PERL = {"d": "0-9", "w": "0-9A-Za-z_", "s": "\t\n\f\r "}
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\x00-\x7f",
    "blank": "\t ",
    "cntrl": "\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@[-`{-~",
    "space": "\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_CATEGORIES = frozenset({"L", "Lu", "Ll", "N", "Nd", "P", "Pc", "Pd", "Po", "M", "S", "Z", "C"})
_COUNT = re.compile(r"\{([0-9]+)(,([0-9]*))?\}")
_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_ASCII = [chr(code) for code in range(128)]
_ALL_ASCII = frozenset(_ASCII)


class Item(NamedTuple):
    """Represents an element of a class: the characters from `low` to `high`, or the characters of a Unicode category.

    With `negated`, the element is all other characters.
    """

    low: str = ""
    high: str = ""
    category: str = ""
    negated: bool = False


class CharSet:
    """Represents a set of characters: all characters of the items; with `negated`, all other characters.

    The ASCII part of the set is computed once.
    """

    __slots__ = ("_categories", "_highs", "_ignore_case", "_lows", "_negated", "ascii")

    def __init__(self, items: tuple[Item, ...], negated: bool = False, ignore_case: bool = False) -> None:
        self._negated = negated
        self._ignore_case = ignore_case
        self._categories = tuple((item.category, item.negated) for item in items if item.category)
        self._lows: list[str] = []
        self._highs: list[str] = []
        found: set[str] = set()
        for low, high in sorted((item.low, item.high) for item in items if not item.category):
            if self._highs and low <= self._highs[-1]:
                self._highs[-1] = max(self._highs[-1], high)
            else:
                self._lows.append(low)
                self._highs.append(high)
            found.update(_ASCII[ord(low) : ord(high) + 1])
        for category in self._categories:
            found |= _ascii_of(*category)
        if ignore_case:
            found |= {char.swapcase() for char in found}
        self.ascii = _ALL_ASCII - found if negated else frozenset(found)

    def __contains__(self, char: str) -> bool:
        if char < "\x80":
            return char in self.ascii
        cases = {char, char.lower(), char.upper()} if self._ignore_case else {char}
        return any(len(each) == 1 and self._listed(each) for each in cases) != self._negated

    def _listed(self, char: str) -> bool:
        at = bisect_right(self._lows, char) - 1
        if at >= 0 and char <= self._highs[at]:
            return True
        if not self._categories:
            return False
        found = unicodedata.category(char)
        return any(found.startswith(name) != negated for name, negated in self._categories)


@lru_cache(maxsize=64)
def _ascii_of(category: str, negated: bool) -> frozenset[str]:
    return frozenset(char for char in _ASCII if unicodedata.category(char).startswith(category) != negated)


@lru_cache(maxsize=1024)
def char_set(items: tuple[Item, ...], negated: bool = False, ignore_case: bool = False) -> CharSet:
    return CharSet(items, negated, ignore_case)


@lru_cache(maxsize=64)
def _spelt(text: str, negated: bool = False) -> tuple[Item, ...]:
    """Returns the items of a character class such as `a-z_`; if negated, one item with all other characters."""
    found: list[Item] = []
    at = 0
    while at < len(text):
        high = text[at + 2] if text[at + 1 : at + 2] == "-" and at + 2 < len(text) else text[at]
        found.append(Item(text[at], high))
        at += 1 if high == text[at] else 3
    return tuple(found) if not negated else _complement(tuple(found))


def _complement(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """Returns the ranges of all characters that are in none of the given ranges."""
    found: list[Item] = []
    low = 0
    for item in sorted(items, key=lambda each: each.low):
        if ord(item.low) > low:
            found.append(Item(chr(low), chr(ord(item.low) - 1)))
        low = max(low, ord(item.high) + 1)
    return (*found, Item(chr(low), chr(0x10FFFF)))


ANY = char_set(_spelt("\n", negated=True))
ANY_WITH_NEWLINE = char_set((Item("\0", chr(0x10FFFF)),))


@dataclass(frozen=True, slots=True)
class Chars:
    chars: CharSet


@dataclass(frozen=True, slots=True)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alternation:
    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    part: Node
    least: int
    most: int | None
    #: True if the repetition takes as few texts as possible; matters only for the texts of groups.
    lazy: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Represents a group of the pattern whose text the caller wants. Only `parse_groups` creates such nodes."""

    index: int
    part: Node


@dataclass(frozen=True, slots=True)
class Begin:
    pass


@dataclass(frozen=True, slots=True)
class End:
    pass


Node = Chars | Sequence | Alternation | Repeat | Group | Begin | End


EMPTY = Sequence(())


def _sequence(parts: list[Node]) -> Node:
    """Returns the parts as one node. Drops parts that match only the empty text: their repetition would never end."""
    parts = [part for part in parts if part != EMPTY]
    return parts[0] if len(parts) == 1 else Sequence(tuple(parts))


def _repeat(part: Node, least: int, most: int | None, lazy: bool) -> Node:
    return EMPTY if part == EMPTY or most == 0 else Repeat(part, least, most, lazy)


def parse(text: str, work: Work) -> Node:
    """Returns the syntax tree of the text, in time linear in its length. Groups have no nodes of their own."""
    return _parse(_Parser(text), work)


def parse_groups(text: str, work: Work) -> tuple[Node, int]:
    """Returns the syntax tree with a node for each group, and the number of groups."""
    parser = _Parser(text, with_groups=True)
    return _parse(parser, work), parser.groups


def _parse(parser: _Parser, work: Work) -> Node:
    text = parser.text
    if len(text) > MAX_LENGTH:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The regular expression has {len(text)} characters: shorten it to at most {MAX_LENGTH}.",
        )
    work.spend(len(text) * STEPS_PER_CHAR)
    node = parser.alternation(0)
    if parser.at < len(text):
        parser.fail("unmatched closing parenthesis")
    return node


class _Parser:
    def __init__(self, text: str, *, with_groups: bool = False) -> None:
        self.text = text
        self.at = 0
        self.groups = 0
        self._with_groups = with_groups
        self.ignore_case = False
        self.dot_is_newline = False

    def fail(self, reason: str) -> NoReturn:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The regular expression {self.text!r} is not valid: {reason} at position {self.at}.",
        )

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def take(self) -> str:
        char = self.peek()
        if not char:
            self.fail("it ends too early")
        self.at += 1
        return char

    def accept(self, expected: str) -> bool:
        if self.text.startswith(expected, self.at):
            self.at += len(expected)
            return True
        return False

    # --- structure

    def alternation(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self.fail("groups are nested too deeply")
        flags = self.ignore_case, self.dot_is_newline
        choices = [self.sequence(depth)]
        while self.accept("|"):
            choices.append(self.sequence(depth))
        self.ignore_case, self.dot_is_newline = flags
        return choices[0] if len(choices) == 1 else Alternation(tuple(choices))

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            part = self.atom(depth)
            if part is not None:
                parts.append(self.repeated(part))
        return _sequence(parts)

    def repeated(self, part: Node) -> Node:
        seen = False
        while True:
            start = self.at
            bounds = self.bounds()
            if bounds is None:
                return part
            if seen:
                self.at = start
                self.fail("a repetition of a repetition")
            seen = True
            lazy = self.accept("?")  # greedy and lazy repetition match the same names
            part = _repeat(part, *bounds, lazy and self._with_groups)

    def bounds(self) -> tuple[int, int | None] | None:
        if self.accept("*"):
            return 0, None
        if self.accept("+"):
            return 1, None
        if self.accept("?"):
            return 0, 1
        if self.peek() == "{":
            return self.counted()
        return None

    def counted(self) -> tuple[int, int | None] | None:
        """Parses `{2}`, `{2,}` or `{2,5}`; any other text in braces is literal, as in RE2."""
        found = _COUNT.match(self.text, self.at)
        if found is None:
            return None
        low, comma, high = found[1], found[2], found[3] or ""
        if max(len(low.lstrip("0")), len(high.lstrip("0"))) > len(str(MAX_REPEAT)):
            self.fail("a repetition with a bad count")
        least = int(low)
        most = least if not comma else int(high) if high else None
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            self.fail("a repetition with a bad count")
        self.at = found.end()
        return least, most

    def atom(self, depth: int) -> Node | None:
        char = self.take()
        if char in "*+?":
            self.fail("a repetition of nothing")
        match char:
            case "(":
                return self.group(depth)
            case "[":
                return self.char_class()
            case ".":
                return Chars(ANY_WITH_NEWLINE if self.dot_is_newline else ANY)
            case "^":
                return Begin()
            case "$":
                return End()
            case "\\":
                return self.escape()
            case _:
                return self.literal(char)

    def literal(self, char: str) -> Node:
        return Chars(char_set((Item(char, char),), False, self.ignore_case))

    def group(self, depth: int) -> Node | None:
        if self.accept("?"):
            if self.accept("P<") or self.accept("<"):
                end = self.text.find(">", self.at)
                name = self.text[self.at : max(end, self.at)]
                if end < 0 or not name.replace("_", "a").isalnum() or name[0].isdecimal():
                    self.fail("a group with a bad name")
                self.at = end + 1
            else:
                outer = self.ignore_case, self.dot_is_newline
                if not self.flags():
                    return None  # (?i) applies to the rest of the enclosing group
                node = self.closed(depth)
                self.ignore_case, self.dot_is_newline = outer
                return node
        if not self._with_groups:
            return self.closed(depth)
        self.groups += 1
        index = self.groups  # before the groups inside
        return Group(index, self.closed(depth))

    def closed(self, depth: int) -> Node:
        node = self.alternation(depth + 1)
        if not self.accept(")"):
            self.fail("a group that is not closed")
        return node

    def flags(self) -> bool:
        """Parses the flags of a group, such as `i-s:`. Returns True if they end with a colon, because then the content
        of the group follows."""
        on = True
        while True:
            char = self.take()
            match char:
                case ":":
                    return True
                case ")":
                    return False
                case "-" if on:
                    on = False
                case "i":
                    self.ignore_case = on
                case "s":
                    self.dot_is_newline = on
                case "m" | "U":
                    pass  # no effect when a whole text is matched
                case _:
                    self.fail("an unknown flag, or look-around, which RE2 does not support")

    # --- characters

    def escape(self) -> Node:
        char = self.take()
        if char.lower() in _PERL:
            return Chars(char_set(_perl(char)))
        if char == "A":
            return Begin()
        if char == "z":
            return End()
        if char == "Q":
            end = self.text.find("\\E", self.at)
            quoted = self.text[self.at :] if end < 0 else self.text[self.at : end]
            self.at = len(self.text) if end < 0 else end + 2
            return Sequence(tuple(self.literal(each) for each in quoted))
        if char in "pP":
            return Chars(char_set((self.unicode_class(negated=char == "P"),)))
        self.at -= 1
        return self.literal(self.escaped_char())

    def escaped_char(self) -> str:
        char = self.take()
        if char == "x":
            return self.hexadecimal()
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char.isalnum():
            self.fail(f"an unknown escape, \\{char}")
        return char

    def hexadecimal(self) -> str:
        if self.accept("{"):
            end = self.text.find("}", self.at)
            digits, self.at = self.text[self.at : max(end, self.at)], end + 1
        else:
            digits, self.at = self.text[self.at : self.at + 2], self.at + 2
        try:
            return chr(int(digits, 16))
        except (ValueError, OverflowError):
            self.fail("a bad hexadecimal escape")

    def unicode_class(self, negated: bool) -> Item:
        name = self.take()
        if name == "{":
            end = self.text.find("}", self.at)
            if end < 0:
                self.fail("a character class that is not closed")
            name, self.at = self.text[self.at : end], end + 1
        if name.startswith("^"):
            name, negated = name[1:], not negated
        if name == "Latin":
            name = "L"  # includes letters of other scripts
        if name not in _CATEGORIES:
            self.fail(f"an unknown character class, {name[:20]}")
        return Item(category=name, negated=negated)

    def char_class(self) -> Node:
        negated = self.accept("^")
        found: list[Item] = []
        first = True
        while first or self.peek() != "]":
            found += self.class_item()
            first = False
        self.at += 1
        return Chars(char_set(tuple(dict.fromkeys(found)), negated, self.ignore_case))

    def class_item(self) -> tuple[Item, ...]:
        if self.accept("[:"):
            end = self.text.find(":]", self.at)
            name = self.text[self.at : max(end, self.at)]
            if name.lstrip("^") not in _POSIX:
                self.fail("an unknown character class")
            self.at = end + 2
            return _spelt(_POSIX[name.lstrip("^")], name.startswith("^"))
        low = self.take()
        if low == "\\":
            kind = self.peek()
            if kind and kind.lower() in _PERL:
                self.at += 1
                return _perl(kind)
            if kind and kind in "pP":
                self.at += 1
                return (self.unicode_class(negated=kind == "P"),)
            low = self.escaped_char()
        if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
            self.at += 1
            high = self.take()
            if high == "\\":
                high = self.escaped_char()
            if high < low:
                self.fail("a range that ends before it begins")
            return (Item(low, high),)
        return (Item(low, low),)


def _perl(kind: str) -> tuple[Item, ...]:
    return _spelt(_PERL[kind.lower()], kind.isupper())
