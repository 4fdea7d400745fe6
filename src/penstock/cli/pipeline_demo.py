"""`penstock pipeline demo`, also run by `make run`, shows the broker and a Spark pipeline at work.

The demo starts a broker, produces generated clicks, lets Spark write them to a table and shows the table, until Ctrl-C
or until its time is over. Then it stops producing, lets the pipeline catch up and compares the table with the produced
events: the exit code is 0 only if the table has exactly these events.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.foreground import own_foreground
from penstock.cli.options import positive_float, positive_int, verb
from penstock.cli.pipeline_ending import Ending, signals
from penstock.cli.pipeline_session import spark_options, spark_session
from penstock.cli.up_http import HTTP_PORT
from penstock.disk.api import private
from penstock.net.ports import is_free

if TYPE_CHECKING:
    from penstock.pipelines.demo import Generator

PORT = 9092
PARTITIONS = 2
#: Seconds between redraws: on a terminal, and as plain lines.
REFRESH_S = (2.0, 5.0)
#: Seconds to run without a terminal, where no Ctrl-C can end the demo.
UNWATCHED_S = 60.0
CATCH_UP_S = 60.0
STOP_LIMIT_S = 10.0
COLUMNS = ("page", "clicks", "users", "mean_ms")
#: Optimising compilation takes half of a JVM's start and doesn't pay off within a minute.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def configure(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = verb(verbs, "demo", "show a broker, events, a Spark pipeline and its table until Ctrl-C", run_demo)
    spark_options(demo)
    demo.add_argument("--port", type=int, help=f"of the broker (default: {PORT}, or another if it is taken)")
    demo.add_argument("--rate", type=positive_int, default=400, metavar="N", help="events a second")
    demo.add_argument(
        "--seconds",
        type=positive_float,
        help=f"seconds to run (default: RUN_SECONDS; without a terminal {UNWATCHED_S:.0f})",
    )


def seconds_to_run(given: float | None, told: str | None, *, terminal: bool) -> float | None:
    """Returns how many seconds the demo runs; None means until Ctrl-C.

    `given` is the option --seconds, `told` is the environment variable RUN_SECONDS. The option takes precedence.
    """
    if given is not None:
        return given
    if told:
        try:
            return positive_float(told)
        except (ValueError, argparse.ArgumentTypeError) as problem:
            raise Failure(f"RUN_SECONDS must be a number of seconds, not {told!r}", Exit.USAGE) from problem
    return None if terminal else UNWATCHED_S


def run_demo(args: argparse.Namespace) -> int:
    from penstock.pipelines import demo
    from penstock.pipelines.topics import Topic, create_like

    began = time.monotonic()
    seconds = seconds_to_run(args.seconds, os.environ.get("RUN_SECONDS"), terminal=sys.stdout.isatty())
    with (
        own_foreground(),
        tempfile.TemporaryDirectory(prefix="penstock-demo-") as place,
        own_broker(args.port, place) as broker,
    ):
        output.note(f"broker    {broker.bootstrap}, for any Kafka client; its data is deleted when the demo stops")
        output.note(f"console   {broker.console}")
        create_like(Topic(broker.bootstrap, demo.TOPIC), PARTITIONS)
        generator = demo.Generator(broker.bootstrap, args.rate)
        generator.start()
        output.note(f"events    topic {demo.TOPIC}, about {args.rate} a second")
        path = os.path.join(place, "clicks")
        output.note(f"pipeline  Spark is starting; its table is {path}")
        with spark_session(args, "demo", java_options=QUICK_JAVA) as spark:
            show = _Show(args, spark, generator, broker, path, began)
            return show.run(Ending(None if seconds is None else began + seconds))


class _Show:
    def __init__(
        self, args: argparse.Namespace, spark: Any, generator: Generator, broker: _Broker, path: str, began: float
    ) -> None:
        self._args = args
        self._spark = spark
        self._generator = generator
        self._broker = broker
        self._path = path
        self._began = began
        self._first_rows_s: float | None = None
        self._stopping_s: float | None = None
        self._in_table = 0

    def run(self, ending: Ending) -> int:
        from penstock import runs
        from penstock.pipelines import demo
        from penstock.pipelines.running import run
        from penstock.pipelines.table import start_table
        from penstock.spark.progress import figures, watch

        recording = runs.Recording(runs.begin(runs.free_name("demo"), f"{demo.TOPIC} to {self._path}"))
        watcher = watch(self._spark, lambda state: recording.progressed(state.query_id, figures(state), str(state)))
        with recording, signals(ending.on_signal):
            with _screen() as draw:

                def refresh() -> None:
                    self._check()
                    rows = self._rows()
                    draw(rows, "   ".join((self._line(), *map(str, watcher.queries.values()))))

                job = demo.job(self._broker.bootstrap, self._path, follow=True)
                until = _repeating(refresh, self._first_rows_are_due, lambda: ending.due() and self._caught_up())
                run(lambda: start_table(self._spark, job), until=until)
            if self._in_table != self._generator.total:
                job = demo.job(self._broker.bootstrap, self._path, follow=False)
                run(lambda: start_table(self._spark, job))
            return self._judge()

    def _first_rows_are_due(self) -> bool:
        """Returns True if Spark has written its first batch and no rows have been shown yet.

        Looks only for the sink's log file of the first batch, because reading the table takes longer.
        """
        log = os.path.join(self._path, "_spark_metadata")
        return self._first_rows_s is None and os.path.isdir(log) and "0" in os.listdir(log)

    def _caught_up(self) -> bool:
        """Returns True once all produced events are in the table, or after CATCH_UP_S seconds.

        The first call stops the producer. The query has to run until this function returns True: a query that is
        stopped within a batch repeats the batch at its next start.
        """
        if self._stopping_s is None:
            self._stopping_s = time.monotonic()
            output.note("stopping: the pipeline catches up, and the table is compared; Ctrl-C to stop at once")
            self._generator.stop()
        self._check()
        self._rows()
        return self._in_table >= self._generator.total or time.monotonic() - self._stopping_s >= CATCH_UP_S

    def _check(self) -> None:
        """Raises Failure if the broker process has ended or events can't be produced."""
        self._broker.check()
        if self._generator.problem is not None:
            raise Failure(f"events can't be produced: {self._generator.problem}")

    def _rows(self) -> list[dict[str, Any]]:
        from penstock.pipelines import demo

        rows = demo.by_page(self._spark, self._path)
        if rows and self._first_rows_s is None:
            self._first_rows_s = time.monotonic() - self._began
            output.note(f"          first rows after {self._first_rows_s:.0f} s")
        self._in_table = sum(row["clicks"] for row in rows)
        return [{**row, "mean_ms": round((row["ms"] or 0) / row["clicks"])} for row in rows]

    def _line(self) -> str:
        produced = self._generator.total
        elapsed = time.monotonic() - self._began
        return f"{elapsed:4.0f} s  produced {produced:,}, in the table {self._in_table:,}"

    def _judge(self) -> int:
        from penstock.pipelines import demo

        rows = self._rows()
        generator = self._generator
        wrong = demo.differences(demo.to_compare(self._spark, self._path), generator.produced, generator.spent_ms)
        if not rows:
            wrong.append("it is empty")
        fields = {
            "produced": generator.total,
            "in_table": self._in_table,
            "exactly": not wrong,
            "first_rows_s": round(self._first_rows_s or 0.0, 1),
        }
        if self._args.output == "table":
            output.rows("table", COLUMNS, rows)
        output.record(self._args.output, fields)
        if wrong:
            raise Failure(f"the table differs from the produced events: {'; '.join(wrong)}")
        return Exit.OK


