"""`penstock operation` lists, describes and cancels the long operations that a node runs for REST clients."""

from __future__ import annotations

import argparse

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import positive_int, verb
from penstock.cli.rest import OPERATION, SUMMARY, rest, rest_options

COLUMNS = ["operation", "kind", "state", "done", "total", "by", "about"]


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    listing = verb(verbs, "list", "list the operations of a node, the newest first", run_list)
    rest_options(listing)

    describe = verb(verbs, "describe", "show progress, notes and result of an operation", run_describe)
    rest_options(describe)
    describe.add_argument("operation", type=positive_int, metavar="NUMBER")

    cancel = verb(verbs, "cancel", "cancel an operation; moves that the cluster has begun continue", run_cancel)
    rest_options(cancel)
    cancel.add_argument("operation", type=positive_int, metavar="NUMBER")


def run_list(args: argparse.Namespace) -> int:
    found = rest(args).ask("GET", "/v1/operations?limit=1000", shape={"operations": [SUMMARY]})["operations"]
    rows = [{**each, "done": each["progress"]["done"], "total": each["progress"]["total"]} for each in found]
    output.rows(args.output, COLUMNS, rows, empty="no operation has run on this node")
    return Exit.OK


def run_describe(args: argparse.Namespace) -> int:
    output.record(args.output, rest(args).ask("GET", f"/v1/operations/{args.operation}", shape=OPERATION))
    return Exit.OK


def run_cancel(args: argparse.Namespace) -> int:
    answer = rest(args).ask("POST", f"/v1/operations/{args.operation}/cancel", {}, shape={"cancelled": bool})
    if not answer["cancelled"]:
        raise Failure(f"operation {args.operation} has ended already", Exit.FAILED)
    output.note(f"operation {args.operation} is cancelled")
    return Exit.OK
