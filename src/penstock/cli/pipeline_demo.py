"""`penstock pipeline demo`: the whole product at once, on the screen.

A broker, made-up clicks, Spark making a table of them, and what is in the table. In the end the table is compared with
what was produced, and the exit code says whether it holds exactly that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import positive_float, positive_int, verb
from penstock.cli.pipeline_session import spark_options, spark_session

REFRESH_S = 2.0
#: Without a terminal nobody presses Ctrl-C.
UNWATCHED_S = 60.0
COLUMNS = ("page", "clicks", "users", "mean_ms")


def configure(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = verb(verbs, "demo", "show a broker, events, a Spark pipeline and its table until Ctrl-C", run_demo)
    spark_options(demo)
    demo.add_argument("--port", type=int, default=9092, help="of the broker; another if it is taken")
    demo.add_argument("--rate", type=positive_int, default=400, metavar="N", help="events a second")
    demo.add_argument(
        "--seconds",
        type=positive_float,
        help=f"stop after so long (default: RUN_SECONDS; without a terminal {UNWATCHED_S:.0f})",
    )


def _seconds(args: argparse.Namespace) -> float | None:
    if args.seconds is not None:
        return float(args.seconds)
    told = os.environ.get("RUN_SECONDS")
    if told:
        try:
            return positive_float(told)
        except (ValueError, argparse.ArgumentTypeError) as problem:
            raise Failure(f"RUN_SECONDS takes a number of seconds, not {told!r}", Exit.USAGE) from problem
    return None if sys.stdout.isatty() else UNWATCHED_S


def run_demo(args: argparse.Namespace) -> int:
    from penstock.pipelines import demo
    from penstock.pipelines.topics import create_like

    args.seconds = _seconds(args)
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as place, _broker(args.port, place) as bootstrap:
        output.note(f"broker    {bootstrap}  (any Kafka client can use it; topic {demo.TOPIC})")
        create_like(bootstrap, demo.TOPIC, 4)
        generator = demo.Generator(bootstrap, args.rate)
        generator.start()
        output.note(f"events    about {args.rate} a second")
        output.note("pipeline  Spark is starting")
        with spark_session(args, "demo") as spark:
            return _show(args, spark, generator, bootstrap, os.path.join(place, "clicks"))


def _show(args: argparse.Namespace, spark: Any, generator: Any, bootstrap: str, path: str) -> int:
    from penstock.pipelines import demo
    from penstock.pipelines.running import run
    from penstock.pipelines.table import start_table

    began = time.monotonic()
    try:
        with _screen() as draw:

            def refresh() -> bool:
                draw(demo.by_page(spark, path), generator.total, time.monotonic() - began)
                return args.seconds is not None and time.monotonic() - began >= args.seconds

            run(lambda: start_table(spark, demo.job(bootstrap, path, follow=True)), until=_now_and_then(refresh))
    except KeyboardInterrupt:
        output.note("\nstopping")
    finally:
        generator.stop()
    # What was produced last may not be in the table yet, and the batch that was stopped midway is done again.
    run(lambda: start_table(spark, demo.job(bootstrap, path, follow=False)))
    found = demo.by_page(spark, path)
    wrong = demo.differences(found, generator.produced, generator.spent_ms)
    rows = sum(row["clicks"] for row in found)
    if wrong or not rows:
        output.note(f"penstock: the table differs from what was produced: {'; '.join(wrong) or 'it is empty'}")
        return Exit.FAILED
    fields = {"produced": generator.total, "in_table": rows, "exactly": True}
    output.record(args.output, fields)
    return Exit.OK


def _now_and_then(work: Any) -> Any:
    last = 0.0

    def due() -> bool:
        nonlocal last
        if time.monotonic() - last < REFRESH_S:
            return False
        done = bool(work())
        last = time.monotonic()
        return done

    return due


@contextmanager
def _screen() -> Iterator[Any]:
    """Draws the table: in place on a terminal, as one line elsewhere."""
    if not sys.stdout.isatty():
        yield lambda rows, produced, elapsed: print(_line(rows, produced, elapsed), flush=True)
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(Text("the first rows are on their way"), auto_refresh=False) as live:

        def draw(rows: list[dict[str, Any]], produced: int, elapsed: float) -> None:
            shown = [{**row, "mean_ms": round(row["ms"] / row["clicks"])} for row in rows]
            below = Text(f"{_line(rows, produced, elapsed)}   Ctrl-C stops")
            live.update(Group(output.rich_table(COLUMNS, shown), below), refresh=True)

        yield draw


def _line(rows: list[dict[str, Any]], produced: int, elapsed: float) -> str:
    clicks = sum(row["clicks"] for row in rows)
    return f"{elapsed:4.0f} s  produced {produced:,}  in the table {clicks:,}  behind {produced - clicks:,}"


@contextmanager
def _broker(port: int, place: str) -> Iterator[str]:
    """A broker in a process of its own, as `penstock up` starts it."""
    process, bootstrap = _start(port, place)
    if process is None:
        process, bootstrap = _start(0, place)
    if process is None:
        raise Failure("the broker did not start: `penstock up` says why")
    try:
        yield bootstrap
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start(port: int, place: str) -> tuple[subprocess.Popen[str] | None, str]:
    command = [
        sys.executable,
        "-m",
        "penstock.cli.main",
        "up",
        "--port",
        str(port),
        "--data",
        os.path.join(place, "broker"),
    ]
    process = subprocess.Popen(  # noqa: S603 (this very program)
        [*command, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is for the demo: it still needs the broker to compare
    )
    assert process.stdout is not None
    for line in process.stdout:
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if told.get("ready"):
            return process, str(told["bootstrap"])
    process.wait()
    return None, ""
