"""RE2's syntax as a tree: literals, classes, groups, alternation, repetition, anchors and the flags i, m, s and U.

Back references and look-around don't exist in RE2 and are refused. Word boundaries are, too: topics have no use for
them.
"""

from __future__ import annotations

import string
import unicodedata
from dataclasses import dataclass
from typing import NoReturn

from penstock.protocol.errors import ErrorCode, KafkaError

ALPHABET = frozenset(string.ascii_letters + string.digits + "._-")
MAX_LENGTH = 10_000
MAX_REPEAT = 1000
MAX_DEPTH = 100

_PERL = {
    "d": frozenset(string.digits),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
    "s": frozenset(),
}
_POSIX = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "ascii": "".join(ALPHABET),
    "blank": "",
    "cntrl": "",
    "digit": string.digits,
    "graph": "".join(ALPHABET),
    "lower": string.ascii_lowercase,
    "print": "".join(ALPHABET),
    "punct": "._-",
    "space": "",
    "upper": string.ascii_uppercase,
    "word": string.ascii_letters + string.digits + "_",
    "xdigit": string.hexdigits,
}
_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Chars:
    chars: frozenset[str]


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


@dataclass(frozen=True, slots=True)
class Begin:
    pass


@dataclass(frozen=True, slots=True)
class End:
    pass


@dataclass(frozen=True, slots=True)
class Unmatchable:
    """A character that no topic's name has."""


Node = Chars | Sequence | Alternation | Repeat | Begin | End | Unmatchable


def parse(text: str) -> Node:
    if len(text) > MAX_LENGTH:
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"The pattern is longer than {MAX_LENGTH} characters.")
    parser = _Parser(text)
    node = parser.alternation(0)
    if parser.at < len(text):
        parser.fail("a closing parenthesis too many")
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.ignore_case = False

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
        flags = self.ignore_case
        choices = [self.sequence(depth)]
        while self.accept("|"):
            choices.append(self.sequence(depth))
        self.ignore_case = flags
        return choices[0] if len(choices) == 1 else Alternation(tuple(choices))

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            part = self.atom(depth)
            if part is not None:
                parts.append(self.repeated(part))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

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
            self.accept("?")  # lazy or not makes no difference to whether a name matches
            part = Repeat(part, *bounds)

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
        """`{2}`, `{2,}` or `{2,5}`; anything else in braces is literal, as in RE2."""
        end = self.text.find("}", self.at)
        low, comma, high = self.text[self.at + 1 : max(end, self.at + 1)].partition(",")
        if end < 0 or not low.isdecimal() or (high and not high.isdecimal()):
            return None
        least = int(low)
        most = least if not comma else int(high) if high else None
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            self.fail("a repetition with a bad count")
        self.at = end + 1
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
                return Chars(ALPHABET)
            case "^":
                return Begin()
            case "$":
                return End()
            case "\\":
                return self.escape()
            case _:
                return self.literal(char)

    def literal(self, char: str) -> Node:
        found = self.folded(frozenset(char))
        return Chars(found) if found else Unmatchable()

    def folded(self, chars: frozenset[str]) -> frozenset[str]:
        if self.ignore_case:
            chars = frozenset(swapped for char in chars for swapped in (char, char.lower(), char.upper()))
        return chars & ALPHABET

    def group(self, depth: int) -> Node | None:
        if self.accept("?"):
            if self.accept("P<") or self.accept("<"):
                end = self.text.find(">", self.at)
                name = self.text[self.at : max(end, self.at)]
                if end < 0 or not name.replace("_", "a").isalnum() or name[0].isdecimal():
                    self.fail("a group with a bad name")
                self.at = end + 1
            else:
                outer = self.ignore_case
                if not self.flags():
                    return None  # (?i) holds for the rest of the enclosing group
                node = self.closed(depth)
                self.ignore_case = outer
                return node
        return self.closed(depth)

    def closed(self, depth: int) -> Node:
        node = self.alternation(depth + 1)
        if not self.accept(")"):
            self.fail("a group that is not closed")
        return node

    def flags(self) -> bool:
        """Reads `i-s:` and the like; whether a group follows."""
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
                case "m" | "s" | "U":
                    pass  # of no consequence within one line
                case _:
                    self.fail("an unknown flag, or look-around, which RE2 has not")

    # --- characters

    def escape(self) -> Node:
        char = self.take()
        if char.lower() in _PERL:
            return Chars(_perl(char))
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
            return Chars(self.unicode_class(negated=char == "P"))
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

    def unicode_class(self, negated: bool) -> frozenset[str]:
        name = self.take()
        if name == "{":
            end = self.text.find("}", self.at)
            if end < 0:
                self.fail("a character class that is not closed")
            name, self.at = self.text[self.at : end], end + 1
        if name.startswith("^"):
            name, negated = name[1:], not negated
        if name == "Latin":
            found = frozenset(string.ascii_letters)
        elif name in ("L", "Lu", "Ll", "N", "Nd", "P", "Pc", "Pd", "Po", "M", "S", "Z", "C"):
            found = frozenset(char for char in ALPHABET if unicodedata.category(char).startswith(name))
        else:
            self.fail(f"an unknown character class, {name}")
        return ALPHABET - found if negated else found

    def char_class(self) -> Node:
        negated = self.accept("^")
        found: set[str] = set()
        first = True
        while first or self.peek() != "]":
            found |= self.class_item()
            first = False
        self.at += 1
        folded = self.folded(frozenset(found))
        chars = ALPHABET - folded if negated else folded
        return Chars(chars) if chars else Unmatchable()

    def class_item(self) -> frozenset[str]:
        if self.accept("[:"):
            end = self.text.find(":]", self.at)
            name = self.text[self.at : max(end, self.at)]
            negated = name.startswith("^")
            if name.lstrip("^") not in _POSIX:
                self.fail("an unknown character class")
            self.at = end + 2
            found = frozenset(_POSIX[name.lstrip("^")])
            return ALPHABET - found if negated else found
        low = self.take()
        if low == "\\":
            kind = self.peek()
            if kind and kind.lower() in _PERL:
                self.at += 1
                return _perl(kind)
            if kind and kind in "pP":
                self.at += 1
                return self.unicode_class(negated=kind == "P")
            low = self.escaped_char()
        if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
            self.at += 1
            high = self.take()
            if high == "\\":
                high = self.escaped_char()
            if high < low:
                self.fail("a range that ends before it begins")
            return frozenset(char for char in ALPHABET if low <= char <= high)
        return frozenset(low)


def _perl(kind: str) -> frozenset[str]:
    found = _PERL[kind.lower()]
    return ALPHABET - found if kind.isupper() else found
