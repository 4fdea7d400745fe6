"""Runs Spark's declarative pipelines: `penstock pipeline init | dry-run | run | list | status | stop`."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import DEFAULT_BOOTSTRAP, verb
from penstock.cli.pipeline_session import Lines, progress, spark_options, spark_session

if TYPE_CHECKING:
    from penstock.runs import Run


def configure(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    init = verb(verbs, "init", "make a project of Spark's declarative pipelines that reads a topic", run_init)
    init.add_argument("name", metavar="NAME", help="the directory to make")
    init.add_argument("--topic", default="events", help="default: %(default)s")
    init.add_argument(
        "-b", "--bootstrap", default=os.environ.get("PENSTOCK_BOOTSTRAP", DEFAULT_BOOTSTRAP), metavar="HOST:PORT"
    )
    for name, summary, run in (
        ("dry-run", "check a project without running it", run_dry),
        ("run", "run a project: bring its tables up to date", run_run),
    ):
        parser = verb(verbs, name, summary, run)
        spark_options(parser)
        parser.add_argument("spec", nargs="?", metavar="PROJECT", help="its directory or file (default: from here up)")
        parser.add_argument("--delta", action="store_true", help="tables may be Delta tables")
        if name == "run":
            parser.add_argument("--refresh", action="append", default=[], metavar="TABLE", help="only these")
            parser.add_argument(
                "--full-refresh", action="append", default=[], metavar="TABLE", help="from the beginning"
            )
            parser.add_argument("--full-refresh-all", action="store_true", help="everything from the beginning")
    verb(verbs, "list", "list the pipelines that run or ran on this machine", run_list)
    status = verb(verbs, "status", "show the state of a pipeline", run_status)
    status.add_argument("name", metavar="NAME")
    stop = verb(verbs, "stop", "stop a pipeline that runs", run_stop)
    stop.add_argument("name", metavar="NAME")


def run_init(args: argparse.Namespace) -> int:
    from penstock.pipelines.declarative import create_project

    try:
        made = create_project(Path(args.name), bootstrap=args.bootstrap, topic=args.topic)
    except FileExistsError as problem:
        raise Failure(f"{args.name} exists already: choose another name", Exit.EXISTS) from problem
    except OSError as problem:
        raise Failure(f"the directory {args.name} can't be created: {problem.strerror}", Exit.STORAGE) from problem
    output.rows(args.output, ("file",), [{"file": str(path)} for path in made])
    return Exit.OK


def run_dry(args: argparse.Namespace) -> int:
    args.refresh, args.full_refresh, args.full_refresh_all = [], [], False
    return _run(args, dry=True)


def run_run(args: argparse.Namespace) -> int:
    if args.full_refresh_all and (args.refresh or args.full_refresh):
        raise Failure("--full-refresh-all refreshes all tables: leave --refresh and --full-refresh out", Exit.USAGE)
    return _run(args, dry=False)


def _run(args: argparse.Namespace, *, dry: bool) -> int:
    from penstock import runs
    from penstock.pipelines import declarative
    from penstock.spark.errors import SourceError

    try:
        spec = declarative.find_spec(args.spec)
        name = declarative.read_name(spec)
        args.conf = [*(f"{key}={value}" for key, value in declarative.settings(spec).items()), *args.conf]
    except FileNotFoundError as problem:
        raise Failure(str(problem), Exit.NOT_FOUND) from problem
    except SourceError as problem:
        raise Failure(str(problem), Exit.USAGE) from problem
    running = runs.load(name)
    if running is not None and running.alive and not dry:
        raise Failure(
            f"{name} is running already, as process {running.pid}: stop it with `penstock pipeline stop {name}`",
            Exit.EXISTS,
        )
    refresh = declarative.Refresh(tuple(args.refresh), tuple(args.full_refresh), args.full_refresh_all)
    recording = runs.Recording(runs.begin(name, str(spec)), keep=not dry, on_problem=output.note)

    lines = Lines()

    def on_event(text: str) -> None:
        line = text.splitlines()[0]
        lines.say(f"{datetime.now(UTC):%H:%M:%S} {line}")
        recording.note(last=line)

    with recording, spark_session(args, name, delta=args.delta) as spark, progress(spark, recording, lines):
        declarative.run_project(spark, spec, on_event, refresh=refresh, dry=dry)
    output.record(args.output, {"pipeline": name, "result": "is right" if dry else "done"})
    return Exit.OK


def run_list(args: argparse.Namespace) -> int:
    from penstock.runs import load_all

    output.rows(
        args.output, ("pipeline", "state", "began", "spec", "last"), map(_row, load_all()), empty="no pipelines"
    )
    return Exit.OK


def run_status(args: argparse.Namespace) -> int:
    run = _known(args.name)
    output.record(args.output, _row(run))
    return Exit.FAILED if run.shown in ("failed", "killed") else Exit.OK


def run_stop(args: argparse.Namespace) -> int:
    from penstock.runs import stop

    run = _known(args.name)
    if not run.alive or not stop(run):
        raise Failure(f"{args.name} is not running: the state of its last run is {run.shown}", Exit.NOT_FOUND)
    output.record(args.output, {"pipeline": run.name, "result": "asked to stop", "pid": run.pid})
    return Exit.OK


def _known(name: str) -> Run:
    from penstock.runs import load

    run = load(name)
    if run is None:
        raise Failure(f"no pipeline {name} has run here: `penstock pipeline list` shows past runs", Exit.NOT_FOUND)
    return run


def _row(run: Run) -> dict[str, object]:
    return {
        "pipeline": run.name,
        "state": run.shown,
        "pid": run.pid if run.alive else None,
        "began": run.began,
        "spec": run.spec,
        "last": run.last or None,
    }
