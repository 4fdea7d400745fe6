"""Tests real processes under load from stock clients: a seed decides which nodes are killed, stopped and started again.

At most a minority of nodes is down at a time, so that writes stay possible. The next fault follows as soon as writes
succeed again, even if the last killed node is not in sync yet.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tools.acknowledged_load import QUIET, WRITERS, Book, Load, forget_leftovers, judge
from tools.process_cluster import ProcessCluster

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PARTITIONS = 3
SEED = int(os.environ.get("PENSTOCK_CHAOS_SEED", "1"))
ROUNDS_LIMIT_S = 1800.0
SHORT_PAUSE_S = (0.1, 0.5)
LONG_PAUSE_S = (0.2, 8.0)

Pause = tuple[float, float]


@pytest.fixture(autouse=True)
def leftovers() -> Iterator[None]:
    yield
    forget_leftovers()


def create(cluster: ProcessCluster, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    made = admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in names])
    for future in made.values():
        future.result(timeout=120)


def one_round(cluster: ProcessCluster, choose: random.Random, pause: Pause) -> str:
    victim = choose.choice(sorted(cluster.nodes))
    how = choose.choice(("kill", "kill", "pause", "stop"))
    if how == "pause":
        cluster.pause(victim)
        time.sleep(choose.uniform(*pause))  # the fault itself: how long the process is paused
        cluster.resume(victim)
    else:
        cluster.kill(victim) if how == "kill" else cluster.stop(victim)
        if choose.random() < 0.5:
            time.sleep(choose.uniform(*pause))  # the fault itself: how long the process is down
        cluster.start(victim)
    return f"{how} {victim}"


def run_rounds(home: Path, rounds: int, writers: list[str], seed: int, pause: Pause) -> None:
    choose = random.Random(seed)
    done: list[str] = []
    with ProcessCluster(home) as cluster:
        books = [Book(f"load-{name}", PARTITIONS) for name in writers]
        create(cluster, *(book.topic for book in books))
        loads = [Load(cluster.bootstrap, book, WRITERS[name]) for book, name in zip(books, writers)]
        began = time.monotonic()
        try:
            for book in books:
                book.wait_for(100)
            while len(done) < rounds and time.monotonic() - began < ROUNDS_LIMIT_S:
                done.append(one_round(cluster, choose, pause))
                for book in books:
                    book.wait_for(choose.randrange(20, 500))
        except AssertionError as problem:
            raise AssertionError(f"seed {seed} after {done}: {problem}") from problem
        finally:
            for load in loads:
                load.stop()
        try:
            for book in books:
                judge(cluster.bootstrap, book)
        except AssertionError as problem:
            raise AssertionError(f"seed {seed} after {done}: {problem}") from problem
        gaps = ", ".join(f"{book.topic} {len(book.acknowledged)} ({book.longest_gap_s:.1f} s)" for book in books)
        print(f"{len(done)} rounds in {time.monotonic() - began:.0f} s; acknowledged (longest pause): {gaps}")


@pytest.mark.timeout(180)
def test_no_record_is_lost_or_duplicated_when_nodes_fail_three_times_in_a_row(tmp_path: Path) -> None:
    run_rounds(tmp_path, 3, ["confluent"], SEED, SHORT_PAUSE_S)


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_no_record_is_lost_or_duplicated_when_nodes_fail_up_to_a_hundred_times_in_a_row(tmp_path: Path) -> None:
    run_rounds(tmp_path, 100, ["confluent", "kafka-python", "aiokafka"], SEED + 1000, LONG_PAUSE_S)
