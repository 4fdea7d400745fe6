"""Fetches Spark's own Kafka connector from Maven Central once, to compare Penstock's source and sink with it.

The connector's module for access tokens is not published in every version of the connector. It has no effect without
tokens, so the newest published version is used.
"""

from __future__ import annotations

from pathlib import Path

from tools.kafka import CACHE, fetch

CONNECTOR = "4.2.0"
ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.1"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)


def connector_jars() -> list[Path]:
    """Returns the connector's jars, and downloads them if they are missing. Raises KafkaUnavailable."""
    # Only these four: Spark has their other dependencies.
    home = fetch(ARTIFACTS, CACHE / "spark-connector", whole=False)
    return [home / f"{name}-{version}.jar" for _, name, version in ARTIFACTS]
