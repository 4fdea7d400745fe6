r"""Translates Java's regular expressions for topic names to Python's `re`. Pure code.

A topic's name consists of ASCII letters and digits, `.`, `_` and `-`. So every class of characters (`\p{Digit}`, `\w`,
`[a-z&&[^b]]`) is written out as the members that can be in a name. The rest of the two syntaxes is almost the same:
quotations (`\Q…\E`), named groups and the end of the text are spelt differently.
"""

from __future__ import annotations

import re
import string

ALPHABET = frozenset(string.ascii_letters + string.digits + "._-")
NOTHING: frozenset[str] = frozenset()
_LOWER, _UPPER = frozenset(string.ascii_lowercase), frozenset(string.ascii_uppercase)
_LETTERS, _DIGITS, _PUNCTUATION = _LOWER | _UPPER, frozenset(string.digits), frozenset("._-")
_WORD = _LETTERS | _DIGITS | {"_"}
_LONGEST_PATTERN = 10_000

#: Members of each class by its name in `\p{…}`, without prefixes `Is`, `java`, `gc=` and the like.
_PROPERTIES = {
    **dict.fromkeys(("lower", "ll", "lowercase"), _LOWER),
    **dict.fromkeys(("upper", "lu", "uppercase"), _UPPER),
    **dict.fromkeys(("alpha", "l", "lc", "alphabetic", "letter", "latin"), _LETTERS),
    **dict.fromkeys(("digit", "n", "nd", "number"), _DIGITS),
    **dict.fromkeys(("alnum", "letterordigit"), _LETTERS | _DIGITS),
    **dict.fromkeys(("punct", "p", "punctuation"), _PUNCTUATION),
    **dict.fromkeys(("ascii", "graph", "print", "basiclatin", "assigned"), ALPHABET),
    **dict.fromkeys(("blank", "cntrl", "space", "white_space", "whitespace", "z", "s", "c", "m", "lm", "lo"), NOTHING),
    "xdigit": frozenset(string.hexdigits),
    "hex_digit": frozenset(string.hexdigits),
    "pc": frozenset("_"),
    "pd": frozenset("-"),
    "po": frozenset("."),
    "common": _DIGITS | _PUNCTUATION,
}
_ESCAPED = {
    "d": _DIGITS,
    "w": _WORD,
    "s": NOTHING,
    "h": NOTHING,
    "v": NOTHING,
    "t": NOTHING,
    "n": NOTHING,
    "r": NOTHING,
    "f": NOTHING,
    "a": NOTHING,
    "e": NOTHING,
}
_PREFIXES = re.compile(r"(?i:is|in|java|(?:gc|sc|general_category|script|blk|block)=)")
_FOLDING = re.compile(r"\(\?[a-zA-Z]*i")


class PatternError(ValueError):
    """Raised if the pattern is invalid. The message gives the reason, without a full stop."""


def java_pattern(text: str) -> re.Pattern[str]:
    """Returns a pattern that matches the same topic names as Java's `Pattern.compile(text)`. Raises PatternError."""
    if len(text) > _LONGEST_PATTERN:
        raise PatternError(f"the pattern has {len(text)} characters, but the maximum is {_LONGEST_PATTERN}")
    try:
        return re.compile(_Translation(text).whole(), re.ASCII)
    except (re.error, RecursionError) as error:
        raise PatternError(str(error)) from None


