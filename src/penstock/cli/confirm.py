"""Asks for confirmation of a plan that a command has shown."""

from __future__ import annotations

import sys

from penstock.cli.exit import Exit, Failure


def ask(question: str) -> None:
    """Asks the user on the terminal. Returns only if the answer is yes.

    Raises Failure for any other answer, or if there is no terminal.
    """
    if not sys.stdin.isatty():
        raise Failure(
            "the plan can't be confirmed without a terminal: add --yes to carry it out, or --dry-run to only see it",
            Exit.USAGE,
        )
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise Failure("the plan was not confirmed, so nothing was changed", Exit.FAILED)
