"""`penstock events` lists events of a cluster: elections, failed brokers, changes of in-sync sets, moves, config
changes."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, finish, positive_int
from penstock.client.event_records import read_events, watch_events

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.client.event_records import EventRow

COLUMNS = ["time", "node", "kind", "event"]


def configure(parser: argparse.ArgumentParser) -> None:
    connection(parser)
    parser.add_argument(
        "--kind", metavar="PREFIX", default="", help="only kinds that begin so, such as quorum or broker.fenced"
    )
    parser.add_argument("--node", type=int, metavar="NODE", help="only events that this node emitted")
    parser.add_argument("-n", "--last", type=positive_int, default=50, metavar="COUNT", help="default: %(default)s")
    parser.add_argument("-f", "--follow", action="store_true", help="print new events as they happen, until Ctrl-C")
    finish(parser, run)


def run(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        try:
            if args.follow:
                _follow(broker, args)
            last = _matching(broker.run(read_events(broker.client.asynchronous)), args)[-args.last :]
        except Failure as failure:
            if failure.code is not Exit.NOT_FOUND:
                raise
            raise Failure(
                "This cluster keeps no events: it has one broker, or penstock.events.topic.enable is false. "
                "See the log or /v1/events of each node for the events of that node.",
                Exit.NOT_FOUND,
            ) from failure
    printed = last if args.output == "json" else map(_printed, last)
    output.rows(args.output, COLUMNS, printed, empty="no such events")
    return Exit.OK


def _follow(broker: Broker, args: argparse.Namespace) -> NoReturn:
    """Prints the last events that the cluster has kept, and then new events, each as one line, until Ctrl-C."""
    kept = True

    def show(rows: list[EventRow]) -> None:
        nonlocal kept
        found = _matching(rows, args)
        for row in found[-args.last :] if kept else found:
            text = (
                output.json_text(row) if args.output == "json" else "  ".join(map(output.cell, _printed(row).values()))
            )
            print(text, flush=True)
        kept = False

    broker.run(watch_events(broker.client.asynchronous, show))


def _matching(rows: list[EventRow], args: argparse.Namespace) -> list[EventRow]:
    return [row for row in rows if row["kind"].startswith(args.kind) and args.node in (None, row["node"])]


def _printed(row: EventRow) -> dict[str, object]:
    at = datetime.fromtimestamp(row["at_ms"] / 1000, UTC)
    return {
        "time": f"{at:%Y-%m-%d %H:%M:%S}.{row['at_ms'] % 1000:03d}Z",
        "node": row["node"],
        "kind": row["kind"],
        "event": row["text"],
    }
