r"""Reads and writes Java's `.properties` text, the format of server.properties and of small files in log directories.

An entry is `key=value`, `key: value` or `key value`. `#` and `!` start a comment line. A line that ends in an odd
number of backslashes continues on the next line, whose leading blanks are dropped. `\t`, `\n`, `\r`, `\f`, `\\` and
`\uXXXX` are escapes; before any other character a backslash is dropped. If a key is given twice, the last value counts,
as in Java.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.metadata.configs.definition import ConfigError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    return dict(read_properties(text))


def read_properties(text: str) -> list[tuple[str, str]]:
    """Parses `.properties` text. Returns every entry in order, repeated keys included.

    Raises ConfigError. Its message has the number of the line, but not the text of the line, which may be a secret.
    """
    entries: list[tuple[str, str]] = []
    for number, line in _logical_lines(text):
        try:
            entries.append(_split(line))
        except ConfigError as problem:
            raise ConfigError(f"Line {number} of the properties has {problem}") from None
    return entries


def duplicate_properties(text: str) -> list[str]:
    """Returns the repeated keys, in the order of their second appearance."""
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for key, _ in read_properties(text):
        if key in seen:
            repeated[key] = None
        seen.add(key)
    return list(repeated)


def format_properties(entries: dict[str, str], comment: str | None = None) -> str:
    """Returns the entries as text that `parse_properties` and Java read back unchanged."""
    lines = [f"#{comment}"] if comment is not None else []
    lines += [f"{_escaped(key, in_key=True)}={_escaped(value, in_key=False)}" for key, value in entries.items()]
    return "\n".join(lines) + "\n" if lines else ""


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields each line, joined with its continuation lines, and the number of its last line in the file."""
    pending: str | None = None
    number = 0
    for number, natural in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1):
        line = natural.lstrip(_BLANKS)
        if pending is None:
            if not line or line[0] in "#!":
                continue
        else:
            line = pending + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending = line[:-1]
        else:
            pending = None
            yield number, line
    if pending is not None:
        yield number, pending


def _split(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=:" and line[end] not in _BLANKS:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return _unescaped(line[:end]), _unescaped(rest)


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\" or at == len(text):
            out.append(char)
            continue
        char = text[at]
        at += 1
        if char == "u":
            digits = text[at : at + 4]
            if len(digits) != 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                raise ConfigError("a malformed \\u escape: four hexadecimal digits must follow.")
            out.append(chr(int(digits, 16)))
            at += 4
        else:
            out.append(_ESCAPES.get(char, char))
    return _joined_surrogates("".join(out))


def _joined_surrogates(text: str) -> str:
    """Joins surrogate pairs, which Java writes as two escapes; an unpaired half becomes the replacement character."""
    if not any(0xD800 <= ord(char) <= 0xDFFF for char in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escaped(text: str, *, in_key: bool) -> str:
    out: list[str] = []
    for at, char in enumerate(text):
        if char in "\t\n\r\f":
            out.append({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[char])
        elif char in "\\=:#!" or (char == " " and (in_key or at == 0)):
            out.append("\\" + char)
        else:
            out.append(char)
    return "".join(out)
