"""Decodes keys and values for `penstock consume -s`, with the same code as the console.

-s avro                decodes keys and values; -s value=avro decodes only values
-r https://registry    gets schemas from a registry, by the schema id in front of the data
--schemas DIR          reads schemas from files, such as orders-value.avsc
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.format import Formatter, Place

if TYPE_CHECKING:
    from penstock.formats.schemas import Schemas
    from penstock.records.record import Record

#: The views that decode; text and bytes are printed as they are.
DECODED = ("auto", "json", "avro", "protobuf")


def add_views(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-s",
        "--view",
        action="append",
        default=[],
        metavar="VIEW",
        help="print keys and values decoded, as JSON: auto (by their schema), json, avro or protobuf; "
        "key=VIEW or value=VIEW decodes one of them; may be repeated",
    )
    parser.add_argument("-r", "--registry", metavar="URL", default="", help="schema registry with Confluent's API")
    parser.add_argument("--schemas", metavar="DIR", default="", help="directory with schemas, as orders-value.avsc")


def parse_views(given: Sequence[str]) -> dict[str, str]:
    """Parses the values of -s. Returns a format for "key" and for "value", if -s sets one. Raises Failure."""
    found: dict[str, str] = {}
    for each in given:
        part, _, view = each.rpartition("=")
        if part not in ("", "key", "value") or view not in DECODED:
            raise Failure(
                f"-s {each} is no format: give {', '.join(DECODED)}, or one of them after key= or value=", Exit.USAGE
            )
        found |= dict.fromkeys([part] if part else ["key", "value"], view)
    return found


@dataclass(slots=True)
class Decoder:
    """Replaces keys and values by decoded JSON. A key or value that can't be decoded stays unchanged."""

    views: dict[str, str]
    schemas: Schemas
    problems: int = 0
    problem: str = ""
    """The first problem."""

    def formatter(self, show: Formatter) -> Formatter:
        """Returns a formatter that decodes records and prints them with `show`."""
        return lambda place, records: show(place, self._decoded(place, records))

    def _decoded(self, place: Place, records: list[Record]) -> list[Record]:
        from penstock.formats.views import NO_LIMITS, Viewing

        viewing = Viewing(self.schemas, place.topic, self.views, NO_LIMITS)

        def decoded(part: str, data: bytes | None) -> bytes | None:
            shown = viewing.show(part, data) if part in self.views else None
            if shown is None or "decoded" in shown:
                return data if shown is None else json.dumps(shown["decoded"], ensure_ascii=False).encode()
            if "problem" in shown:
                self.problems += 1
                self.problem = self.problem or shown["problem"]
            return data

        return [each._replace(key=decoded("key", each.key), value=decoded("value", each.value)) for each in records]

    def report(self) -> None:
        """Prints how many keys and values could not be decoded, and the first reason."""
        if self.problems:
            output.note(f"{self.problems:,} keys and values were printed as they are. {self.problem}")


def decoder(args: argparse.Namespace) -> Decoder | None:
    """Returns the decoder for the options -s, -r and --schemas; None if -s is not given. Raises Failure."""
    views = parse_views(args.view)
    if not views:
        if args.registry or args.schemas:
            raise Failure("-r and --schemas need a view: add -s auto, or -s avro", Exit.USAGE)
        return None
    from penstock.formats.registry import Registry
    from penstock.formats.schemas import Schemas

    try:
        registry = Registry(args.registry) if args.registry else None
    except ValueError as problem:
        raise Failure(f"-r {args.registry} can't be used: {problem}", Exit.USAGE) from None
    return Decoder(views, Schemas(args.schemas, registry))
