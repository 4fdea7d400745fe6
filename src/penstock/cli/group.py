"""`penstock group` shows consumer groups with their members, offsets and lag, and changes their offsets.

It uses only requests that any Kafka broker serves. Groups of the classic and of the consumer protocol are shown in the
same form.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.exit import Exit
from penstock.cli.group_description import describe, partitions_of, why
from penstock.cli.options import connection, duration, verb
from penstock.protocol.vocabulary import LATEST

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.client.group_members import Described


def configure(parser: argparse.ArgumentParser) -> None:
    from penstock.cli import group_offsets

    verbs = parser.add_subparsers(metavar="VERB", required=True)

    listing = verb(verbs, "list", "list groups", run_list)
    connection(listing)
    listing.add_argument("--state", action="append", default=[], help="Empty, Stable, … (repeatable)")
    listing.add_argument("--type", action="append", default=[], help="classic, consumer, share or streams (repeatable)")

    describe = verb(verbs, "describe", "show committed offsets, lag and the owners of partitions", run_describe)
    connection(describe)
    describe.add_argument("groups", nargs="*", metavar="GROUP", help="default: all")
    describe.add_argument("--members", action="store_true", help="members and their partitions instead of offsets")

    reset = verb(
        verbs, "reset-offsets", "move the committed offsets of a group without members", group_offsets.run_reset
    )
    connection(reset)
    reset.add_argument("group", metavar="GROUP")
    reset.add_argument(
        "-t",
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:0,1]",
        help="repeatable; default: all committed partitions",
    )
    to = reset.add_mutually_exclusive_group(required=True)
    to.add_argument("--to-earliest", action="store_true", help="to the first available record")
    to.add_argument("--to-latest", action="store_true", help="behind the last record")
    to.add_argument("--to-current", action="store_true", help="to the current offsets: commits them again")
    to.add_argument("--to-offset", type=int, metavar="N", help="to this offset, or the nearest that exists")
    to.add_argument("--shift-by", type=int, metavar="N", help="forward, or back with a negative number")
    to.add_argument(
        "--to-time", metavar="TIME", help="to the first record at or after 2026-01-31T12:00:00 or milliseconds"
    )
    to.add_argument(
        "--by-duration", type=duration, metavar="2h", help="to the first record after now minus this duration"
    )
    to.add_argument("--from-file", metavar="FILE", help="to the offsets of an `export` file; - for stdin")
    reset.add_argument("--dry-run", action="store_true", help="only show the changes")

    export = verb(verbs, "export", "print committed offsets as topic,partition,offset lines", group_offsets.run_export)
    connection(export)
    export.add_argument("group", metavar="GROUP")

    delete = verb(verbs, "delete", "delete groups without members, with their offsets", run_delete)
    connection(delete)
    delete.add_argument("groups", nargs="+", metavar="GROUP")
    delete.add_argument(
        "-t",
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC",
        help="only the offsets of this topic (repeatable)",
    )


# --- list, delete -------------------------------------------------------------------------------------------------


def run_list(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        found = list_groups(broker, args.state, args.type)
    output.rows(args.output, ["group", "type", "protocol", "state", "coordinator"], found, empty="no groups")
    return Exit.OK


def list_groups(broker: Broker, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[dict[str, Any]]:
    return broker.run(broker.groups.list(states, types))


def run_delete(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome

    rows: list[dict[str, Any]] = []
    failures: list[tuple[str, int, str | None]] = []
    with connect(args) as broker:
        for group in dict.fromkeys(args.groups):
            if args.topic:
                _delete_offsets(broker, group, args.topic, rows, failures)
            else:
                _delete_group(broker, group, rows, failures)
    columns = ["group", "topic", "result"] if args.topic else ["group", "result"]
    return outcome(args.output, columns, rows, failures)


def _delete_group(
    broker: Broker, group: str, rows: list[dict[str, Any]], failures: list[tuple[str, int, str | None]]
) -> None:
    from penstock.protocol.messages import api_42_delete_groups as api

    answer: api.DeleteGroupsResponse = broker.ask_coordinator(group, api.DeleteGroupsRequest(groups_names=[group]))
    for result in answer.results:
        if result.error_code:
            failures.append((result.group_id, result.error_code, why(result.error_code)))
        else:
            rows.append({"group": result.group_id, "result": "deleted"})


def _delete_offsets(
    broker: Broker,
    group: str,
    topics: Sequence[str],
    rows: list[dict[str, Any]],
    failures: list[tuple[str, int, str | None]],
) -> None:
    from penstock.protocol.messages import api_47_offset_delete as api

    request = api.OffsetDeleteRequest(
        group_id=group,
        topics=[
            api.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[api.OffsetDeleteRequestPartition(partition_index=index) for index in indexes],
            )
            for topic, indexes in partitions_of(broker, topics).items()
        ],
    )
    answer: api.OffsetDeleteResponse = broker.ask_coordinator(group, request)
    if answer.error_code:
        failures.append((group, answer.error_code, why(answer.error_code)))
        return
    for topic in answer.topics:
        codes = {partition.error_code for partition in topic.partitions if partition.error_code}
        failures += [(f"{group} {topic.name}", code, why(code)) for code in sorted(codes)]
        if not codes:
            rows.append({"group": group, "topic": topic.name, "result": "offsets deleted"})


# --- describe -----------------------------------------------------------------------------------------------------


def run_describe(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect
    from penstock.cli.group_offsets import committed, ends
    from penstock.client.group_admin import lag_rows, partitions_of_group

    rows: list[dict[str, Any]] = []
    with connect(args) as broker:
        known = list_groups(broker, types=["classic", "consumer", "streams"]) if not args.groups else []
        groups = args.groups or [str(each["group"]) for each in known]
        for group in groups:
            described = describe(broker, group)
            if described.truncated:
                output.note(f"{group}: the assignments are too long, and the last partitions in them are not shown")
            if args.members:
                rows += _member_rows(group, described)
                continue
            offsets = committed(broker, group)
            partitions = broker.run(partitions_of_group(described, offsets))
            last = ends(broker, partitions, LATEST)
            found = lag_rows(partitions, described, offsets, last) or [{}]
            rows += [{"group": group, "state": described.state, **row} for row in found]
    if args.members:
        columns = ["group", "member", "instance", "client", "host", "partitions"]
    else:
        columns = ["group", "state", "topic", "partition", "committed", "end", "lag", "member", "client", "host"]
    output.rows(args.output, columns, rows, empty="nothing to show")
    return Exit.OK


def _member_rows(group: str, described: Described) -> list[dict[str, Any]]:
    from penstock.client.group_members import partition_names

    return [
        {
            "group": group,
            "member": member.member,
            "instance": member.instance,
            "client": member.client,
            "host": member.host,
            "partitions": partition_names(partitions),
        }
        for member, partitions in described.members.items()
    ]
