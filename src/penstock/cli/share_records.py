"""`penstock share inspect|release|archive|drain` shows and changes the records in flight of a running share group.

The commands send their requests to the leaders of the partitions, which must be Penstock brokers: other brokers answer
that there is no such share session.
"""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, verb
from penstock.client.share_admin import Refusal, in_flight, is_idle
from penstock.protocol.vocabulary import Acknowledge

COLUMNS = ["topic", "partition", "first", "last", "state", "deliveries", "member", "held_ms", "lock_ms", "delay_ms"]


def configure(verbs: Any) -> None:
    inspect = verb(verbs, "inspect", "show the records in flight, and who holds them for how long", run_inspect)
    connection(inspect)
    inspect.add_argument("group", metavar="GROUP")
    inspect.add_argument("-t", "--topic", action="append", default=[], help="repeatable; default: all its topics")
    inspect.add_argument("--windows", action="store_true", help="one row per partition: window, counts, dead letters")
    for name, about, run in (
        ("release", "make records in flight available at once", run_release),
        ("archive", "give up records in flight (with dead letters if the group has them)", run_archive),
    ):
        one = verb(verbs, name, about, run)
        connection(one)
        one.add_argument("group", metavar="GROUP")
        one.add_argument("topic", metavar="TOPIC")
        one.add_argument("partition", type=int, metavar="PARTITION")
        one.add_argument("offsets", metavar="OFFSET[-LAST]")
    drain = verb(verbs, "drain", "archive all records in flight of a running group", run_drain)
    connection(drain)
    drain.add_argument("group", metavar="GROUP")
    drain.add_argument("-t", "--topic", action="append", default=[], help="repeatable; default: all its topics")
    drain.add_argument("--dry-run", action="store_true", help="only show what would be archived")


def run_inspect(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        windows = broker.run(broker.share.windows(args.group, args.topic))
    if args.windows:
        columns = ["topic", "partition", "state", "start_offset", "end_offset", "available", "acquired", "delayed"]
        columns += ["complete", "waiting_for_dead_letters", "dead_letter_topic", "dead_letter_error"]
        output.rows(args.output, columns, windows, empty="nothing to show")
        return Exit.OK
    rows = [
        {"topic": window["topic"], "partition": window["partition"], **run}
        for window in windows
        for run in window.get("records", ())
    ]
    output.rows(args.output, COLUMNS, rows, empty="no records in flight")
    return Exit.OK


def run_release(args: argparse.Namespace) -> int:
    return _change(args, Acknowledge.RELEASE, "released")


def run_archive(args: argparse.Namespace) -> int:
    return _change(args, Acknowledge.REJECT, "archived")


def _change(args: argparse.Namespace, kind: Acknowledge, result: str) -> int:
    from penstock.cli.connect import connect, outcome

    first, last = _offsets(args.offsets)
    with connect(args) as broker:
        place = (args.topic, args.partition)
        refusal = broker.run(broker.share.change(args.group, place, first, last, kind))
    row = {"group": args.group, "topic": args.topic, "partition": args.partition, "first": first, "last": last}
    rows = [{**row, "result": result}] if refusal is None else []
    columns = ["group", "topic", "partition", "first", "last", "result"]
    return outcome(args.output, columns, rows, [] if refusal is None else [refusal])


def run_drain(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome

    with connect(args) as broker:
        found = broker.run(broker.share.windows(args.group, args.topic))
        if is_idle(found):
            raise Failure(
                f"no member of {args.group} fetches records, so no record is in flight and nothing was archived: "
                f"`penstock share reset {args.group} --to-latest` drops the records that are left",
                Exit.FAILED,
            )
        windows = [each for each in found if in_flight(each)]

        async def drained() -> list[tuple[dict[str, Any], Refusal | None]]:
            return [each async for each in broker.share.drain(args.group, windows)]

        results = [(each, None) for each in windows] if args.dry_run else broker.run(drained())
    if not windows:
        output.note("no records in flight: nothing was archived")
    rows = [
        {"topic": window["topic"], "partition": window["partition"], "records": in_flight(window)}
        for window, refusal in results
        if refusal is None
    ]
    failures = [refusal for _, refusal in results if refusal is not None]
    return outcome(args.output, ["topic", "partition", "records"], rows, failures)


def _offsets(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    try:
        found = int(first), int(last or first)
    except ValueError:
        raise Failure(f"give an offset or a range such as 5-9, not {text!r}", Exit.USAGE) from None
    if found[1] < found[0]:
        raise Failure(f"the range {text} ends before it begins: give the lower offset first", Exit.USAGE)
    return found
