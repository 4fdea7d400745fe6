"""`penstock share` shows share groups with their members, start offsets and lag, and moves or deletes their offsets.

These commands use only requests that any Kafka broker from 4.2 on serves. `share_records` has the commands that need
Penstock.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.cli import output, share_records
from penstock.cli.exit import Exit, Failure
from penstock.cli.group import list_groups
from penstock.cli.group_description import partitions_of, why
from penstock.cli.group_offsets import ends
from penstock.cli.options import connection, verb
from penstock.cli.share_offsets import offsets_of
from penstock.protocol.vocabulary import EARLIEST, LATEST

if TYPE_CHECKING:
    from penstock.cli.connect import Broker

Failures = list[tuple[str, int, str | None]]
SHARE = "share"


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
    to.add_argument("--to-offset", type=int, metavar="N", help="to this offset")
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
                rows += _member_rows(described)
                continue
            offsets = offsets_of(broker, group)
            rows += [
                {
                    "group": group,
                    "state": described.group_state,
                    "topic": topic,
                    "partition": part.partition_index,
                    "start": part.start_offset if part.start_offset >= 0 else None,
                    "lag": part.lag if part.lag >= 0 else None,
                }
                for topic, part in offsets
            ] or [{"group": group, "state": described.group_state}]
    columns = ["group", "member", "client", "host", "epoch", "partitions"]
    if not args.members:
        columns = ["group", "state", "topic", "partition", "start", "lag"]
    output.rows(args.output, columns, rows, empty="nothing to show")
    return Exit.OK


def _describe(broker: Broker, group: str) -> Any:
    from penstock.cli.connect import failure
    from penstock.protocol.errors import ErrorCode
    from penstock.protocol.messages import api_77_share_group_describe as api

    [described] = broker.ask_coordinator(group, api.ShareGroupDescribeRequest(group_ids=[group])).groups
    if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise Failure(f"there is no share group {group!r}: `penstock share list` shows all", Exit.NOT_FOUND)
    if described.error_code:
        raise failure(group, described.error_code, described.error_message)
    return described


def _member_rows(described: Any) -> list[dict[str, Any]]:
    return [
        {
            "group": described.group_id,
            "member": member.member_id,
            "client": member.client_id,
            "host": member.client_host,
            "epoch": member.member_epoch,
            "partitions": [
                f"{topic.topic_name}-{index}"
                for topic in member.assignment.topic_partitions
                for index in topic.partitions
            ],
        }
        for member in described.members
    ]


def run_reset(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome

    with connect(args) as broker:
        if args.topic:
            wanted = [(name, index) for name, some in partitions_of(broker, args.topic).items() for index in some]
        else:
            wanted = [(topic, part.partition_index) for topic, part in offsets_of(broker, args.group)]
        if not wanted:
            raise Failure(f"{args.group} has no offsets: name topics with --topic", Exit.NOT_FOUND)
        if args.to_offset is not None:
            target = dict.fromkeys(wanted, args.to_offset)
        else:
            target = ends(broker, wanted, EARLIEST if args.to_earliest else LATEST)
        failures = [] if args.dry_run else _alter(broker, args.group, target)
    refused = {what for what, _, _ in failures}
    rows = [
        {"group": args.group, "topic": topic, "partition": index, "start": offset}
        for (topic, index), offset in sorted(target.items())
        if f"{topic}-{index}" not in refused and args.group not in refused
    ]
    return outcome(args.output, ["group", "topic", "partition", "start"], rows, failures)


def _alter(broker: Broker, group: str, target: dict[tuple[str, int], int]) -> Failures:
    from penstock.protocol.messages import api_91_alter_share_group_offsets as api

    topics: dict[str, api.AlterShareGroupOffsetsRequestTopic] = {}
    for (name, index), offset in sorted(target.items()):
        topic = topics.setdefault(name, api.AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=[]))
        topic.partitions.append(api.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset))
    request = api.AlterShareGroupOffsetsRequest(group_id=group, topics=list(topics.values()))
    answer = broker.ask_coordinator(group, request)
    if answer.error_code:
        return [(group, answer.error_code, why(answer.error_code))]
    return [
        (f"{topic.topic_name}-{part.partition_index}", part.error_code, part.error_message)
        for topic in answer.responses
        for part in topic.partitions
        if part.error_code
    ]


def run_delete(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome

    rows: list[dict[str, Any]] = []
    failures: Failures = []
    with connect(args) as broker:
        for group in dict.fromkeys(args.groups):
            _describe(broker, group)
            problems = _delete_offsets(broker, group, args.topic) if args.topic else _delete(broker, group)
            failures += problems
            if not problems:
                rows.append({"group": group, "result": "offsets deleted" if args.topic else "deleted"})
    return outcome(args.output, ["group", "result"], rows, failures)


def _delete(broker: Broker, group: str) -> Failures:
    from penstock.protocol.messages import api_42_delete_groups as api

    answer = broker.ask_coordinator(group, api.DeleteGroupsRequest(groups_names=[group]))
    return [(each.group_id, each.error_code, why(each.error_code)) for each in answer.results if each.error_code]


def _delete_offsets(broker: Broker, group: str, topics: Iterable[str]) -> Failures:
    from penstock.protocol.messages import api_92_delete_share_group_offsets as api

    wanted = [api.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
    answer = broker.ask_coordinator(group, api.DeleteShareGroupOffsetsRequest(group_id=group, topics=wanted))
    if answer.error_code:
        return [(group, answer.error_code, why(answer.error_code))]
    return [
        (f"{group} {each.topic_name}", each.error_code, each.error_message)
        for each in answer.responses
        if each.error_code
    ]