def _repeating(work: Callable[[], None], at_once: Callable[[], bool], due: Callable[[], bool]) -> Callable[[], bool]:
    """Returns a function that a loop calls repeatedly, until the function returns True.

    The function returns True when `due()` is true. Until then, each call runs `work` if its last run was some seconds
    ago, or if `at_once()` is true.
    """
    every = REFRESH_S[0 if sys.stdout.isatty() else 1]
    last = 0.0

    def step() -> bool:
        nonlocal last
        if due():
            return True
        if time.monotonic() - last >= every or at_once():
            work()
            last = time.monotonic()
        return False

    return step


@contextmanager
def _screen() -> Iterator[Callable[[list[dict[str, Any]], str], None]]:
    """Yields a function that shows the results: on a terminal redraws a table, elsewhere prints one line."""
    if not sys.stdout.isatty():
        yield lambda _, line: output.note(line)
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(Text("the first rows are on their way"), auto_refresh=False) as live:

        def draw(rows: list[dict[str, Any]], line: str) -> None:
            below = Text(output.printable(f"{line}   Ctrl-C stops"))
            live.update(Group(output.rich_table(COLUMNS, rows), below) if rows else below, refresh=True)

        yield draw


class _Broker:
    """Runs a broker in a child process, with `penstock up`.

    The broker ends with this process, even if this process is killed.
    """

    def __init__(self, port: int, place: str) -> None:
        self._log = os.path.join(place, "broker.log")
        http = HTTP_PORT if port and is_free("127.0.0.1", HTTP_PORT) else 0
        command = [sys.executable, "-m", "penstock.cli.main", "up", "--port", str(port), "--http", str(http)]
        command += ["--until-stdin-ends", "--json"]
        with open(self._log, "wb", opener=private) as log:
            self._process = subprocess.Popen(  # noqa: S603 (this very program)
                [*command, "--data", os.path.join(place, "broker")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C must not reach the broker: the demo needs it for the final comparison
            )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        if not told:
            self._end()
            raise Failure(self._last_words(), self._code())
        ready = json.loads(told)
        self.bootstrap = str(ready["bootstrap"])
        self.console = str(ready["console"])

    def check(self) -> None:
        if self._process.poll() is not None:
            raise Failure(f"the broker process has ended: {self._last_words()}")

    def stop(self) -> None:
        self._process.terminate()
        self._end()

    def _end(self) -> None:
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _last_words(self) -> str:
        with open(self._log, encoding="utf-8", errors="replace") as log:
            lines = log.read().splitlines()
        return lines[-1].removeprefix("penstock: ") if lines else f"it exited with code {self._process.returncode}"

    def _code(self) -> Exit:
        return Exit(self._process.returncode) if self._process.returncode in set(Exit) else Exit.FAILED


@contextmanager
def own_broker(port: int | None, place: str) -> Iterator[_Broker]:
    broker = _start(port, place)
    try:
        yield broker
    finally:
        broker.stop()


def _start(port: int | None, place: str) -> _Broker:
    if port is not None:
        return _Broker(port, place)
    try:
        return _Broker(PORT, place)
    except Failure as problem:
        if problem.code is not Exit.ADDRESS_IN_USE:
            raise
        output.note(f"port {PORT} is taken, so the demo's broker uses a free port")
        return _Broker(0, place)
