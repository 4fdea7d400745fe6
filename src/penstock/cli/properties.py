"""Reads a server.properties file into settings. A problem in the file becomes a Failure of one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.exit import Exit, Failure

if TYPE_CHECKING:
    from penstock.metadata.configs.settings import Settings


def read_settings(path: str, overrides: Mapping[str, str] | None = None) -> Settings:
    from penstock.metadata.configs.definition import ConfigError
    from penstock.metadata.configs.settings import Settings

    try:
        return Settings({**read_file(path), **(overrides or {})})
    except ConfigError as problem:
        raise Failure(f"{path}: {problem}", Exit.USAGE) from problem


def warn_without_effect(settings: Settings) -> None:
    """Prints a warning for each property that is accepted but has no effect."""
    from penstock.metadata.configs.judgement import Verdict, judge

    for each in judge(settings.static):
        if each.verdict is Verdict.IGNORED:
            output.note(f"warning: {each.reason}")


def read_file(path: str, kind: str = "server.properties") -> dict[str, str]:
    """Returns the properties of a file, without checks. Replaces references to config providers by their values.

    `kind` names the kind of the file in an error message.
    """
    from penstock.metadata.configs.definition import ConfigError
    from penstock.metadata.configs.properties import duplicate_properties, parse_properties
    from penstock.metadata.configs.providers import Surroundings, resolved

    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Failure(f"{path} does not exist: name a {kind} file", Exit.NOT_FOUND) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise Failure(f"{path} can't be read: {problem}", Exit.USAGE) from problem
    try:
        for name in duplicate_properties(text):
            output.note(f"warning: {path} sets {name} more than once; the last value is used")
        surroundings = Surroundings(lambda name: Path(name).read_text(encoding="utf-8"), os.environ)
        return resolved(parse_properties(text), surroundings)
    except ConfigError as problem:
        raise Failure(f"{path}: {problem}", Exit.USAGE) from problem
