"""Writes rows to a topic and reads them back, in batch and as a stream, with given options of a secured cluster.

python secured_job.py JARS PLACE FORMAT < options.json    prints the values that were read, as JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROWS = 30


def round_trip(spark: Any, name: str, options: Mapping[str, str], place: Path) -> list[list[str]]:
    """Returns the values that a batch query and a streaming query read."""
    topic = f"secured-{name}"
    rows = spark.range(ROWS).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    rows.write.format(name).options(**options).option("topic", topic).mode("append").save()
    read = spark.read.format(name).options(**options).option("subscribe", topic).load()
    batch = [str(row.value) for row in read.selectExpr("CAST(value AS STRING) AS value").collect()]
    stream = spark.readStream.format(name).options(**options).option("subscribe", topic)
    query = (
        stream.option("startingOffsets", "earliest")
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("memory")
        .queryName(f"found_{name}")
        .option("checkpointLocation", str(place / f"checkpoint-{name}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(300)
    streamed = [str(row.value) for row in spark.sql(f"SELECT value FROM found_{name}").collect()]
    return [sorted(batch, key=int), sorted(streamed, key=int)]


def main(jars: str, place: str, name: str) -> None:
    from penstock.spark import session

    options = json.load(sys.stdin)
    config = {"spark.ui.enabled": "false", "spark.jars": jars, "spark.log.level": "ERROR"}
    config["spark.sql.warehouse.dir"] = f"{place}/warehouse"
    spark = session("secured", master="local[2]", memory="768m", config=config)
    found = round_trip(spark, name, options, Path(place))
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
