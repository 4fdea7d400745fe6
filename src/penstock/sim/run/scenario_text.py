"""Parses the text of a scenario script: commands with their answers. All kinds of scenarios have this grammar.

    # A remark explains the next commands.
    > produce t a b
    a@0 b@1

A line that begins with `>` is a command, the lines below it are its answer, `#` begins a remark; blank lines stay.
`> include NAME` runs the commands of another script. Their answers are in that script, which is a scenario too.
A runner returns the text with the answers that the commands get now: equal to the file if nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

COMMAND = ">"
REMARK = "#"
INCLUDE = "include"


@dataclass(frozen=True, slots=True)
class Line:
    """Holds a command, remark or blank line of a script. Answers are not kept as lines."""

    text: str
    commands: tuple[str, ...] = ()
    """The commands that the line runs, in order; none for a remark."""
    shows_answers: bool = True
    """True if the script shows the answers of these commands below the line."""


def parse(text: str, includes: Mapping[str, str] | None = None) -> Iterator[Line]:
    """Yields the lines of a script without the answers. `includes` maps names to the scripts that can be included.

    Raises ValueError if an included script is not in `includes`.
    """
    for line in text.splitlines():
        if line.startswith(COMMAND):
            command = line.removeprefix(COMMAND).strip()
            first, _, name = command.partition(" ")
            if first == INCLUDE:
                yield Line(line, tuple(_included(name.strip(), includes or {})), shows_answers=False)
            else:
                yield Line(line, (command,))
        elif not line.strip() or line.startswith(REMARK):
            yield Line(line)


def _included(name: str, includes: Mapping[str, str]) -> Iterator[str]:
    if name not in includes:
        raise ValueError(f"There is no script {name!r} to include: name one of {', '.join(sorted(includes))}.")
    for line in parse(includes[name], includes):
        yield from line.commands


def answered(lines: list[str], line: Line, answer: str) -> None:
    """Appends the answer to a command to `lines`, unless the command comes from an included script."""
    if line.shows_answers:
        lines += answer.splitlines()
