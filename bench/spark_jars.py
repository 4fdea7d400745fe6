"""Spark's own Kafka connector, fetched from Maven Central once: what our source and sink are measured beside.

The connector's module for access tokens is not there in every version that the connector itself is; it does nothing
unless tokens are used, so the newest one that is there does.
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
    """Raises KafkaUnavailable."""
    # Only these four: everything else that they need is in Spark already.
    home = fetch(ARTIFACTS, CACHE / "spark-connector", whole=False)
    return [home / f"{name}-{version}.jar" for _, name, version in ARTIFACTS]
