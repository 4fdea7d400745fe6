"""`penstock consume` writes the records of topics to stdout, with kcat's options.

penstock consume -t numbers -e                     all records up to the end, then exit
penstock consume -t numbers -o -10 -e              the last ten records of every partition
penstock consume -t numbers -o s@2026-01-31T12:00:00 -o e@2026-01-31T13:00:00
penstock consume -t numbers -f '%t/%p@%o: %s\\n'
penstock consume -t orders -s value=avro -r https://registry:8081
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.envelope import envelopes
from penstock.cli.exit import Exit, Failure
from penstock.cli.format import Formatter, Place, as_written, compile_format, delimited, for_terminal, unescape
from penstock.cli.options import connection, expect_many_objects, finish, positive_int
from penstock.cli.position import Absolute, AtTime, Beginning, End, Last, Position, Stored, parse_span
from penstock.cli.record_views import add_views, decoder
from penstock.protocol.vocabulary import EARLIEST, LATEST, TopicPartition

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.client.fetched import Fetched

POLL_S = 1.0


def configure(parser: argparse.ArgumentParser) -> None:
    connection(parser)
    parser.add_argument("-t", "--topic", action="append", required=True, help="may be repeated")
    parser.add_argument("-p", "--partition", type=int, action="append", help="default: all; may be repeated")
    parser.add_argument(
        "-o",
        "--offset",
        action="append",
        default=[],
        metavar="WHERE",
        help="beginning, end, stored, N, -N (the last N), s@TIME to start and e@TIME to stop (default: beginning)",
    )
    parser.add_argument("-G", "--group", help="consumer group whose stored offsets to use")
    parser.add_argument("--commit", action="store_true", help="store the read position for the group")
    parser.add_argument("--contains", default="", metavar="TEXT", help="only records with this text in key or value")
    parser.add_argument("-c", "--count", type=positive_int, help="exit after so many records")
    parser.add_argument("-e", "--exit", action="store_true", help="exit at the end offset of the time of the start")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("-f", "--format", metavar="TEXT", help="%%t %%p %%o %%T %%k %%s %%h %%K %%S %%R %%%% \\n \\t …")
    shown.add_argument("-J", "--json", action="store_true", help="one JSON object per record")
    parser.add_argument("-K", "--key-delimiter", metavar="TEXT", help="print keys too, and this between key and value")
    parser.add_argument(
        "-D", "--delimiter", default="\\n", metavar="TEXT", help="after each record (default: %(default)s)"
    )
    add_views(parser)
    parser.add_argument("-Z", "--null", action="store_true", help="print null keys and values as NULL")
    parser.add_argument(
        "-u", "--unbuffered", action="store_true", help="as for kcat; records are always written as they arrive"
    )
    parser.add_argument("-X", "--property", action="append", default=[], metavar="NAME=VALUE", help="a client setting")
    parser.add_argument("-q", "--quiet", action="store_true", help="print records only")
    finish(parser, run)


def formatter(args: argparse.Namespace) -> Formatter:
    null = b"NULL" if args.null else b""
    shown = for_terminal if sys.stdout.isatty() else as_written
    if args.json or args.output == "json":
        return envelopes
    if args.format is not None:
        return compile_format(args.format, null=null, shown=shown)
    key_delimiter = None if args.key_delimiter is None else unescape(args.key_delimiter)
    return delimited(key_delimiter=key_delimiter, delimiter=unescape(args.delimiter), null=null, shown=shown)


def run(args: argparse.Namespace) -> int:
    from penstock.cli.client_properties import consumer_settings
    from penstock.cli.connect import connect, refusals
    from penstock.client.consumer import ConsumerSettings

    expect_many_objects()
    show, decoding = formatter(args), decoder(args)
    if decoding is not None:
        show = decoding.formatter(show)
    span = parse_span(args.offset, Stored() if args.group else Beginning())
    if (isinstance(span.start, Stored) or args.commit) and not args.group:
        raise Failure("`-o stored` and --commit need a group: name it with --group", Exit.USAGE)
    settings = consumer_settings(args.property, ConsumerSettings(reset=EARLIEST))
    progress = output.Progress("consumed", total=args.count, unit="records", quiet=args.quiet or sys.stdout.isatty())
    with connect(args) as broker, refusals(), progress:
        partitions = _partitions(broker, args.topic, args.partition)
        isolation = settings.isolation_level
        starts = _starts(broker, partitions, span.start, args.group, isolation)
        stops = _stops(broker, partitions, span.stop_ms, leave=args.exit, isolation=isolation)
        with broker.client.consumer(settings) as consumer:
            reader = Reader(consumer, show, stops, args.count, progress, args.contains.encode())
            try:
                reader.read(starts)
            finally:
                if args.commit and reader.positions:
                    from penstock.cli.stored import store_offsets

                    store_offsets(broker, args.group, reader.positions)
                if decoding is not None:
                    decoding.report()
    if not args.quiet and not sys.stdout.isatty():
        output.note(f"consumed {output.counted(reader.count, 'record')}")
    return Exit.OK


@dataclass(slots=True)
class Reader:
    """Prints records until every partition has reached its stop offset, or until --count records are printed."""

    consumer: Any
    show: Formatter
    stops: dict[TopicPartition, int]
    limit: int | None
    progress: output.Progress
    contains: bytes = b""
    """Records without this text in their key or value are left out."""
    count: int = 0
    positions: dict[TopicPartition, int] | None = None

    def read(self, starts: dict[TopicPartition, int]) -> None:
        self.positions = dict(starts)
        left = {each: at for each, at in starts.items() if at < self.stops.get(each, sys.maxsize)}
        self.consumer.assign(left)
        while self.consumer.assignment:
            for fetched in self.consumer.poll(POLL_S):
                full = self._print(fetched)
                sys.stdout.buffer.flush()
                if full:
                    return

    def _print(self, fetched: Fetched) -> bool:
        """Prints the fetched records. Returns True once it has printed --count records."""
        partition = (fetched.topic, fetched.partition)
        place = Place(*partition, any(header.log_append_time for header, _ in fetched.batches))
        stop = self.stops.get(partition, sys.maxsize)
        records = fetched.records()
        if records and records[-1].offset >= stop:
            records = [record for record in records if record.offset < stop]
        if records:
            assert self.positions is not None
            wanted = [each for each in records if each.contains(self.contains)] if self.contains else records
            shown = wanted if self.limit is None else wanted[: self.limit - self.count]
            if shown:
                sys.stdout.buffer.write(self.show(place, shown))
            self.count += len(shown)
            # Records behind the last one of --count are not read.
            self.positions[partition] = (shown if len(shown) < len(wanted) else records)[-1].offset + 1
            self.progress.add(len(shown))
        if fetched.next_offset >= stop:
            self.consumer.unassign(partition)
        return self.count == self.limit


# --- where to start and stop --------------------------------------------------------------------------------------


def _partitions(broker: Broker, topics: Sequence[str], wanted: Sequence[int] | None) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for topic in broker.existing(topics):
        there = sorted(part.partition_index for part in topic.partitions)
        missing = [each for each in wanted or () if each not in there]
        if missing:
            raise Failure(
                f"{topic.name} has no partition {missing[0]}: it has {output.counted(len(there), 'partition')}",
                Exit.NOT_FOUND,
            )
        found += [(topic.name or "", each) for each in (wanted or there)]
    return found


def _starts(
    broker: Broker, partitions: list[TopicPartition], start: Position, group: str | None, isolation: int
) -> dict[TopicPartition, int]:
    match start:
        case Beginning():
            return broker.offsets(partitions, EARLIEST)
        case End():
            return broker.offsets(partitions, LATEST, isolation)
        case Absolute(offset):
            return dict.fromkeys(partitions, offset)
        case AtTime(timestamp_ms):
            return _by_time(broker, partitions, timestamp_ms, isolation)
        case Last(count):
            first = broker.offsets(partitions, EARLIEST)
            return {
                each: max(end - count, first[each])
                for each, end in broker.offsets(partitions, LATEST, isolation).items()
            }
        case Stored():
            from penstock.cli.stored import stored_offsets

            assert group is not None
            known = stored_offsets(broker, group, partitions)
            return broker.offsets([each for each in partitions if each not in known], EARLIEST) | known


def _stops(
    broker: Broker, partitions: list[TopicPartition], stop_ms: int | None, *, leave: bool, isolation: int
) -> dict[TopicPartition, int]:
    if stop_ms is not None:
        return _by_time(broker, partitions, stop_ms, isolation)
    return broker.offsets(partitions, LATEST, isolation) if leave else {}


def _by_time(broker: Broker, partitions: list[TopicPartition], when: int, isolation: int) -> dict[TopicPartition, int]:
    found = broker.offsets(partitions, when, isolation)
    late = [each for each, offset in found.items() if offset < 0]
    return found | (broker.offsets(late, LATEST, isolation) if late else {})
