"""`penstock share inspect|release|archive|drain` shows or changes the records in flight of a running share group.

The commands send their requests to the leaders of the partitions, which must be Penstock brokers: other brokers answer
that there is no such share session.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, verb
from penstock.cli.share_offsets import offsets_of
from penstock.protocol.vocabulary import SHARE_OPERATOR, Acknowledge

if TYPE_CHECKING:
    from penstock.cli.connect import Broker

FINAL_EPOCH = -1
PARTITIONS_AT_ONCE = 100
COLUMNS = ["topic", "partition", "first", "last", "state", "deliveries", "member", "held_ms", "lock_ms", "delay_ms"]


class Place(NamedTuple):
    """Holds a partition, and the node that leads it."""

    leader: int
    topic: str
    topic_id: bytes
    partition: int


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
        windows = list(_windows(broker, args.group, args.topic))
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
        [place] = _places(broker, {args.topic: [args.partition]})
        failures = _send(broker, args.group, place, first, last, kind)
    row = {"group": args.group, "topic": args.topic, "partition": args.partition, "first": first, "last": last}
    rows = [] if failures else [{**row, "result": result}]
    return outcome(args.output, ["group", "topic", "partition", "first", "last", "result"], rows, failures)


def run_drain(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome

    rows: list[dict[str, Any]] = []
    failures: list[tuple[str, int, str | None]] = []
    with connect(args) as broker:
        found = list(_windows(broker, args.group, args.topic))
        if all(each["state"] == "idle" for each in found):
            raise Failure(
                f"no member of {args.group} fetches records, so none is in flight and nothing was archived: "
                f"`penstock share reset {args.group} --to-latest` drops the records that are left",
                Exit.FAILED,
            )
        windows = [each for each in found if _in_flight(each)]
        places = {
            (place.topic, place.partition): place
            for place in _places(broker, _by_topic((each["topic"], each["partition"]) for each in windows))
        }
        for window in windows:
            topic, index = window["topic"], window["partition"]
            first, last = window["start_offset"], window["end_offset"] - 1
            problems = []
            if not args.dry_run:
                problems = _send(broker, args.group, places[topic, index], first, last, Acknowledge.REJECT)
            failures += problems
            if not problems:
                rows.append({"topic": topic, "partition": index, "records": _in_flight(window)})
    if not windows:
        output.note("no records in flight: nothing was archived")
    return outcome(args.output, ["topic", "partition", "records"], rows, failures)


def _in_flight(window: dict[str, Any]) -> int:
    return sum(window.get(name, 0) for name in ("available", "acquired", "delayed"))


def _offsets(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    try:
        found = int(first), int(last or first)
    except ValueError:
        raise Failure(f"give an offset or a range such as 5-9, not {text!r}", Exit.USAGE) from None
    if found[1] < found[0]:
        raise Failure(f"the range {text} ends before it begins: give the lower offset first", Exit.USAGE)
    return found


def _windows(broker: Broker, group: str, topics: list[str]) -> Iterator[dict[str, Any]]:
    """Yields the description of each partition of the group, in the order of topics and partitions."""
    from penstock.cli.connect import failure

    wanted = [(topic, part.partition_index) for topic, part in offsets_of(broker, group)]
    if topics:
        missing = set(topics) - {topic for topic, _ in wanted}
        if missing:
            raise Failure(f"{group} has no offsets in {', '.join(sorted(missing))}: check the name", Exit.NOT_FOUND)
        wanted = [(topic, index) for topic, index in wanted if topic in topics]
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for some in _portions(_places(broker, _by_topic(wanted))):
        for place, answer in _ask(broker, group, some, {}):
            if answer.error_code:
                raise failure(f"{place.topic}-{place.partition}", answer.error_code, answer.error_message)
            row = json.loads(answer.error_message)
            found[place.topic, place.partition] = {**row, "topic": place.topic, "partition": place.partition}
    for key in sorted(found):
        yield found[key]


def _by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in partitions:
        found.setdefault(topic, []).append(index)
    return found


def _places(broker: Broker, wanted: dict[str, list[int]]) -> list[Place]:
    """Returns the partitions with their leaders. Raises Failure if a partition does not exist or has no leader."""
    found = []
    for topic in broker.existing(list(wanted)) if wanted else ():
        leaders = {part.partition_index: part.leader_id for part in topic.partitions}
        for index in wanted[topic.name or ""]:
            if leaders.get(index, -1) < 0:
                raise Failure(
                    f"{topic.name}-{index} does not exist or has no leader: check the partition's number",
                    Exit.NOT_FOUND,
                )
            found.append(Place(leaders[index], topic.name or "", topic.topic_id, index))
    return sorted(found)


def _portions(places: list[Place]) -> Iterator[list[Place]]:
    """Divides the partitions by leader, into lists that fit into one request each."""
    for leader in sorted({place.leader for place in places}):
        led = [place for place in places if place.leader == leader]
        for first in range(0, len(led), PARTITIONS_AT_ONCE):
            yield led[first : first + PARTITIONS_AT_ONCE]


def _send(
    broker: Broker, group: str, place: Place, first: int, last: int, kind: Acknowledge
) -> list[tuple[str, int, str | None]]:
    """Releases or archives records of a partition. Returns the failure in a list; an empty list after success."""
    [(_, answer)] = _ask(broker, group, [place], {"first": first, "last": last, "kind": kind})
    if not answer.error_code:
        return []
    return [(f"{place.topic}-{place.partition}", answer.error_code, answer.error_message)]


def _ask(broker: Broker, group: str, places: list[Place], change: dict[str, int]) -> list[tuple[Place, Any]]:
    """Sends an operator's request to the leader of these partitions. Returns the answer for each partition."""
    from penstock.cli.connect import failure
    from penstock.protocol.errors import ErrorCode
    from penstock.protocol.messages import api_79_share_acknowledge as api

    topics: dict[bytes, api.AcknowledgeTopic] = {}
    for place in places:
        topic = topics.setdefault(place.topic_id, api.AcknowledgeTopic(topic_id=place.topic_id))
        partition = api.AcknowledgePartition(partition_index=place.partition)
        if change:
            batch = api.AcknowledgementBatch(first_offset=change["first"], last_offset=change["last"])
            batch.acknowledge_types = [change["kind"]]
            partition.acknowledgement_batches = [batch]
        topic.partitions.append(partition)
    request = api.ShareAcknowledgeRequest(
        group_id=group, member_id=SHARE_OPERATOR, share_session_epoch=FINAL_EPOCH, topics=list(topics.values())
    )
    answer = broker.ask(request, node=places[0].leader)
    if answer.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND:
        raise Failure(
            f"node {places[0].leader} can't show records in flight: this needs a Penstock broker", Exit.FAILED
        )
    if answer.error_code:
        raise failure(group, answer.error_code, answer.error_message)
    answers = {(topic.topic_id, part.partition_index): part for topic in answer.responses for part in topic.partitions}
    return [(place, answers[place.topic_id, place.partition]) for place in places]
