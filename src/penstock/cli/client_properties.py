"""Reads `-X NAME=VALUE`: client settings under the names that Kafka's Java clients and librdkafka use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from penstock.cli.exit import Exit, Failure
from penstock.cli.options import pairs
from penstock.client.consumer import ConsumerSettings
from penstock.client.producer import ProducerSettings
from penstock.protocol.vocabulary import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from penstock.records.compression import Codec

ACKS = {"0": 0, "1": 1, "all": -1, "-1": -1}
ISOLATION = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}
RESETS = {"earliest": EARLIEST, "smallest": EARLIEST, "beginning": EARLIEST, "latest": LATEST, "largest": LATEST}
CODECS = {codec.name.lower(): int(codec) for codec in Codec}
TRUTH = {"true": True, "false": False}


def _seconds(text: str) -> float:
    return float(text) / 1000


# name → (field of the settings, parser of the value); several names may set the same field
PRODUCER: dict[str, tuple[str, Callable[[str], Any]]] = {
    "acks": ("acks", ACKS.__getitem__),
    "request.required.acks": ("acks", ACKS.__getitem__),
    "enable.idempotence": ("idempotent", TRUTH.__getitem__),
    "compression.type": ("compression", CODECS.__getitem__),
    "compression.codec": ("compression", CODECS.__getitem__),
    "compression.level": ("compression_level", int),
    "linger.ms": ("linger_s", _seconds),
    "queue.buffering.max.ms": ("linger_s", _seconds),
    "batch.size": ("batch_bytes", int),
    "max.request.size": ("request_max_bytes", int),
    "message.max.bytes": ("request_max_bytes", int),
    "buffer.memory": ("buffer_bytes", int),
    "delivery.timeout.ms": ("delivery_timeout_s", _seconds),
    "message.timeout.ms": ("delivery_timeout_s", _seconds),
    "allow.auto.create.topics": ("create_topics", TRUTH.__getitem__),
}
CONSUMER: dict[str, tuple[str, Callable[[str], Any]]] = {
    "isolation.level": ("isolation_level", ISOLATION.__getitem__),
    "fetch.max.wait.ms": ("max_wait_ms", int),
    "fetch.wait.max.ms": ("max_wait_ms", int),
    "fetch.min.bytes": ("min_bytes", int),
    "fetch.max.bytes": ("max_bytes", int),
    "max.partition.fetch.bytes": ("partition_max_bytes", int),
    "fetch.message.max.bytes": ("partition_max_bytes", int),
    "check.crcs": ("check_crc", TRUTH.__getitem__),
    "auto.offset.reset": ("reset", RESETS.__getitem__),
}


def producer_settings(texts: Iterable[str], base: ProducerSettings) -> ProducerSettings:
    return replace(base, **_read(texts, PRODUCER))


def consumer_settings(texts: Iterable[str], base: ConsumerSettings) -> ConsumerSettings:
    return replace(base, **_read(texts, CONSUMER))


def _read(texts: Iterable[str], known: dict[str, tuple[str, Callable[[str], Any]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, text in pairs(texts, "-X").items():
        if name not in known:
            raise Failure(f"-X does not support {name}: it supports {', '.join(sorted(known))}", Exit.USAGE)
        field, read = known[name]
        try:
            found[field] = read(text)
        except (KeyError, ValueError):
            raise Failure(f"-X {name}: {text!r} is not a valid value", Exit.USAGE) from None
    return found
