"""`penstock log` prints the contents of the files in a log directory. It needs no running broker."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import verb

KNOWN_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint")
# Left out while they have these defaults: most batches have no producer and are neither transactional nor control.
QUIET_VALUES = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1, "transactional": False, "control": False}


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    dump = verb(verbs, "dump", "print the batches, records and entries in files of a log directory", run_dump)
    dump.add_argument("files", nargs="+", metavar="FILE", help="files, or a partition's directory for all of its files")
    dump.add_argument("--deep", action="store_true", help="records too, not only batches")
    dump.add_argument(
        "--metadata", action="store_const", const="metadata", dest="decode", help="decode metadata records"
    )
    dump.add_argument("--offsets", action="store_const", const="offsets", dest="decode", help="decode group records")
    dump.add_argument(
        "--transactions", action="store_const", const="transactions", dest="decode", help="decode transaction records"
    )
    dump.add_argument("--share", action="store_const", const="share", dest="decode", help="decode share group records")
    dump.add_argument("--plain", action="store_const", const="plain", dest="decode", help="decode nothing")
    dump.epilog = (
        "Records of internal topics are decoded by their directory's name unless an option chooses otherwise. "
        "--output json prints one object per line. Exits with 1 if data is corrupt."
    )


def run_dump(args: argparse.Namespace) -> int:
    from penstock.cli.dump import dump

    corrupt = False
    for path in _expand(args.files):
        if args.output == "table":
            print(output.printable(f"# {path}"))
        for item in dump(path, deep=args.deep or args.decode is not None, decode=args.decode):
            corrupt |= item["kind"] == "corrupt"
            if args.output == "json":
                print(output.json_text({"file": path, **item}))
            else:
                print(line(item))
    if corrupt:
        sys.stdout.flush()
        output.note("penstock: corrupt data found: recovery truncates a torn tail; a broker refuses other damage")
    return Exit.FAILED if corrupt else Exit.OK


def line(item: dict[str, object]) -> str:
    words = [str(item["kind"])]
    for name, value in item.items():
        if name == "kind" or value is None or QUIET_VALUES.get(name, ...) == value:
            continue
        shown = output.json_text(value) if isinstance(value, dict | list | str) else str(value)
        words.append(f"{name}={shown}")
    indent = "  " if item["kind"] in ("record", "control") else ""
    return indent + " ".join(words)


def _expand(paths: Iterable[str]) -> list[str]:
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            inside = sorted(name for name in os.listdir(path) if name.endswith(KNOWN_SUFFIXES))
            if not inside:
                raise Failure(f"{path} holds no log files: name a partition's directory", Exit.NOT_FOUND)
            found += [os.path.join(path, name) for name in inside]
        else:
            found.append(path)
    return found
