"""Runs `penstock NOUN VERB …`. Imports only the requested noun, and reports each failure in one line with an exit
code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from penstock import __version__
from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.parser import Parser, shared_options_last, without_command

# noun → its summary in `penstock --help`; the module of the same name defines its verbs and options
NOUNS = {
    "up": "run a broker on this machine without configuration",
    "start": "run a broker from a server.properties file",
    "check": "list which properties of a server.properties file are honoured, ignored and refused",
    "storage": "format and inspect data directories",
    "topic": "create, list, describe, alter, compact and delete topics",
    "config": "describe and change settings of topics, brokers, groups and client metrics",
    "produce": "write records from stdin or files",
    "consume": "read records",
    "group": "list and describe consumer groups, move, export and delete their offsets",
    "share": "list and describe share groups, move and delete their offsets",
    "cluster": "show nodes and partitions, move replicas, compare them",
    "logdir": "show log directories, move replicas between them, even out and empty them",
    "quorum": "describe the metadata quorum, add and remove voters, make its leader resign, write a snapshot",
    "guard": "list nodes in quarantine and release them",
    "operation": "list, describe and cancel the long operations of a node's REST API",
    "events": "list what happened in the cluster: elections, failed brokers, in-sync sets, moves, changes",
    "acl": "list, add and remove ACLs",
    "user": "list SCRAM users, set their passwords and remove them",
    "token": "create, renew, expire and list delegation tokens",
    "txn": "list, describe and abort transactions, and find hanging ones",
    "log": "look inside log files",
    "pipeline": "run and inspect data pipelines on Spark",
    "sim": "run a cluster with faults in virtual time, from one seed",
}

WITH_VERBS = frozenset(
    {
        "acl",
        "user",
        "token",
        "storage",
        "topic",
        "config",
        "group",
        "share",
        "cluster",
        "logdir",
        "guard",
        "operation",
        "quorum",
        "txn",
        "log",
        "pipeline",
    }
)

EPILOG = """\
Every command takes --help. Commands that talk to a broker take --bootstrap HOST:PORT (or PENSTOCK_BOOTSTRAP); results
take --output table|json. Exit codes: 0 done, 1 failed, 2 usage, 3 cannot connect, 4 not found, 5 exists, 6 storage,
7 port taken, 8 timed out, 9 cluster needs attention.
"""


def build_parser(noun: str | None) -> Parser:
    """Builds the parser of all nouns. Only the requested noun gets its verbs and options."""
    parser = Parser(
        prog="penstock",
        description="A replicated log broker that speaks Kafka's protocol.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    nouns = parser.add_subparsers(dest="noun", metavar="COMMAND", required=True)
    for name, summary in NOUNS.items():
        below = nouns.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == noun:
            importlib.import_module(f"penstock.cli.{name}").configure(below)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    words = shared_options_last(sys.argv[1:] if argv is None else argv, WITH_VERBS)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    noun = next((word for word in words if not word.startswith("-")), None)
    parser = build_parser(noun)
    try:
        if problem := without_command(words, NOUNS):
            parser.error(problem)
        args, leftover = parser.parse_known_args(words)
        if leftover:
            args.parser.leftover(leftover)
    except SystemExit as leaving:  # argparse has printed the error or the requested help
        return Exit.USAGE if leaving.code else Exit.OK
    return run(args)


def run(args: argparse.Namespace) -> int:
    try:
        code = args.run(args)
        sys.stdout.flush()
    except Failure as failure:
        if args.debug:
            raise
        output.note(f"penstock: {failure.message}")
        return failure.code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit: redirect it so that this flush can't fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    except Exception as unexpected:
        if args.debug:
            raise
        reason = str(unexpected).splitlines()[0] if str(unexpected) else "no reason given"
        output.note(f"penstock: {type(unexpected).__name__}: {reason} (this is a bug: --debug shows a traceback)")
        return Exit.FAILED
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
