"""`penstock events` lists events of a cluster: elections, failed brokers, changes of in-sync sets, moves, config
changes."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, finish, positive_int

if TYPE_CHECKING:
    from penstock.client.event_records import EventRow

COLUMNS = ["time", "node", "kind", "event"]


def configure(parser: argparse.ArgumentParser) -> None:
    connection(parser)
    parser.add_argument(
        "--kind", metavar="PREFIX", default="", help="only kinds that begin so, such as quorum or broker.fenced"
    )
    parser.add_argument("--node", type=int, metavar="NODE", help="only events that this node emitted")
    parser.add_argument("-n", "--last", type=positive_int, default=50, metavar="COUNT", help="default: %(default)s")
    finish(parser, run)


def run(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect
    from penstock.client.event_records import read_events

    with connect(args) as broker:
        try:
            rows = broker.run(read_events(broker.client.asynchronous))
        except Failure as failure:
            if failure.code is not Exit.NOT_FOUND:
                raise
            raise Failure(
                "This cluster keeps no events: it has one broker, or penstock.events.topic.enable is false. "
                "Each node's log and /v1/events have its own events.",
                Exit.NOT_FOUND,
            ) from failure
    shown = [row for row in rows if row["kind"].startswith(args.kind) and args.node in (None, row["node"])]
    last = shown[-args.last :]
    printed = last if args.output == "json" else map(_printed, last)
    output.rows(args.output, COLUMNS, printed, empty="no such events")
    return Exit.OK


def _printed(row: EventRow) -> dict[str, object]:
    at = datetime.fromtimestamp(row["at_ms"] / 1000, UTC)
    return {
        "time": f"{at:%Y-%m-%d %H:%M:%S}.{row['at_ms'] % 1000:03d}Z",
        "node": row["node"],
        "kind": row["kind"],
        "event": row["text"],
    }
