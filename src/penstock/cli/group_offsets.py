"""`penstock group reset-offsets` moves the committed offsets of a group, and `penstock group export` saves them."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.group_description import describe, partitions_of, why
from penstock.cli.position import parse_time
from penstock.protocol.vocabulary import EARLIEST, LATEST

if TYPE_CHECKING:
    from penstock.cli.connect import Broker


Partition = tuple[str, int]
Offsets = dict[Partition, int]


def committed(broker: Broker, group: str) -> Offsets:
    return broker.run(broker.groups.committed(group))


def ends(broker: Broker, partitions: Iterable[Partition], when: int) -> Offsets:
    """Returns the partitions' offsets for a timestamp, EARLIEST or LATEST. Leaves out deleted partitions."""
    return broker.run(broker.groups.offsets_at(partitions, when))


# --- export -------------------------------------------------------------------------------------------------------


def run_export(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        describe(broker, args.group)
        offsets = committed(broker, args.group)
    if args.output == "json":
        listed = [
            {"topic": topic, "partition": index, "offset": offset} for (topic, index), offset in sorted(offsets.items())
        ]
        output.rows("json", (), listed)
    else:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([output.printable(topic), index, offset] for (topic, index), offset in sorted(offsets.items()))
    return Exit.OK


def read_export(path: str) -> Offsets:
    try:
        if path == "-":
            text = sys.stdin.read()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
    except OSError as problem:
        raise Failure(f"{path} can't be read: {problem.strerror}", Exit.NOT_FOUND) from problem
    try:
        if text.lstrip().startswith("["):
            return {(each["topic"], int(each["partition"])): int(each["offset"]) for each in json.loads(text)}
        return {(row[0], int(row[1])): int(row[2]) for row in csv.reader(text.splitlines()) if row}
    except (ValueError, KeyError, IndexError, TypeError):
        raise Failure(f"{path}: every line must be topic,partition,offset, as `export` writes it", Exit.USAGE) from None


# --- reset --------------------------------------------------------------------------------------------------------


def run_reset(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome

    with connect(args) as broker:
        current = committed(broker, args.group)
        given = read_export(args.from_file) if args.from_file is not None else {}
        wanted = _wanted(broker, args.topic, given or current)
        if not wanted:
            raise Failure(f"{args.group} has no committed offsets: name topics with --topic", Exit.NOT_FOUND)
        target = _target(broker, args, wanted, current, given)
        failures = [] if args.dry_run else _commit(broker, args.group, target)
    refused = {what for what, _, _ in failures}
    rows = [
        {
            "group": args.group,
            "topic": topic,
            "partition": index,
            "before": current.get((topic, index)),
            "after": offset,
            "result": "would be reset" if args.dry_run else "reset",
        }
        for (topic, index), offset in sorted(target.items())
        if f"{topic}-{index}" not in refused
    ]
    return outcome(args.output, ["group", "topic", "partition", "before", "after", "result"], rows, failures)


def _wanted(broker: Broker, topics: Collection[str], committed_before: Collection[Partition]) -> list[Partition]:
    """Returns the partitions that arguments such as `orders` and `orders:0,2` name.

    Without arguments, returns all partitions that have a committed offset.
    """
    if not topics:
        return sorted(committed_before)
    wanted: list[Partition] = []
    for text in topics:
        name, colon, indexes = text.partition(":")
        known = partitions_of(broker, [name])[name]
        try:
            chosen = [int(index) for index in indexes.split(",")] if colon else known
        except ValueError:
            raise Failure(f"--topic takes TOPIC or TOPIC:0,1, not {text!r}", Exit.USAGE) from None
        missing = set(chosen) - set(known)
        if missing:
            raise Failure(
                f"{name} has no partition {min(missing)}: `penstock topic describe {name}` shows its partitions",
                Exit.NOT_FOUND,
            )
        wanted += [(name, index) for index in chosen]
    return sorted(set(wanted))


def _target(
    broker: Broker, args: argparse.Namespace, wanted: list[Partition], current: Offsets, given: Offsets
) -> Offsets:
    first, last = ends(broker, wanted, EARLIEST), ends(broker, wanted, LATEST)
    gone = [partition for partition in wanted if partition not in last]
    if gone:
        raise Failure(f"{gone[0][0]}-{gone[0][1]} does not exist any more: name topics with --topic", Exit.NOT_FOUND)
    choose = _chooser(broker, args, wanted, current, given, first, last)
    return {
        partition: min(max(choose(partition), first[partition]), last[partition])
        for partition in wanted
        if args.from_file is None or partition in given
    }


def _chooser(
    broker: Broker,
    args: argparse.Namespace,
    wanted: list[Partition],
    current: Offsets,
    given: Offsets,
    first: Offsets,
    last: Offsets,
) -> Callable[[Partition], int]:
    if args.to_earliest:
        return first.__getitem__
    if args.to_latest:
        return last.__getitem__
    if args.to_current:
        return lambda partition: current.get(partition, last[partition])
    if args.to_offset is not None:
        return lambda _partition: int(args.to_offset)
    if args.shift_by is not None:
        return lambda partition: current.get(partition, last[partition]) + int(args.shift_by)
    if args.from_file is not None:
        return lambda partition: given.get(partition, first[partition])
    when = parse_time(args.to_time) if args.to_time is not None else _now_ms() - args.by_duration
    at_time = ends(broker, wanted, when)
    return lambda partition: at_time[partition] if at_time.get(partition, -1) >= 0 else last[partition]


def _now_ms() -> int:
    import time

    return time.time_ns() // 1_000_000


def _commit(broker: Broker, group: str, target: Offsets) -> list[tuple[str, int, str | None]]:
    refused = broker.run(broker.groups.commit(group, target))
    return [(f"{topic}-{index}", code, why(code)) for (topic, index), code in refused.items()]
