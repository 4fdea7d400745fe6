"""Runs the demo: produces events, keeps a table of them, and checks that the table has exactly these events."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from penstock.pipelines.running import Pace
from penstock.pipelines.table import TableJob
from penstock.pipelines.topics import Topic

TOPIC = "clicks"
SCHEMA = "id BIGINT, user STRING, page STRING, ms INT"
PAGES = ("/", "/search", "/product", "/cart", "/checkout", "/help")
USERS = 500
#: Pages, and how often each is visited.
WEIGHTS = (30, 24, 28, 10, 5, 3)


def events(seed: int) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yields random clicks of users without end. The same seed gives the same clicks."""
    chance = random.Random(seed)  # noqa: S311 (made-up visitors)
    number = 0
    while True:
        user = f"user-{chance.randrange(USERS)}"
        [page] = chance.choices(PAGES, WEIGHTS)
        yield user.encode(), {"id": number, "user": user, "page": page, "ms": int(chance.lognormvariate(5, 0.6))}
        number += 1


class Generator:
    """Produces `rate` events per second in its own thread, and counts the acknowledged events."""

    def __init__(self, bootstrap: str, rate: int, seed: int = 7) -> None:
        self.produced: Counter[str] = Counter()
        self.spent_ms: Counter[str] = Counter()
        self.problem: BaseException | None = None
        self._bootstrap = bootstrap
        self._rate = rate
        self._events = events(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    @property
    def total(self) -> int:
        return sum(self.produced.values())

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops the producer, and returns when all sent events are acknowledged. Raises the thread's error, if it
        had one."""
        self._stopping.set()
        self._thread.join()
        if self.problem is not None:
            raise self.problem

    def _run(self) -> None:
        from penstock.client.sync import Client

        try:
            with Client(self._bootstrap) as client, client.producer() as producer:
                while not self._stopping.is_set():
                    batch = [next(self._events) for _ in range(max(1, self._rate // 4))]
                    producer.send_many(TOPIC, [(key, json.dumps(event).encode(), (), None) for key, event in batch])
                    producer.flush()
                    for _, event in batch:
                        self.spent_ms[event["page"]] += event["ms"]
                        self.produced[event["page"]] += 1
                    self._stopping.wait(0.25)
        except BaseException as problem:
            self.problem = problem


def job(bootstrap: str, path: str, *, follow: bool) -> TableJob:
    """Returns the job that writes clicks to a Parquet table, a format for which Spark needs no additional jar."""
    pace = Pace(follow=follow, every="2 seconds")
    return TableJob(Topic(bootstrap, TOPIC), path, format="parquet", value_schema=SCHEMA, pace=pace)


def by_page(spark: Any, path: str) -> list[dict[str, Any]]:
    """Returns the rows of the dashboard; an empty list before the first batch.

    This query runs every few seconds, also on slow machines. So it counts users with exact sets. For a few hundred
    users, exact sets are cheaper than Spark's approximate count, whose code takes seconds to compile.
    """
    from pyspark.sql import functions as f

    users = f.size(f.collect_set("user")).alias("users")
    return _by_page(spark, path, users, f.sum("ms").alias("ms"))


def to_compare(spark: Any, path: str) -> list[dict[str, Any]]:
    """Returns each page of the table with its clicks, its different ids and its total time, for `differences`."""
    from pyspark.sql import functions as f

    return _by_page(spark, path, f.countDistinct("id").alias("ids"), f.sum("ms").alias("ms"))


def _by_page(spark: Any, path: str, *columns: Any) -> list[dict[str, Any]]:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    try:
        table = spark.read.schema(SCHEMA).parquet(path)
        rows = table.groupBy("page").agg(f.count("*").alias("clicks"), *columns).collect()
    except AnalysisException:
        return []
    return sorted((row.asDict() for row in rows), key=lambda row: (-row["clicks"], str(row["page"])))


def differences(found: list[dict[str, Any]], produced: Counter[str], spent_ms: Counter[str]) -> list[str]:
    """Returns the differences between the table and the produced events; empty if there are none."""
    told = []
    rows = {row["page"]: row for row in found}
    for page in sorted(set(rows) | set(produced), key=str):
        row = rows.get(page, {"clicks": 0, "ids": 0, "ms": 0})
        if row["clicks"] != row["ids"]:
            told.append(f"{page}: {row['clicks'] - row['ids']} rows twice")
        if row["ids"] != produced[page]:
            told.append(f"{page}: {row['ids']} of {produced[page]} events")
        elif row["ms"] != spent_ms[page]:
            told.append(f"{page}: other values than were produced")
    return told
