"""Parses the sink's options. Pure code.

These are the options of Spark's Kafka sink, producer properties (`kafka.*`), and `exactlyOnce`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.client.producer import ALL
from penstock.spark.errors import SourceError
from penstock.spark.option_names import (
    COMPATIBILITIES,
    PRODUCER_ACTED_ON,
    PRODUCER_IGNORED,
    PRODUCER_REFUSED,
    client_properties,
    unknown_options,
)

T = TypeVar("T")


CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_TRUTH = {"true": True, "false": False}
_COMPATIBILITIES = {name: name for name in COMPATIBILITIES}
_EXTRA_COLUMNS = {"error": False, "ignore": True}
_ACKS = {"all": ALL, "-1": ALL, "1": 1, "0": 0}

#: Bytes of a batch before compression; a broker accepts 1 MiB by default.
DEFAULT_BATCH_BYTES = 960 * 1024


@dataclass(frozen=True, slots=True)
class SinkOptions:
    bootstrap: str
    topic: str | None = None
    exactly_once: bool = False
    create_topics: bool = True
    """True: a missing topic is created, if the broker creates topics for producers."""
    ignore_extra: bool = False
    """True: columns that are not a field of a record are left out. False: they are an error."""
    keep_timestamps: bool = True
    """True: column `timestamp` is the record's timestamp. False: it is an extra column, as in Spark's own sink."""
    acks: int = ALL
    idempotent: bool = True
    compression: int = 0
    compression_level: int | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES
    buffer_bytes: int = 32 * 1024 * 1024
    delivery_timeout_ms: int = 120_000
    transaction_timeout_ms: int = 900_000
    client: Mapping[str, str] = field(default_factory=dict)
    """The `kafka.*` options, without the prefix."""
    without_effect: tuple[str, ...] = ()
    """Names of options that are ignored, for a warning."""


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parses the sink's options. Raises SourceError for the first wrong option."""
    given = {name.lower(): str(value) for name, value in options.items()}
    takes = ", ".join(COMPATIBILITIES)
    chosen = _read(given, "compatibility", lambda text: _COMPATIBILITIES[text.lower()], takes, COMPATIBILITIES[0])
    lenient = chosen == "kafka"
    unknown = unknown_options(options, lenient=lenient)
    known = (*PRODUCER_ACTED_ON, *PRODUCER_IGNORED)
    client, others = client_properties(given, known, PRODUCER_REFUSED, lenient=lenient)
    exactly_once = _truth(given, "exactlyOnce", streaming and not lenient)
    acks = _read(client, "acks", lambda text: _ACKS[text.lower()], "all, 1 or 0", ALL, "kafka.")
    idempotent = _read(
        client, "enable.idempotence", lambda text: _TRUTH[text.lower()], "true or false", acks == ALL, "kafka."
    )
    if acks != ALL and (idempotent or exactly_once):
        raise SourceError(
            f"Option kafka.acks={client['acks']} can lose records: remove this option, or set exactlyOnce and "
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
        create_topics=_truth(given, "autoCreateTopics", True),
        ignore_extra=_read(given, "extraColumns", lambda text: _EXTRA_COLUMNS[text.lower()], "error, ignore", lenient),
        keep_timestamps=not lenient,
        acks=acks,
        idempotent=idempotent,
        compression=CODECS[codec or "none"],
        compression_level=_number(client, level_name, -(2**17)) if level_name in client else None,
        batch_bytes=_number(client, "batch.size", 1, _number(client, "max.request.size", 1024, DEFAULT_BATCH_BYTES)),
        buffer_bytes=_number(client, "buffer.memory", 1024, 32 * 1024 * 1024),
        delivery_timeout_ms=_number(client, "delivery.timeout.ms", 1, 120_000),
        transaction_timeout_ms=_number(client, "transaction.timeout.ms", 1, 900_000),
        client=client,
        without_effect=(*unknown, *others),
    )


def _truth(given: Mapping[str, str], name: str, default: bool) -> bool:
    return _read(given, name, lambda text: _TRUTH[text.lower()], "true or false", default)


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
