"""`python -m bench`: measures Penstock and Apache Kafka side by side, prints the ratios and saves them."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import cluster_cells, move_cells, security_cells, share_cells, spark_cells, streams_cells
from bench.brokers import Kafka, Peer, Penstock
from bench.cells import FULL, QUICK, Cell, Numbers, cells, warm_up
from bench.cluster_cells import ClusterCell
from bench.clusters import ClusterPeer, PenstockCluster, ThreeKafkas
from bench.report import Report, conditions
from bench.spark_cells import SparkBench, SparkCell
from bench.spark_jars import CONNECTOR
from tools.kafka import KafkaUnavailable, install

RESULTS = Path(__file__).parent / "results"
#: Samples of Spark's cells, also in a quick run: a single query is too noisy.
SPARK_SAMPLES = 3


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes instead of an hour; numbers to trust less")
    parser.add_argument(
        "--only", action="append", default=[], metavar="GLOB", help="cells to run, e.g. 'produce/java/*'"
    )
    parser.add_argument("--list", action="store_true", help="print the cells and leave")
    parser.add_argument("--repeat", type=int, help="samples of each cell (default: 3, quick: 1, of Spark 3)")
    parser.add_argument("--gib", type=float, help="size of the log that recovery and moves are measured with")
    parser.add_argument("--peers", choices=("both", "penstock", "kafka"), default="both")
    parser.add_argument("--data", type=Path, help="where the brokers keep their data (default: a temporary directory)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="default: %(default)s")
    return parser.parse_args()


def main() -> int:
    told = options()
    scale = QUICK if told.quick else FULL
    if told.gib:
        scale = replace(scale, recovery_gib=told.gib, move_gib=told.gib)
    on_one_node = (*cells(scale), *share_cells.cells(scale), *streams_cells.cells(scale))
    chosen = [cell for cell in on_one_node if _wanted(cell, told.only)]
    of_moves = [cell for cell in move_cells.cells(scale) if _wanted(cell, told.only)]
    of_security = [cell for cell in security_cells.cells(scale) if _wanted(cell, told.only)]
    of_clusters = [cell for cell in cluster_cells.cells(scale) if _wanted(cell, told.only)]
    spark_scale = spark_cells.QUICK if told.quick else spark_cells.FULL
    of_spark = [cell for cell in spark_cells.cells(spark_scale) if _wanted(cell, told.only)]
    if told.list:
        every: list[Cell | ClusterCell | SparkCell] = [*chosen, *of_moves, *of_security, *of_clusters, *of_spark]
        print("\n".join(cell.name for cell in every))
        return 0
    if not chosen and not of_moves and not of_security and not of_clusters and not of_spark:
        print("bench: no cell matches --only: see --list", file=sys.stderr)
        return 2
    try:
        install()
    except KafkaUnavailable as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 1
    home = told.data or Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    peers, with_two_directories = _peers(told.peers, home), _peers(told.peers, home / "two-directories", directories=2)
    secured = security_cells.secured_peers(told.peers, home / "secured") if of_security else []
    clusters = _clusters(told.peers, home)
    spark = SparkBench(home / "spark")
    report = Report(conditions(["a quick run: fewer records and samples"] if told.quick else []))
    repeat, warm_records = told.repeat or (1 if told.quick else 3), 200_000 if told.quick else 2_000_000
    try:
        run(peers, chosen, repeat, warm_records, report)
        run(with_two_directories, of_moves, repeat, warm_records, report)
        run(secured, of_security, repeat, warm_records, report)
        run_clusters(clusters, of_clusters, repeat, warm_records // 4, report)
        run_spark(spark, of_spark, told.repeat or SPARK_SAMPLES, told.peers, report)
    finally:
        running: list[Peer | ClusterPeer | SparkBench] = [*peers, *with_two_directories, *secured, *clusters, spark]
        for each in running:
            with contextlib.suppress(Exception):
                each.stop()
        if told.data is None:
            shutil.rmtree(home, ignore_errors=True)
    print(report.markdown())
    print(f"written to {report.write(told.results)}")
    return 1 if report.failures else 0


def _wanted(cell: Cell | ClusterCell | SparkCell, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(cell.name, pattern) for pattern in patterns)


def _peers(which: str, home: Path, directories: int = 1) -> list[Peer]:
    both: list[Peer] = [
        Penstock(home / "penstock", directories=directories),
        Kafka(home / "kafka", directories=directories),
    ]
    return [peer for peer in both if which in ("both", peer.name)]


def _clusters(which: str, home: Path) -> list[ClusterPeer]:
    both: list[ClusterPeer] = [PenstockCluster(home / "penstock-cluster"), ThreeKafkas(home / "kafka-cluster")]
    return [peer for peer in both if which in ("both", peer.name)]


def run_clusters(
    peers: Sequence[ClusterPeer], chosen: Sequence[ClusterCell], repeat: int, warm_records: int, report: Report
) -> None:
    """Measures one cluster at a time: six brokers at once would overload the machine."""
    for peer in peers if chosen else ():
        started = peer.start()
        _say(f"{peer.name}: three nodes after {started:.1f} s")
        report.add("cluster/start", peer.name, {"start_s": started})
        cluster_cells.warm_up(peer, warm_records)
        for cell in chosen:
            for _ in range(repeat if cell.repeat else 1):
                _measure(cell.name, peer.name, partial(cell.measure, peer), report)
        peer.stop()
        peer.wipe()


def run_spark(bench: SparkBench, chosen: Sequence[SparkCell], repeat: int, which: str, report: Report) -> None:
    """Measures Spark's cells with one broker and one Spark session. The session's start is not part of a cell."""
    if not chosen:
        return
    version = bench.start()
    report.conditions["Spark"] = f"{version}; in spark/ cells Kafka is Spark's own Kafka connector, {CONNECTOR}"
    names = [name for name in (spark_cells.OURS, spark_cells.THEIRS) if which in ("both", name)]
    _say(f"warming up Spark {version}")
    bench.warm_up(names)
    uncounted = Report({})
    for cell in chosen:
        for number in range(cell.warm_runs + repeat):
            for name in names:
                if name in cell.peers:
                    kept = report if number >= cell.warm_runs else uncounted
                    _measure(cell.name, name, partial(cell.measure, bench, name), kept)
    bench.stop()


def run(peers: Sequence[Peer], chosen: Sequence[Cell], repeat: int, warm_records: int, report: Report) -> None:
    """Measures shared cells while both brokers run. A cell that restarts a broker gets a new, empty broker that runs
    alone."""
    shared = [cell for cell in chosen if not cell.fresh]
    if shared:
        for peer in peers:
            peer.start()
            _say(f"warming up {peer.name}")
            warm_up(peer, warm_records)
        for cell in shared:
            for _ in range(repeat if cell.repeat else 1):
                for peer in peers:
                    _measure(cell.name, peer.name, partial(cell.measure, peer), report)
        for peer in peers:
            peer.stop()
    for cell in chosen:
        if cell.fresh:
            for peer in peers:
                peer.stop()
                peer.wipe()
                peer.start()
                _measure(cell.name, peer.name, partial(cell.measure, peer), report)
                peer.stop()
                peer.wipe()


def _measure(name: str, peer: str, measure: Callable[[], Numbers], report: Report) -> None:
    began = time.monotonic()
    try:
        numbers = measure()
    except Exception as problem:
        report.failures.append(f"{name} on {peer}: {type(problem).__name__}: {problem}")
        _say(f"{name} {peer}: FAILED: {problem}")
        return
    report.add(name, peer, numbers)
    shown = ", ".join(f"{metric} {value:,.4g}" for metric, value in numbers.items())
    _say(f"{name} {peer}: {shown} ({time.monotonic() - began:.0f} s)")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
