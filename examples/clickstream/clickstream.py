"""Turns clicks into sessions and a dashboard: event time, late data and custom state, from a topic to tables.

    penstock up &
    python examples/clickstream/clickstream.py --bootstrap 127.0.0.1:9092 --out /tmp/clickstream

`sessions` has a row for each visit (a visitor's clicks with less than 30 minutes between them), written once the
watermark has passed its end: `Visits` keeps the clicks of open visits in Spark's state store and a timer for the end of
each (transformWithState). `dashboard` has the clicks for each page and hour, and is replaced with every batch.
Clicks that arrive out of order are counted correctly; clicks older than the watermark are dropped.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

TOPIC = "clickstream"
SCHEMA = "user STRING, page STRING, at TIMESTAMP"
PAGES = ("/", "/search", "/product", "/cart", "/checkout")
GAP_MS = 30 * 60 * 1000
LATE = "2 hours"
#: The only state store that transformWithState supports.
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
BEGIN = datetime(2026, 1, 5, 8, tzinfo=UTC)


def visits(seed: int, visitors: int) -> list[tuple[datetime, dict[str, str]]]:
    """Returns clicks of simulated visitors, as (time of arrival, click). Each visitor comes twice, hours apart."""
    chance = random.Random(seed)
    clicks = []
    for number in range(visitors):
        for visit in range(2):
            at = BEGIN + timedelta(minutes=chance.randrange(120), hours=6 * visit)
            for _ in range(chance.randint(1, 8)):
                # Some phones are offline for a while, so that their clicks arrive late.
                delay = timedelta(minutes=chance.randrange(60) if chance.random() < 0.1 else 0)
                click = {"user": f"visitor-{number}", "page": chance.choice(PAGES), "at": at.isoformat()}
                clicks.append((at + delay, click))
                at += timedelta(seconds=chance.randint(5, 600))
    return sorted(clicks, key=lambda each: each[0])


def late_click() -> dict[str, str]:
    """Returns a click of the first morning that arrives on the next day, older than the watermark."""
    return {"user": "visitor-late", "page": "/", "at": BEGIN.isoformat()}


def closing_click() -> dict[str, str]:
    """Returns a click a day later, which moves the watermark past all visits before it."""
    return {"user": "visitor-next-day", "page": "/", "at": (BEGIN + timedelta(days=1)).isoformat()}


def produce(bootstrap: str, clicks: Iterator[dict[str, str]] | list[dict[str, str]]) -> None:
    from penstock.client.sync import Client

    with Client(bootstrap) as client, client.producer() as producer:
        producer.send_many(TOPIC, [(click["user"].encode(), json.dumps(click).encode(), (), None) for click in clicks])


def clicks_of(spark: Any, bootstrap: str) -> Any:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": TOPIC,
        "startingOffsets": "earliest",
        "value.format": "json",
        "value.schema": SCHEMA,
    }
    records = spark.readStream.format("penstock").options(**options).load()
    return records.select("value.*").withWatermark("at", LATE)


Click = tuple[int, str]
"""The time of a click in ms, and its page."""


def apart(clicks: list[Click]) -> list[list[Click]]:
    """Splits a visitor's clicks into visits, oldest first."""
    found: list[list[Click]] = []
    for click in sorted(clicks):
        if found and click[0] - found[-1][-1][0] < GAP_MS:
            found[-1].append(click)
        else:
            found.append([click])
    return found


class Visits(StatefulProcessor):
    """Keeps the clicks of a visitor's open visits. A timer ends each visit GAP after its last click."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.open = handle.getListState("open", "at BIGINT, page STRING")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        self._keep(apart([*self.open.get(), *((row["at_ms"], row["page"]) for row in rows)]))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        now = timerValues.getCurrentWatermarkInMs()
        visits = apart(list(self.open.get()))
        self._keep([visit for visit in visits if visit[-1][0] + GAP_MS > now])
        for visit in visits:
            (begin, entry), (end, exit) = visit[0], visit[-1]
            if end + GAP_MS <= now:
                yield Row(user=key[0], start=begin, end=end, clicks=len(visit), entry=entry, exit=exit)

    def _keep(self, visits: list[list[Click]]) -> None:
        # A click may have moved the end of a visit, or joined two visits: all timers are set again.
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        if visits:
            self.open.put([click for visit in visits for click in visit])
        else:
            self.open.clear()
        for visit in visits:
            self.handle.registerTimer(visit[-1][0] + GAP_MS)


def start_sessions(spark: Any, bootstrap: str, out: str) -> Any:
    from pyspark.sql import functions as f

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_STORE)
    schema = "user STRING, start BIGINT, end BIGINT, clicks INT, entry STRING, exit STRING"
    clicks = clicks_of(spark, bootstrap).withColumn("at_ms", f.unix_millis("at"))
    visits = clicks.groupBy("user").transformWithState(Visits(), schema, "Append", "EventTime")
    times = {name: f.timestamp_millis(name) for name in ("start", "end")}
    writer = visits.withColumns(times).writeStream.outputMode("append").format("parquet")
    return (
        writer.option("checkpointLocation", f"{out}/checkpoints/sessions")
        .trigger(availableNow=True)
        .start(f"{out}/sessions")
    )


def start_dashboard(spark: Any, bootstrap: str, out: str) -> Any:
    from pyspark.sql import functions as f

    counts = clicks_of(spark, bootstrap).groupBy(f.window("at", "1 hour").alias("hour"), "page").count()
    rows = counts.select(f.col("hour.start").alias("hour"), "page", f.col("count").alias("clicks"))

    def replace(batch: Any, _: int) -> None:
        batch.coalesce(1).write.mode("overwrite").parquet(f"{out}/dashboard")

    writer = rows.writeStream.outputMode("complete").foreachBatch(replace)
    return writer.option("checkpointLocation", f"{out}/checkpoints/dashboard").trigger(availableNow=True).start()


def main() -> None:
    from penstock.pipelines.running import run
    from penstock.pipelines.topics import create_like
    from penstock.spark import session

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--out", default="/tmp/clickstream")
    parser.add_argument("--visitors", type=int, default=200)
    args = parser.parse_args()
    if create_like(args.bootstrap, TOPIC, 4):
        produce(args.bootstrap, [click for _, click in visits(1, args.visitors)] + [closing_click()])
    spark = session("clickstream", config={"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "4"})
    run(lambda: start_sessions(spark, args.bootstrap, args.out))
    run(lambda: start_dashboard(spark, args.bootstrap, args.out))
    spark.read.parquet(f"{args.out}/sessions").orderBy("start").show(10, truncate=False)
    spark.read.parquet(f"{args.out}/dashboard").orderBy("hour", "page").show(20, truncate=False)
    spark.stop()


if __name__ == "__main__":
    main()
