"""Contains code that the `penstock pipeline` commands share: Spark options, a session, progress, one-line failures."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, pairs, positive_int
from penstock.cli.pipeline_ending import Ending, signals

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.pipelines.topics import Topic
    from penstock.runs import Recording

#: Defaults for a laptop, where the driver is also the executor.
QUIET = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "4",
}
#: Added unless --debug is given.
SILENT = {"spark.python.daemon.module": "penstock.pipelines.quiet_daemon"}


def spark_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--master", metavar="URL", help="the Spark cluster to run on (default: local[*])")
    parser.add_argument("--memory", default="1g", metavar="SIZE", help="of Spark's driver (default: %(default)s)")
    parser.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE", help="a property of Spark")
    parser.add_argument("--bundled-java", action="store_true", help="ignore the system's Java")


def stream_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of pipelines that can run continuously."""
    connection(parser)
    spark_options(parser)
    parser.add_argument("--follow", action="store_true", help="continue with new records until Ctrl-C")
    parser.add_argument("--every", default="1 second", metavar="INTERVAL", help="interval of batches with --follow")
    parser.add_argument("--max-offsets", type=positive_int, metavar="N", help="maximum of records per batch")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the source, such as kafka.*"
    )


def pace(args: argparse.Namespace) -> Any:
    from penstock.pipelines.running import Pace

    return Pace(follow=args.follow, every=args.every, max_offsets=args.max_offsets)


@contextmanager
def reached(args: argparse.Namespace, topic: Topic) -> Iterator[Broker]:
    """Opens a client of a topic's brokers. It has the same `kafka.*` options as the pipeline."""
    from penstock.cli.connect import connect
    from penstock.pipelines.topics import client_part
    from penstock.spark.brokers import connection_settings
    from penstock.spark.errors import SourceError

    try:
        settings = connection_settings(topic.client_options) if client_part(topic.options) else None
    except SourceError as wrong:
        raise Failure(_without_stop(str(wrong)), Exit.USAGE) from wrong
    with connect(argparse.Namespace(bootstrap=topic.bootstrap, timeout=args.timeout), settings=settings) as broker:
        yield broker


def topic_options(config: str | None, given: Iterable[str], what: str = "--option") -> dict[str, str]:
    """Returns the options for Spark's connections to the brokers.

    These are the security properties in the file `config`, with the prefix `kafka.`, and the options in `given`. An
    option in `given` overrides a property of the file.
    """
    from penstock.cli.properties import read_file
    from penstock.client.client_security import SECURITY_PREFIXES

    found = {} if config is None else read_file(config, "client properties")
    secured = {f"kafka.{name}": value for name, value in found.items() if name.startswith(SECURITY_PREFIXES)}
    return {**secured, **pairs(given, what)}


