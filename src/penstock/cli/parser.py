"""Gives argparse Penstock's error messages: one sentence that names the option, its problem and a similar name.

Options that most commands share are also accepted before the command: `penstock -b HOST:PORT topic list`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from penstock.cli import output
from penstock.cli.exit import Exit

KINDS: dict[Any, str] = {int: "whole number", float: "number"}
SHARED_WITH_VALUE = ("-b", "--bootstrap", "--bootstrap-server", "--timeout", "--output")
SHARED_FLAGS = ("--debug", "--json")
LEAST_LIKENESS = 0.6
MISSING_VALUE = {"expected one argument": "needs a value", "expected at least one argument": "needs at least one value"}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Prints the message in one line and exits with code 2."""
        missing = self._missing_command(message)
        if missing is not None and missing.dest == "noun":
            self.print_help(sys.stderr)
        else:
            said = f"give one of {listed(missing.choices or ())}" if missing else message.removeprefix("argument ")
            output.note(f"{self.prog}: {_reworded(said)} (`{self.prog} --help` has more)")
        raise SystemExit(Exit.USAGE)

    def _missing_command(self, message: str) -> argparse.Action | None:
        """Returns argparse's subcommand action if `message` says that a subcommand is missing; otherwise None."""
        if not message.startswith("the following arguments are required: "):
            return None
        commands = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return next((action for action in commands if str(action.metavar) in message), None)

    def leftover(self, words: Sequence[str]) -> NoReturn:
        """Exits with an error about the first unexpected word: an extra argument or an unknown option."""
        first, *_ = words
        if not first.startswith("-") or first == "-":
            self.error(f"{first!r} is an extra word: the command takes no more arguments")
        self.error(f"there is no option {first.partition('=')[0]}{near(first, self._option_string_actions)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"there is no command {value!r}{near(value, action.choices) or available(action.choices)}")
        suggestion = near(str(value), map(str, action.choices))
        raise argparse.ArgumentError(action, f"{value!r} is not one of {listed(action.choices)}{suggestion}")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        convert = self._registry_get("type", action.type, action.type)
        try:
            return convert(arg_string)
        except argparse.ArgumentTypeError as wrong:
            raise argparse.ArgumentError(action, str(wrong)) from None
        except (TypeError, ValueError):
            kind = KINDS.get(action.type, "valid value")
            raise argparse.ArgumentError(action, f"{arg_string!r} is not a {kind}") from None


def _reworded(message: str) -> str:
    """Returns argparse's message about a missing value, in plainer words."""
    for theirs, ours in MISSING_VALUE.items():
        message = message.replace(f": {theirs}", f" {ours}") if message.endswith(theirs) else message
    return message


def near(word: str, known: Iterable[str]) -> str:
    """Returns `: did you mean X?` with the most similar known word, or an empty string if none is similar."""
    from difflib import get_close_matches

    found = get_close_matches(word.partition("=")[0], list(known), n=1, cutoff=LEAST_LIKENESS)
    return f": did you mean {found[0]}?" if found else ""


def available(known: Iterable[str]) -> str:
    return f": there are {listed(known)}"


def listed(names: Iterable[Any]) -> str:
    *others, last = map(str, names)
    return f"{', '.join(others)} and {last}" if others else last


def without_command(words: Sequence[str], commands: Iterable[str]) -> str:
    """Returns an error message if the command line has options but no command; otherwise an empty string."""
    name, _, _ = words[0].partition("=") if words else ("", "", "")
    if name not in (*SHARED_WITH_VALUE, *SHARED_FLAGS) and not name.startswith("-b"):
        return ""
    if words[-1] in SHARED_WITH_VALUE:
        return f"{words[-1]} needs a value"
    return f"a command is missing{available(commands)}"


def shared_options_last(words: Sequence[str], with_verbs: Iterable[str]) -> list[str]:
    """Moves shared options that stand before the command or its verb to the place after the verb.

    Returns all words of the command line in the new order.
    """
    moved: list[str] = []
    kept: list[str] = []
    rest = list(words)
    commands, wanted = 0, 1
    while rest and commands < wanted:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if name in SHARED_WITH_VALUE:
            moved += [word] if equals else [word, *rest[:1]]
            rest = rest if equals else rest[1:]
        elif word in SHARED_FLAGS or (word.startswith("-b") and len(word) > len("-b")):
            moved.append(word)
        else:
            kept.append(word)
            commands += not word.startswith("-")
            wanted = 2 if word in with_verbs else wanted
    return [*kept, *moved, *rest]
