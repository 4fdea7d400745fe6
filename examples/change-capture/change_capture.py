"""Keeps a table equal to a database from the database's changes: inserts, updates, deletes, and a new column.

    penstock up &
    python examples/change-capture/change_capture.py --bootstrap 127.0.0.1:9092 --table /tmp/customers

A simulated database of customers writes each change to a topic: the new row with the customer's id as key, and a null
value for a deleted customer. `penstock pipeline table --mode upsert` keeps the table; this program compares both.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from typing import Any

TOPIC = "customers"
CITIES = ("Bern", "Chur", "Genf", "Olten", "Thun")
Change = tuple[str, dict[str, Any] | None]


def changes(seed: int, count: int) -> tuple[list[Change], dict[str, dict[str, Any]]]:
    """Returns the changes in order, and the rows of the database after them. Half-way a column is added."""
    chance = random.Random(seed)
    rows: dict[str, dict[str, Any]] = {}
    made: list[Change] = []
    for number in range(count):
        known = sorted(rows)
        what = chance.random()
        if known and what < 0.15:
            gone = chance.choice(known)
            del rows[gone]
            made.append((gone, None))
            continue
        key = chance.choice(known) if known and what < 0.6 else f"customer-{number}"
        row: dict[str, Any] = {"id": key, "city": chance.choice(CITIES), "orders": chance.randrange(100)}
        if number >= count // 2:
            row["vip"] = chance.random() < 0.2
        rows[key] = row
        made.append((key, row))
    return made, rows


def produce(bootstrap: str, made: list[Change]) -> None:
    from penstock.client.sync import Client

    with Client(bootstrap) as client, client.producer() as producer:
        values = ((key, None if row is None else json.dumps(row).encode()) for key, row in made)
        producer.send_many(TOPIC, [(key.encode(), value, (), None) for key, value in values])


def keep_current(bootstrap: str, table: str) -> None:
    """Runs the command as a user types it; with --follow it would keep running."""
    command = [sys.executable, "-m", "penstock.cli.main", "pipeline", "table", TOPIC, table, "--mode", "upsert"]
    subprocess.run([*command, "--bootstrap", bootstrap], check=True)


def rows_of(table: str) -> dict[str, dict[str, Any]]:
    from penstock.spark import session

    spark = session("change-capture", delta=True, config={"spark.log.level": "ERROR"})
    rows = spark.read.format("delta").load(table).select("id", "city", "orders", "vip").collect()
    spark.stop()
    return {row["id"]: {name: value for name, value in row.asDict().items() if value is not None} for row in rows}


def main() -> int:
    from penstock.pipelines.topics import create_like

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--table", default="/tmp/customers")
    parser.add_argument("--changes", type=int, default=2000)
    args = parser.parse_args()
    made, expected = changes(1, args.changes)
    if not create_like(args.bootstrap, TOPIC, 3):
        print(f"topic {TOPIC} already exists: run `penstock topic delete {TOPIC}` to start again", file=sys.stderr)
        return 5
    half = len(made) // 2
    for part in (made[:half], made[half:]):
        produce(args.bootstrap, part)
        keep_current(args.bootstrap, args.table)
    found = rows_of(args.table)
    print(f"{len(made)} changes, {len(expected)} rows in the database, {len(found)} in the table")
    return 0 if found == expected else 1


if __name__ == "__main__":
    sys.exit(main())
