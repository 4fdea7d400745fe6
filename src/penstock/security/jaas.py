"""Parses a JAAS line, the format in which Kafka configures a login: `module.Class required name="value" …;`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
_TOKEN = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|([^\s="';]+)|([=;]))""")
PASSWORD_PREFIX = "user_"  # noqa: S105 - the prefix of an option's name


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """Holds one login module with its options. Its `repr` hides the options, because they contain passwords."""

    module: str
    options: dict[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        """Returns the class name without its package, such as `PlainLoginModule`."""
        return self.module.rpartition(".")[2]

    @property
    def passwords(self) -> dict[str, str]:
        """Returns the passwords of a PLAIN server's users by name: the option `user_ann="secret"` is for user ann."""
        return {
            name.removeprefix(PASSWORD_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(PASSWORD_PREFIX)
        }


def parse_jaas(text: str) -> JaasEntry:
    """Returns the only entry of a JAAS line. Raises ValueError; the message contains no secrets."""
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != ("mark", ";"):
        raise ValueError('the line is not `module required name="value";`: check that it ends with a semicolon')
    module, flag, *rest = tokens[:-1]
    if module[0] != "word" or flag[1].lower() not in _FLAGS:
        raise ValueError(f"the line has no control flag ({', '.join(sorted(_FLAGS))}) after the login module")
    options: dict[str, str] = {}
    while rest:
        if len(rest) < 3 or rest[0][0] != "word" or rest[1] != ("mark", "=") or rest[2][0] == "mark":
            raise ValueError('the line has an option that is not name="value"')
        name, _, (_, value), *rest = rest
        options[name[1]] = value
    return JaasEntry(module[1], options)


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(
                "the line has an unclosed quotation mark or an unquoted special character: quote the value"
            )
        position = match.end()
        quoted, word, mark = match.groups()
        if quoted is not None:
            found.append(("text", re.sub(r"\\(.)", r"\1", quoted)))
        elif word is not None:
            found.append(("word", word))
        else:
            found.append(("mark", mark))
    return found