class _Translation:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._folds = _FOLDING.search(text) is not None

    def whole(self) -> str:
        found = []
        while self._at < len(self._text):
            found.append(self._next())
        return "".join(found)

    def _next(self) -> str:
        if self._takes("\\Q"):
            return re.escape(self._quoted())
        if self._takes("\\z") or self._takes("\\Z"):
            return r"\Z"
        if self._takes("(?<"):
            return "(?<" if self._text[self._at : self._at + 1] in ("=", "!") else "(?P<"
        if self._takes("["):
            return _written(self._members())
        if self._text.startswith("\\", self._at) and self._at + 1 < len(self._text):
            return self._escape()
        return self._character()

    def _character(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _takes(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _quoted(self) -> str:
        text, _, _ = self._text[self._at :].partition("\\E")
        self._at += len(text) + 2
        return text

    def _escape(self) -> str:
        letter = self._text[self._at + 1]
        if letter in "pP" or letter.lower() in _ESCAPED:
            return _written(self._class_of_escape())
        if letter == "k" and self._text.startswith("<", self._at + 2):
            name, _, _ = self._text[self._at + 3 :].partition(">")
            self._at += len(name) + 4
            return f"(?P={name})"
        self._at += 2
        return "\\" + letter

    def _class_of_escape(self) -> frozenset[str]:
        r"""Parses an escape such as `\p{…}` or `\d`. Returns the characters that the escape matches."""
        self._takes("\\")
        letter = self._character()
        if letter in "pP":
            found = self._property()
        elif letter.lower() in _ESCAPED:
            found = _ESCAPED[letter.lower()]
        elif letter in "xu":
            digits = 2 if letter == "x" else 4
            code = self._text[self._at : self._at + digits]
            self._at += digits
            try:
                return frozenset(chr(int(code, 16))) & ALPHABET
            except ValueError:
                raise PatternError(f"\\{letter}{code} is not a character") from None
        elif letter.isalnum():
            raise PatternError(f"escape \\{letter} is not allowed in a class of characters")
        else:
            return frozenset(letter) & ALPHABET
        return ALPHABET - found if letter.isupper() else found

    def _property(self) -> frozenset[str]:
        if self._takes("{"):
            name, closed, _ = self._text[self._at :].partition("}")
            if not closed:
                raise PatternError("class \\p{…} has no closing brace")
            self._at += len(name) + 1
        else:
            name = self._text[self._at : self._at + 1]
            self._at += 1
        inverted = name.startswith("^")
        key = _PREFIXES.sub("", name.removeprefix("^"), count=1) if len(name) > 2 else name
        found = _PROPERTIES.get(key.lower())
        if found is None:
            raise PatternError(f"class \\p{{{name}}} is unknown")
        return ALPHABET - found if inverted else found

    def _members(self) -> frozenset[str]:
        """Parses a class of characters after its `[` and returns its members.

        `&&` intersects the sets on its two sides.
        """
        inverted = self._takes("^")
        both: frozenset[str] | None = None
        found: frozenset[str] = NOTHING
        first = True
        while not (self._text.startswith("]", self._at) and not first):
            if self._at >= len(self._text):
                raise PatternError("a class of characters has no closing bracket")
            first = False
            if self._takes("&&"):
                both = found if both is None else both & found
                found = NOTHING
            elif self._takes("["):
                found |= self._members()
            elif self._takes("\\Q"):
                found |= frozenset(self._quoted()) & ALPHABET
            else:
                found |= self._range()
        self._takes("]")
        found = found if both is None else both & found
        if self._folds:
            found = frozenset(case for each in found for case in (each.lower(), each.upper()))
        return ALPHABET - found if inverted else found

    def _range(self) -> frozenset[str]:
        low = self._one()
        goes_on = self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] not in (
            "]",
            "[",
        )
        if isinstance(low, frozenset) or not goes_on:
            return low if isinstance(low, frozenset) else frozenset(low) & ALPHABET
        self._takes("-")
        high = self._one()
        if isinstance(high, frozenset) or high < low:
            raise PatternError(f"the range from {low} in a class of characters has no valid end")
        return frozenset(each for each in ALPHABET if low <= each <= high)

    def _one(self) -> str | frozenset[str]:
        if not self._text.startswith("\\", self._at):
            return self._character()
        letter = self._text[self._at + 1 : self._at + 2]
        if letter.isalnum() or not letter:
            return self._class_of_escape()
        self._at += 2
        return letter


def _written(characters: frozenset[str]) -> str:
    return f"[{re.escape(''.join(sorted(characters)))}]" if characters else "(?!)"
