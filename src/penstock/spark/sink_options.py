"""The sink's options: Spark's names for its Kafka sink, producer properties as `kafka.*`, and `exactlyOnce`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TypeVar

from penstock.client.producer import ALL
from penstock.spark.errors import SourceError
from penstock.spark.options import IGNORED as CONSUMERS
from penstock.spark.options import OURS as SOURCES

T = TypeVar("T")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


OURS = ("topic", "exactlyOnce", "includeHeaders", "checkpointLocation", "queryName", "path")
ACTED_ON = _words(
    "bootstrap.servers client.id acks compression.type compression.gzip.level compression.lz4.level "
    "compression.zstd.level batch.size max.request.size buffer.memory delivery.timeout.ms request.timeout.ms "
    "transaction.timeout.ms enable.idempotence socket.connection.setup.timeout.ms retry.backoff.ms "
    "retry.backoff.max.ms security.protocol ssl.truststore.location ssl.truststore.type "
    "ssl.endpoint.identification.algorithm ssl.keystore.location ssl.keystore.type ssl.ca.location"
)
IGNORED = (
    *CONSUMERS,
    *_words(
        "linger.ms retries max.in.flight.requests.per.connection max.block.ms metadata.max.idle.ms "
        "partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.ignore.keys"
    ),
)
REFUSED = {
    "key.serializer": "keys are written as the bytes that they are",
    "value.serializer": "values are written as the bytes that they are: convert the column before",
    "transactional.id": "ids are chosen so that a restarted query finds its own; see exactlyOnce",
    "transaction.two.phase.commit.enable": "exactlyOnce sees to it",
    "partitioner.class": "give rows a column `partition` instead",
    "interceptor.classes": "nothing here runs Java classes",
}
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_TRUTH = {"true": True, "false": False}
_ACKS = {"all": ALL, "-1": ALL, "1": 1, "0": 0}

#: Of a batch before compression; a broker takes 1 MiB unless told otherwise.
DEFAULT_BATCH_BYTES = 960 * 1024


@dataclass(frozen=True, slots=True)
class SinkOptions:
    bootstrap: str
    topic: str | None = None
    exactly_once: bool = False
    acks: int = ALL
    idempotent: bool = True
    compression: int = 0
    compression_level: int | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES
    buffer_bytes: int = 32 * 1024 * 1024
    delivery_timeout_ms: int = 120_000
    transaction_timeout_ms: int = 900_000
    client: Mapping[str, str] = field(default_factory=dict)
    """`kafka.*`, without the prefix."""


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Raises SourceError with the first thing that is wrong."""
    given = {name.lower(): str(value) for name, value in options.items()}
    _check_names(options)
    client = {name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")}
    _check_properties(client)
    exactly_once = _read(given, "exactlyOnce", lambda text: _TRUTH[text.lower()], "true or false", streaming)
    acks = _read(client, "acks", lambda text: _ACKS[text.lower()], "all, 1 or 0", ALL, "kafka.")
    idempotent = _read(
        client, "enable.idempotence", lambda text: _TRUTH[text.lower()], "true or false", acks == ALL, "kafka."
    )
    if acks != ALL and (idempotent or exactly_once):
        raise SourceError(
            f"kafka.acks={client['acks']} loses records: leave it out, or set exactlyOnce and "
            "kafka.enable.idempotence to false."
        )
    codec = _read(
        client, "compression.type", lambda text: text if CODECS[text] else "", ", ".join(CODECS), "", "kafka."
    )
    level_name = f"compression.{codec}.level"
    return SinkOptions(
        bootstrap=client["bootstrap.servers"],
        topic=given.get("topic") or given.get("path"),
        exactly_once=exactly_once,
        acks=acks,
        idempotent=idempotent,
        compression=CODECS[codec or "none"],
        compression_level=_number(client, level_name, -(2**17)) if level_name in client else None,
        batch_bytes=_number(client, "batch.size", 1, _number(client, "max.request.size", 1024, DEFAULT_BATCH_BYTES)),
        buffer_bytes=_number(client, "buffer.memory", 1024, 32 * 1024 * 1024),
        delivery_timeout_ms=_number(client, "delivery.timeout.ms", 1, 120_000),
        transaction_timeout_ms=_number(client, "transaction.timeout.ms", 1, 900_000),
        client=client,
    )


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in (*OURS, *SOURCES)}
    for name in options:
        if name.lower() not in known and not name.lower().startswith("kafka."):
            found = get_close_matches(name.lower(), known, n=1)
            raise SourceError(f"Option {name!r} is unknown{_did_you_mean(known[found[0]]) if found else ''}.")


def _check_properties(client: Mapping[str, str]) -> None:
    known = (*ACTED_ON, *IGNORED)
    for name in client:
        if name in REFUSED:
            raise SourceError(f"Option kafka.{name} can't be set here: {REFUSED[name]}.")
        if name not in known and not name.startswith(("ssl.", "sasl.")):
            found = get_close_matches(name, known, n=1)
            hint = _did_you_mean(f"kafka.{found[0]}") if found else ""
            raise SourceError(f"Option kafka.{name} is no property of Kafka's producer{hint}.")
    if not client.get("bootstrap.servers"):
        raise SourceError("Option kafka.bootstrap.servers is missing: give it host:port of a broker.")


def _did_you_mean(name: str) -> str:
    return f" (is {name} meant?)"


def _read(given: Mapping[str, str], name: str, read: Callable[[str], T], takes: str, default: T, prefix: str = "") -> T:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        return read(text.strip())
    except (KeyError, ValueError):
        raise SourceError(f"Option {prefix}{name} is {text!r}: it takes {takes}.") from None


def _number(client: Mapping[str, str], name: str, least: int, default: int = 0) -> int:
    found = _read(client, name, int, "a whole number", default, "kafka.")
    if found < least:
        raise SourceError(f"Option kafka.{name} is {found}: it takes {least} or more.")
    return found
