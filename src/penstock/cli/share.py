"""`penstock share` shows share groups with their members, start offsets and lag, and moves or deletes their offsets.

These commands use only requests that any Kafka broker from 4.2 on serves. `share_records` has the commands that need
Penstock.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from penstock.cli import output, share_records
from penstock.cli.exit import Exit, Failure
from penstock.cli.group import list_groups
from penstock.cli.group_description import partitions_of, why
from penstock.cli.group_offsets import ends
from penstock.cli.options import connection, verb
from penstock.client.group_members import partition_names
from penstock.client.share_admin import SHARE, members_of, offset_rows
from penstock.protocol.vocabulary import EARLIEST, LATEST

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.client.share_admin import Refusal


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    listing = verb(verbs, "list", "list share groups", run_list)
    connection(listing)

    describe = verb(verbs, "describe", "show start offsets and lag", run_describe)
    connection(describe)
    describe.add_argument("groups", nargs="*", metavar="GROUP", help="default: all")
    describe.add_argument("--members", action="store_true", help="members and their partitions instead of offsets")

    reset = verb(verbs, "reset", "move the start offsets of a group without members", run_reset)
    connection(reset)
    reset.add_argument("group", metavar="GROUP")
    reset.add_argument(
        "-t", "--topic", action="append", default=[], metavar="TOPIC[:0,1]", help="repeatable; default: all its topics"
    )
    to = reset.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-earliest", action="store_true", help="to the first available record")
    to.add_argument("--to-latest", action="store_true", help="behind the last record: everything before it is done")
    to.add_argument("--to-offset", type=int, metavar="N", help="to this offset, or the nearest that exists")
    reset.add_argument("--dry-run", action="store_true", help="only show the changes")

    share_records.configure(verbs)

    delete = verb(verbs, "delete", "delete groups without members, with their offsets", run_delete)
    connection(delete)
    delete.add_argument("groups", nargs="+", metavar="GROUP")
    delete.add_argument(
        "-t", "--topic", action="append", default=[], help="only the offsets of this topic (repeatable)"
    )


def run_list(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        found = list_groups(broker, types=[SHARE])
    output.rows(args.output, ["group", "state", "coordinator"], found, empty="no share groups")
    return Exit.OK


def run_describe(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    rows: list[dict[str, Any]] = []
    with connect(args) as broker:
        groups = args.groups or [str(each["group"]) for each in list_groups(broker, types=[SHARE])]
        for group in groups:
            described = _describe(broker, group)
            if args.members:
                rows += [
                    {"group": group, **row, "partitions": partition_names(partitions)}
                    for row, partitions in members_of(described)
                ]
                continue
            known = {"group": group, "state": described.group_state}
            rows += [{**known, **row} for row in offset_rows(broker.run(broker.share.offsets(group)))] or [known]
    columns = ["group", "member", "client", "host", "epoch", "partitions"]
    if not args.members:
        columns = ["group", "state", "topic", "partition", "start", "lag"]
    output.rows(args.output, columns, rows, empty="nothing to show")
    return Exit.OK


def _describe(broker: Broker, group: str) -> Any:
    try:
        return broker.run(broker.share.describe(group))
    except Failure as failure:
        if failure.code is not Exit.NOT_FOUND:
            raise
        raise Failure(f"{failure.message}: `penstock share list` shows all share groups", Exit.NOT_FOUND) from failure


def run_reset(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome

    with connect(args) as broker:
        if args.topic:
            wanted = [(name, index) for name, some in partitions_of(broker, args.topic).items() for index in some]
        else:
            wanted = [(topic, part.partition_index) for topic, part in broker.run(broker.share.offsets(args.group))]
        if not wanted:
            raise Failure(f"{args.group} has no offsets: name topics with --topic", Exit.NOT_FOUND)
        if args.to_offset is not None:
            first, last = ends(broker, wanted, EARLIEST), ends(broker, wanted, LATEST)
            target = {
                each: min(max(args.to_offset, first.get(each, 0)), last.get(each, args.to_offset)) for each in wanted
            }
        else:
            target = ends(broker, wanted, EARLIEST if args.to_earliest else LATEST)
        failures = [] if args.dry_run else broker.run(broker.share.alter_offsets(args.group, target))
    refused = {each.what for each in failures}
    rows = [
        {"group": args.group, "topic": topic, "partition": index, "start": offset}
        for (topic, index), offset in sorted(target.items())
        if f"{topic}-{index}" not in refused and args.group not in refused
    ]
    columns = ["group", "topic", "partition", "start"]
    return outcome(args.output, columns, rows, [_with_reason(each) for each in failures])


def _with_reason(refusal: Refusal) -> tuple[str, int, str | None]:
    return refusal.what, refusal.code, why(refusal.code) or refusal.message


def run_delete(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome

    rows: list[dict[str, Any]] = []
    failures: list[tuple[str, int, str | None]] = []
    with connect(args) as broker:
        for group in dict.fromkeys(args.groups):
            _describe(broker, group)
            if args.topic:
                problems = [_with_reason(each) for each in broker.run(broker.share.delete_offsets(group, args.topic))]
            else:
                problems = _delete(broker, group)
            failures += problems
            if not problems:
                rows.append({"group": group, "result": "offsets deleted" if args.topic else "deleted"})
    return outcome(args.output, ["group", "result"], rows, failures)


def _delete(broker: Broker, group: str) -> list[tuple[str, int, str | None]]:
    from penstock.protocol.messages import api_42_delete_groups as api

    answer = broker.ask_coordinator(group, api.DeleteGroupsRequest(groups_names=[group]))
    return [(each.group_id, each.error_code, why(each.error_code)) for each in answer.results if each.error_code]
