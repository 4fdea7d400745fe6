"""`penstock topic trim` deletes the oldest records of a topic, with a request that any Kafka broker serves."""

from __future__ import annotations

import argparse

from penstock.cli import output
from penstock.cli.confirm import ask
from penstock.cli.exit import Exit, Failure

ALL_RECORDS = -1


def run_trim(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, refusals
    from penstock.protocol.vocabulary import EARLIEST, LATEST

    if args.before < ALL_RECORDS:
        raise Failure(f"--before can't be {args.before}: give an offset, or -1 for all records", Exit.USAGE)
    with connect(args) as broker:
        (topic,) = broker.existing([args.topic])
        known = sorted(each.partition_index for each in topic.partitions)
        missing = sorted(set(args.partition) - set(known))
        if missing:
            raise Failure(f"{args.topic} has no partition {missing[0]}: it has {len(known)}", Exit.NOT_FOUND)
        wanted = [(args.topic, index) for index in args.partition or known]
        first, last = broker.offsets(wanted, EARLIEST), broker.offsets(wanted, LATEST)
        end = {key: last[key] if args.before == ALL_RECORDS else args.before for key in wanted}
        # A partition that starts later keeps its records; one that ends earlier would refuse the request.
        before = {key: min(end[key], last[key]) for key in wanted if min(end[key], last[key]) > first[key]}
        rows = [
            {"partition": key[1], "start": first[key], "new_start": at, "records": at - first[key]}
            for key, at in before.items()
        ]
        columns = ["partition", "start", "new_start", "records"]
        output.rows(args.output, columns, rows, empty="no record is that old: nothing to delete")
        if args.dry_run or not before:
            return Exit.OK
        if not args.yes:
            ask(f"delete these records of {args.topic} for good?")
        with refusals():
            broker.client.delete_records(before)
    output.note(f"deleted the records of {output.counted(len(before), 'partition')} of {args.topic}")
    return Exit.OK
