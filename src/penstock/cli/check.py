"""`penstock check server.properties` lists which properties are honoured, ignored and refused. It starts no broker.

`penstock start` applies the same rules: it warns about ignored properties and stops at a refused property.
"""

from __future__ import annotations

import argparse
from collections import Counter

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import finish, overrides


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("properties", metavar="FILE", help="a server.properties file, Kafka's or Penstock's")
    parser.add_argument(
        "--override", action="append", default=[], metavar="NAME=VALUE", help="overrides a property of FILE"
    )
    finish(parser, run)
    parser.epilog = "Exits with 0 if a node would start with this file, and with 2 if the node would refuse to start."


def run(args: argparse.Namespace) -> int:
    from penstock.cli.properties import read_file
    from penstock.metadata.configs.judgement import Verdict, judge

    static = {**read_file(args.properties), **overrides(args.override)}
    found = judge(static)
    rows = [{"property": each.name, "verdict": each.verdict.value, "reason": each.reason or None} for each in found]
    output.rows(args.output, ["property", "verdict", "reason"], rows, empty=f"{args.properties} sets nothing")
    counts = Counter(each.verdict for each in found)
    output.note(", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict))
    if not counts[Verdict.REFUSED]:
        _check_together(args.properties, static)
    return Exit.USAGE if counts[Verdict.REFUSED] else Exit.OK


def _check_together(path: str, static: dict[str, str]) -> None:
    """Raises Failure if a combination of properties is impossible, such as listeners that don't fit the roles."""
    from penstock.disk.memory import MemoryDisk
    from penstock.metadata.configs.definition import ConfigError
    from penstock.metadata.configs.settings import Settings
    from penstock.node.listeners import ListenerError
    from penstock.node.local import make_node

    try:
        make_node(Settings(static), MemoryDisk())
    except (ConfigError, ListenerError) as problem:
        raise Failure(f"{path}: a node would refuse to start: {problem}", Exit.USAGE) from problem
