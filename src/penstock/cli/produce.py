"""`penstock produce` writes records from stdin or files to a topic, with kcat's options.

seq 10 | penstock produce -t numbers
echo "key:value" | penstock produce -t pairs -K :
penstock produce -t blobs image.png          each file is one record; with -l, each line is
penstock consume -t old -J -e | penstock produce -t new -J
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.envelope import read_envelope
from penstock.cli.exit import Exit, Failure
from penstock.cli.format import Headers, unescape
from penstock.cli.options import connection, expect_many_objects, finish, positive_int

if TYPE_CHECKING:
    from penstock.client.accumulator import BulkRecord, PendingBatch
    from penstock.client.producer import Producer

READ_BYTES = 256 * 1024
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def configure(parser: argparse.ArgumentParser) -> None:
    connection(parser)
    parser.add_argument("files", nargs="*", metavar="FILE", help="each is one record (default: lines of stdin)")
    parser.add_argument("-t", "--topic", required=True)
    parser.add_argument("-p", "--partition", type=int, help="default: by key, else spread")
    parser.add_argument("-k", "--key", help="the key of every record")
    parser.add_argument("-K", "--key-delimiter", metavar="TEXT", help="text between key and value")
    parser.add_argument(
        "-D", "--delimiter", default="\\n", metavar="TEXT", help="text that ends a record (default: %(default)s)"
    )
    parser.add_argument("-H", "--header", action="append", default=[], metavar="NAME=VALUE", help="may be repeated")
    parser.add_argument("-l", "--lines", action="store_true", help="each line of the files is a record")
    parser.add_argument(
        "-J",
        "--json",
        action="store_true",
        help="lines are the JSON that `consume -J` prints; the key, or -p, chooses the partition",
    )
    parser.add_argument("-Z", "--null", action="store_true", help="empty keys and values are null")
    parser.add_argument("-z", "--compression", choices=CODECS, default="none")
    parser.add_argument("-a", "--acks", choices=("0", "1", "all"), default="all")
    parser.add_argument("-c", "--count", type=positive_int, help="stop after so many records")
    parser.add_argument("-X", "--property", action="append", default=[], metavar="NAME=VALUE", help="a client setting")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing on success")
    finish(parser, run)


def run(args: argparse.Namespace) -> int:
    from penstock.cli.client_properties import ACKS, CODECS, producer_settings
    from penstock.cli.connect import connect, refusals
    from penstock.client.producer import Producer, ProducerSettings
    from penstock.node.clock import SystemClock

    if not args.files and not args.quiet and sys.stdin.isatty():
        output.note("each line is a record; Ctrl-D ends")
    expect_many_objects()
    base = ProducerSettings(acks=ACKS[args.acks], compression=CODECS[args.compression], create_topics=True)
    settings = producer_settings(args.property, base)
    delivery = Delivery()
    progress = output.Progress("produced", unit="records", quiet=args.quiet)
    with connect(args) as broker, refusals(), progress:
        producer = Producer(broker.client.asynchronous, SystemClock(), settings)
        try:
            for chunk in limited(records(args), args.count):
                broker.client.run(delivery.send(producer, args.topic, args.partition, chunk))
                progress.add(len(chunk))
            broker.client.run(delivery.finish(producer))
        finally:
            broker.client.run(producer.close())
    if args.output == "json":
        output.record("json", {"topic": args.topic, "records": delivery.records, "bytes": delivery.bytes})
    elif not args.quiet:
        output.note(f"produced {output.counted(delivery.records, 'record')} to {args.topic}")
    return Exit.OK


@dataclass(slots=True)
class Delivery:
    """Counts the records that were sent, and raises the error of a batch that failed."""

    records: int = 0
    bytes: int = 0
    open: list[PendingBatch] = field(default_factory=list)

    async def send(self, producer: Producer, topic: str, partition: int | None, chunk: list[BulkRecord]) -> None:
        self.open += await producer.send_many(topic, chunk, partition=partition)
        self.records += len(chunk)
        self.bytes += sum(len(record[1]) for record in chunk if record[1])
        self._settle()

    async def finish(self, producer: Producer) -> None:
        await producer.flush()
        self._settle()

    def _settle(self) -> None:
        for batch in self.open:
            if batch.done.done():
                batch.done.result()
        self.open = list(dict.fromkeys(batch for batch in self.open if not batch.done.done()))


# --- reading records ----------------------------------------------------------------------------------------------


def records(args: argparse.Namespace) -> Iterator[list[BulkRecord]]:
    """Yields one list of records per read. So a line that a user typed is sent before the next read blocks."""
    headers = parse_headers(args.header)
    if args.files and not args.lines and not args.json:
        for path in args.files:
            yield [(_encoded(args.key), _null(_file(path), args.null), headers, None)]
        return
    delimiter = b"\n" if args.json else unescape(args.delimiter)
    if not delimiter:
        raise Failure("-D is empty: give the text that ends a record", Exit.USAGE)
    sources = [iter([_file(path)]) for path in args.files] or [_read(sys.stdin.fileno())]
    for source in sources:
        for lines in split(source, delimiter):
            yield list(map(read_envelope, lines)) if args.json else parse_lines(lines, args, headers)


def parse_lines(lines: list[bytes], args: argparse.Namespace, headers: Headers = ()) -> list[BulkRecord]:
    """Parses lines into records. -K splits each line into key and value; -k gives all records the same key."""
    key = _encoded(args.key)
    if args.key_delimiter is None:
        found: list[BulkRecord] = [(key, line, headers, None) for line in lines]
    else:
        delimiter = unescape(args.key_delimiter)
        if not delimiter:
            raise Failure("-K is empty: give the text between key and value", Exit.USAGE)
        parts = [(line, *line.partition(delimiter)) for line in lines]
        found = [
            (before, after, headers, None) if at else (key, line, headers, None) for line, before, at, after in parts
        ]
    return [(key or None, value or None, headers, None) for key, value, _, _ in found] if args.null else found


def parse_headers(texts: Iterable[str]) -> Headers:
    """Parses `name=value` headers. A name without `=` gets a null value. A name may be repeated."""
    headers = []
    for text in texts:
        name, equals, value = text.partition("=")
        headers.append((name, os.fsencode(value) if equals else None))
    return tuple(headers)


def _read(descriptor: int) -> Iterator[bytes]:
    while data := os.read(descriptor, READ_BYTES):
        yield data


def split(parts: Iterable[bytes], delimiter: bytes) -> Iterator[list[bytes]]:
    """Splits a stream of chunks at a delimiter. Yields the parts that are complete, in one list per chunk.

    At the end, yields the text after the last delimiter, if there is any.
    """
    rest = bytearray()
    for part in parts:
        new = max(0, len(rest) - len(delimiter) + 1)
        rest += part
        if rest.find(delimiter, new) < 0:
            continue
        *whole, last = bytes(rest).split(delimiter)
        rest = bytearray(last)
        yield whole
    if rest:
        yield [bytes(rest)]


def limited(found: Iterable[list[BulkRecord]], count: int | None) -> Iterator[list[BulkRecord]]:
    left = count
    for chunk in found:
        yield chunk if left is None else chunk[:left]
        if left is not None and (left := left - len(chunk)) <= 0:
            return


def _file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise Failure(f"{path} does not exist: name a file to produce", Exit.NOT_FOUND) from None
    except OSError as problem:
        raise Failure(f"{path} can't be read: {problem.strerror}", Exit.FAILED) from problem


def _encoded(text: str | None) -> bytes | None:
    """Returns a command line argument as the bytes that the user typed; None stays None."""
    return None if text is None else os.fsencode(text)


def _null(value: bytes | None, empty_is_null: bool) -> bytes | None:
    return None if empty_is_null and not value else value
