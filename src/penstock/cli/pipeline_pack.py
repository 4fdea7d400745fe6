"""`penstock pipeline pack` packs Penstock and its dependencies for a Spark cluster on which they are not installed."""

from __future__ import annotations

import argparse
from pathlib import Path

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import verb


def configure(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    pack = verb(verbs, "pack", "make an archive for executors that have no Penstock", run_pack)
    pack.add_argument("file", metavar="FILE", help=".tar.gz: an environment for --archives; .zip: Penstock alone")
    pack.add_argument("--add", action="append", default=[], metavar="PACKAGE", help="a package that is installed here")


def run_pack(args: argparse.Namespace) -> int:
    from penstock.pipelines.packing import PackError, pack

    target = Path(args.file)
    try:
        files = pack(target, args.add)
    except PackError as problem:
        raise Failure(str(problem).rstrip("."), Exit.USAGE) from problem
    except OSError as problem:
        raise Failure(f"{target} can't be written: {problem.strerror}", Exit.STORAGE) from problem
    output.record(args.output, {"file": str(target), "files": files, "bytes": target.stat().st_size})
    if target.suffix == ".zip":
        output.note(f"use it with: spark-submit --py-files {target} …")
    else:
        output.note(f"use it with: mkdir env && tar -xzf {target} -C env")
        output.note("             export PYSPARK_PYTHON=./env/bin/python3 PYSPARK_DRIVER_PYTHON=./env/bin/python3")
        output.note(f"             spark-submit --archives {target}#env …")
    return Exit.OK