def topic(args: argparse.Namespace, name: str, bootstrap: str | None = None, config: str | None = None) -> Topic:
    """Returns the topic, with the id of its cluster.

    `bootstrap` and `config` replace --bootstrap and --command-config. Raises Failure if the topic does not exist, so
    that the user learns this before Spark starts, which takes seconds.
    """
    from penstock.pipelines.topics import Topic

    file = args.command_config if bootstrap is None else config
    wanted = Topic(bootstrap or args.bootstrap, name, topic_options(file, args.option))
    with reached(args, wanted) as broker:
        broker.existing([name])
        return replace(wanted, cluster_id=broker.cluster_id)


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options whose names begin with `kafka.`. Every client of the same brokers needs them."""
    return {name: value for name, value in options.items() if name.lower().startswith("kafka.")}


@contextmanager
def spark_session(args: argparse.Namespace, name: str, *, delta: bool = False, java_options: str = "") -> Iterator[Any]:
    """Opens a Spark session for one command. Turns errors of the session into a Failure of one sentence."""
    from penstock.spark.errors import SourceError, not_importable

    try:
        from penstock.pipelines.running import reason
        from penstock.spark import session
        from penstock.spark.sessions import silence_errors
    except ImportError as missing:
        raise Failure(_without_stop(str(not_importable(missing)))) from missing
    options = " ".join((*([] if args.debug else _silent()), java_options))
    silent = {} if args.debug else SILENT
    config = {**QUIET, **silent, "spark.driver.extraJavaOptions": options, **pairs(args.conf, "--conf")}
    spark = None
    _stop_on_sigterm()
    if not args.debug:
        silence_errors()
        _silence_py4j()
    try:
        with warnings.catch_warnings():
            # Spark Connect sets its start options again and warns that this has no effect.
            warnings.filterwarnings("ignore", "Failed to set ", UserWarning)
            spark = session(
                name, master=args.master, memory=args.memory, delta=delta, bundled_java=args.bundled_java, config=config
            )
        yield spark
    except SourceError as problem:
        raise Failure(_without_stop(str(problem))) from problem
    except (Failure, KeyboardInterrupt):
        raise
    except Exception as problem:
        if type(problem).__module__.startswith(("pyspark", "py4j")):
            raise Failure(_without_stop(reason(problem))) from problem
        raise
    finally:
        if spark is not None:
            spark.stop()


def _silent() -> list[str]:
    """Returns Java options that silence Spark's log, because commands report errors in one sentence.

    The option --debug shows the log.
    """
    from importlib.resources import files

    place = files("penstock.pipelines") / "log4j2.properties"
    # The catalog's database would leave a log file in the current directory.
    return [f"-Dlog4j2.configurationFile=file:{place}", f"-Dderby.stream.error.file={os.devnull}"]


def _silence_py4j() -> None:
    """Silences Py4J, which logs a traceback when its connection breaks. Some of its log lines use the root logger."""
    logging.getLogger("py4j").propagate = False
    root = logging.getLogger()
    if _not_py4j not in root.filters:
        root.addFilter(_not_py4j)


def _not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in os.path.dirname(record.pathname)


def _without_stop(sentence: str) -> str:
    return sentence.rstrip().rstrip(".")


def _stop_on_sigterm() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


class Lines:
    """Prints events and progress on stderr: progress is redrawn in place on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self.moving = sys.stderr.isatty()
        self._drawn = False

    def progress(self, text: str) -> None:
        if not self.moving:
            self.say(text)
            return
        print(f"\r\x1b[K{output.printable(text)}", end="", file=sys.stderr, flush=True)
        self._drawn = True

    def say(self, text: str) -> None:
        print(("\r\x1b[K" if self._drawn else "") + output.printable(text), file=sys.stderr, flush=True)
        self._drawn = False

    def end(self) -> None:
        if self._drawn:
            print(file=sys.stderr)
        self._drawn = False


@contextmanager
def progress(spark: Any, recording: Recording, lines: Lines) -> Iterator[None]:
    """Shows the progress of this session's queries while the block runs, and saves the progress for `pipeline
    status`."""
    from penstock.pipelines.running import line
    from penstock.spark.progress import QueryState, figures, watch

    def show(state: QueryState) -> None:
        if state.running:
            lines.progress(line(state))
            recording.progressed(state.query_id, figures(state), line(state))

    watcher = watch(spark, show)
    try:
        yield
    finally:
        spark.streams.removeListener(watcher)
        lines.end()


@contextmanager
def progress_lines(line: Callable[[float], str]) -> Iterator[None]:
    """Calls `line` at intervals while the block runs, and prints the text. Used for work without Spark queries.

    On a terminal the text is redrawn often; elsewhere a line is printed now and then.
    """
    from penstock.pipelines import watching

    lines = Lines()
    every = watching.LOOK_EVERY_S if lines.moving else output.PROGRESS_EVERY_S

    def tell(seconds: float) -> None:
        if text := line(seconds):
            lines.progress(text)

    try:
        with watching.telling(tell, every_s=every):
            yield
    finally:
        lines.end()


def follow(
    spark: Any, name: str, spec: str, work: Callable[[Callable[[], bool]], None], *, clusters: Iterable[str]
) -> int:
    """Runs `work` until its Spark queries end or a signal comes. Shows their progress. Returns the exit code."""
    from penstock import runs

    run = runs.begin(runs.free_name(name, spec), spec, filter(None, clusters))
    recording = runs.Recording(run, on_problem=output.note)
    try:
        ending = Ending(None)
        with recording, progress(spark, recording, Lines()), signals(ending.on_signal):
            work(ending.due)
            if ending.due():
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        output.note("stopped; the same command resumes from here")
    return Exit.OK
