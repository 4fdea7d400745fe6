"""Defines the options that many commands share, and the parsers of their values."""

from __future__ import annotations

import argparse
import gc
import math
import os
from collections.abc import Callable, Iterable

from penstock.cli.exit import Exit, Failure

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    finish(parser, run)
    return parser


def finish(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], *, output: bool = True) -> None:
    """Completes a command's parser: sets the function to run, and adds --output and --debug."""
    parser.set_defaults(run=run, parser=parser)
    if output:
        parser.add_argument("--output", choices=("table", "json"), default="table", help="how to print the result")
        if not any(
            "--json" in action.option_strings for action in parser._actions
        ):  # `produce` and `consume` define a --json of their own
            parser.add_argument("--json", dest="output", action="store_const", const="json", help="as --output json")
    parser.add_argument("--debug", action="store_true", help="show a traceback when something fails")


def connection(parser: argparse.ArgumentParser, *, timeout_s: float = 30.0) -> None:
    parser.add_argument(
        "-b",
        "--bootstrap",
        "--bootstrap-server",
        metavar="HOST:PORT[,…]",
        default=os.environ.get("PENSTOCK_BOOTSTRAP", DEFAULT_BOOTSTRAP),
        help="where the brokers are (default: PENSTOCK_BOOTSTRAP, else %(default)s)",
    )
    credentials(parser)
    parser.add_argument(
        "--timeout", type=positive_float, default=timeout_s, metavar="SECONDS", help="default: %(default)s"
    )


def credentials(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--command-config",
        metavar="FILE",
        default=os.environ.get("PENSTOCK_COMMAND_CONFIG"),
        help="client properties with TLS and SASL settings, as for Kafka's tools (default: PENSTOCK_COMMAND_CONFIG)",
    )


def expect_many_objects() -> None:
    """Makes Python's garbage collections rare, because commands that handle many records create no reference cycles."""
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)


def positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
    return value


def positive_int(text: str) -> int:
    value = int(text) if text.strip().isdecimal() else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above zero")
    return value


def positive_int32(text: str) -> int:
    return _at_most(positive_int(text), 2**31 - 1)


def positive_int16(text: str) -> int:
    return _at_most(positive_int(text), 2**15 - 1)


def _at_most(value: int, most: int) -> int:
    if value > most:
        raise argparse.ArgumentTypeError(f"{value} is too large: the maximum is {most}")
    return value


def pairs(texts: Iterable[str], what: str) -> dict[str, str]:
    """Parses `NAME=VALUE` arguments into a dictionary."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise Failure(f"{what} takes NAME=VALUE, not {text!r}", Exit.USAGE)
        found[name.strip()] = value.strip()
    return found


def overrides(texts: Iterable[str]) -> dict[str, str]:
    """Parses the values of `--override`, and refuses secret properties."""
    found = pairs(texts, "--override")
    refuse_secrets(found, "write it into the properties file of penstock start")
    return found


def refuse_secrets(names: Iterable[str], remedy: str) -> None:
    """Refuses arguments with secret broker properties, because all users of the machine see the arguments."""
    from penstock.metadata.configs.broker import broker_key

    for name in names:
        key = broker_key(name)
        if key is not None and key.sensitive:
            raise Failure(
                f"{name} is secret, and every user of this machine can see the arguments of a command: {remedy}.",
                Exit.USAGE,
            )


SIZE_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def size(text: str) -> int:
    """Parses a size such as `10M`, `1GiB` or a plain number of bytes. Returns the number of bytes."""
    plain = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = plain[-1:] if plain[-1:].isalpha() else ""
    digits = plain.removesuffix(unit) if unit else plain
    if unit not in SIZE_UNITS or not digits.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: use bytes, or a number with K, M, G or T")
    return int(digits) * SIZE_UNITS[unit]


DURATION_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration(text: str) -> int:
    """Parses a duration such as `90s`, `15m`, `2h` or `1d` into milliseconds."""
    plain = text.strip().lower()
    digits = plain.rstrip("mshd")
    unit = plain[len(digits) :]
    if unit not in DURATION_UNITS or not digits.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: use a number with ms, s, m, h or d")
    return int(digits) * DURATION_UNITS[unit]
