"""Parses the options of `format("penstock")`: the options of Spark's Kafka source, and Penstock's own. Pure code.

Names are case-insensitive, as everywhere in Spark; `option_names` lists them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.protocol.vocabulary import EARLIEST, LATEST, TopicPartition
from penstock.spark.errors import SourceError
from penstock.spark.java_patterns import PatternError, java_pattern
from penstock.spark.option_names import (
    COMPATIBILITIES,
    CONSUMER_ACTED_ON,
    CONSUMER_IGNORED,
    CONSUMER_REFUSED,
    client_properties,
    unknown_options,
)

T = TypeVar("T")

POSITIONS = {"earliest": EARLIEST, "latest": LATEST}

READ_MODES = ("auto", "wire", "files")
#: Columns that hold a value which could not be decoded, and the reason.
BAD_VALUE = "bad_value"
BAD_REASON = "bad_reason"
VALUE_FORMATS = ("binary", "string", "json", "csv", "avro", "protobuf")
STRATEGIES = ("error", "latest")
DEFAULT_FETCH_BYTES = 8 * 1024 * 1024


_TRUTH = {"true": True, "false": False}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_UNITS = {None: 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Position:
    """Holds the position at which reading starts or ends. Exactly one field is set.

    `everywhere` and `timestamp_ms` apply to all partitions; `offsets` and `timestamps` have a value for each partition.
    EARLIEST and LATEST are also valid as times, as in Kafka's ListOffsets.
    """

    everywhere: int | None = None
    """EARLIEST or LATEST for all partitions."""
    timestamp_ms: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamps: Mapping[TopicPartition, int] | None = None

    @property
    def named(self) -> Mapping[TopicPartition, int] | None:
        return self.offsets if self.offsets is not None else self.timestamps


@dataclass(frozen=True, slots=True)
class ValueOptions:
    format: str = "binary"
    schema: str | None = None
    bad: str = "column"
    """The treatment of bad records: `column`, `fail`, or `topic:` and the name of the topic to which
    they are written."""
    message: str | None = None
    descriptor: str | None = None
    delimiter: str = ","
    confluent: bool = False
    infer_records: int = 1000


@dataclass(frozen=True, slots=True)
class SourceOptions:
    bootstrap: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()
    starting: Position | None = None
    """Where reading starts. None stands for the default: earliest for a batch, latest for a stream."""
    ending: Position = Position(everywhere=LATEST)
    strict_start_time: bool = True
    fail_on_data_loss: bool = True
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    read_committed: bool = False
    read_mode: str = "auto"
    push_filters: bool = False
    commit_group: str | None = None
    poll_timeout_ms: int = 120_000
    value: ValueOptions = ValueOptions()
    client: Mapping[str, str] = field(default_factory=dict)
    """The `kafka.*` options, without the prefix."""
    without_effect: tuple[str, ...] = ()
    """Names of options that are ignored, for a warning."""

    @property
    def wanted(self) -> str:
        """Returns a text for messages: the topics to read, or the pattern that they match."""
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        return ", ".join(self.topics or sorted({topic for topic, _ in self.assigned}))


def parse_options(options: Mapping[str, str], *, streaming: bool | None = False) -> SourceOptions:
    """Parses the source's options. Raises SourceError for the first wrong option.

    `streaming` is None if it is not known yet whether the query is a stream.
    """
    given = _Given(options)
    client = given.client
    topics, pattern, assigned = given.topics()
    starting, ending = given.position("starting"), given.position("ending")
    if streaming and ending is not None:
        raise SourceError(
            "Ending offsets are for batch reads: a stream ends with trigger(availableNow=True) or stop()."
        )
    if streaming is False:
        _check_batch(starting, ending)
    for position, what in ((starting, "starting"), (ending, "ending")):
        _check_named(position, what, topics, assigned)
    value = ValueOptions(
        format=given.choice("value.format", VALUE_FORMATS, "binary"),
        schema=given.text("value.schema"),
        bad=given.text("value.bad") or "column",
        message=given.text("value.message"),
        descriptor=given.text("value.descriptor"),
        delimiter=given.text("value.csv.delimiter") or ",",
        confluent=given.truth("value.avro.confluent", False),
        infer_records=given.number("value.infer.records", 1) or 1000,
    )
    chosen = SourceOptions(
        bootstrap=client["bootstrap.servers"],
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        starting=starting,
        ending=ending or Position(everywhere=LATEST),
        strict_start_time=given.choice("startingOffsetsByTimestampStrategy", STRATEGIES, "error") == "error",
        fail_on_data_loss=given.truth("failOnDataLoss", True),
        max_offsets=given.number("maxOffsetsPerTrigger", 1),
        min_offsets=given.number("minOffsetsPerTrigger", 1),
        max_trigger_delay_ms=given.duration("maxTriggerDelay", 15 * 60_000),
        min_partitions=given.number("minPartitions", 1),
        max_records_per_partition=given.number("maxRecordsPerPartition", 1),
        include_headers=given.truth("includeHeaders", False),
        read_committed=_read_committed(client),
        read_mode=given.choice("read.mode", READ_MODES, "auto"),
        push_filters=given.truth("push.filters", False),
        commit_group=given.text("commit.group"),
        poll_timeout_ms=given.number("kafkaConsumer.pollTimeoutMs", 1) or 120_000,
        value=value,
        client=client,
        without_effect=tuple(given.without_effect),
    )
    if chosen.max_offsets and chosen.min_offsets and chosen.min_offsets > chosen.max_offsets:
        raise SourceError(
            "Option minOffsetsPerTrigger is above maxOffsetsPerTrigger: lower the minimum, or raise the maximum."
        )
    return chosen


class _Given:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): str(value) for name, value in options.items()}
        lenient = self.choice("compatibility", COMPATIBILITIES, "safe") == "kafka"
        self.without_effect = unknown_options(options, lenient=lenient)
        known = (*CONSUMER_ACTED_ON, *CONSUMER_IGNORED)
        self.client, unknown = client_properties(self._options, known, CONSUMER_REFUSED, lenient=lenient)
        self.without_effect += unknown

    def text(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        text = (self.text(name) or default).lower()
        if text not in choices:
            raise SourceError(f"Option {name} is {text!r}: it takes {', '.join(choices)}.")
        return text

    def truth(self, name: str, default: bool) -> bool:
        return self._read(name, lambda text: _TRUTH[text.lower()], "true or false", default)

    def number(self, name: str, least: int) -> int | None:
        found: int | None = self._read(name, int, "a whole number", None)
        if found is not None and found < least:
            raise SourceError(f"Option {name} is {found}: it takes {least} or more.")
        return found

    def duration(self, name: str, default: int) -> int:
        def read(text: str) -> int:
            matched = _DURATION.fullmatch(text.strip().lower())
            if matched is None:
                raise ValueError
            return int(matched[1]) * _UNITS[matched[2]]

        return self._read(name, read, "a duration such as 30s, 15m or 1h", default)

    def _read(self, name: str, read: Callable[[str], T], takes: str, default: T) -> T:
        text = self.text(name)
        if text is None:
            return default
        try:
            return read(text)
        except (KeyError, ValueError):
            raise SourceError(f"Option {name} is {text!r}: it takes {takes}.") from None

    def topics(self) -> tuple[tuple[str, ...], str | None, tuple[TopicPartition, ...]]:
        names = ("subscribe", "subscribePattern", "assign")
        given = [name for name in names if self.text(name) is not None]
        if not given and self.text("path"):
            return _names(self.text("path") or ""), None, ()
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            raise SourceError(
                f"The options contain {found} of subscribe, subscribePattern and assign: set exactly one of them."
            )
        text = (self.text(given[0]) or "").strip()
        if given[0] == "subscribe":
            return _names(text), None, ()
        if given[0] == "subscribePattern":
            try:
                java_pattern(text)
            except PatternError as error:
                raise SourceError(f"Option subscribePattern is not a valid regular expression: {error}.") from None
            return (), text, ()
        return (), None, _assigned(text)

    def position(self, which: str) -> Position | None:
        """Returns the position that the options set; None if no option sets a position.

        As in Spark's own source, a time for all partitions overrides times by partition, and both override offsets.
        """
        if self.text(f"{which}Timestamp") is not None:
            return Position(timestamp_ms=self.number(f"{which}Timestamp", EARLIEST))
        if self.text(f"{which}OffsetsByTimestamp") is not None:
            name = f"{which}OffsetsByTimestamp"
            return Position(timestamps=_by_partition(name, self.text(name) or "", least=EARLIEST))
        text = self.text(f"{which}Offsets")
        if text is None:
            return None
        if text.strip().lower() in POSITIONS:
            return Position(everywhere=POSITIONS[text.strip().lower()])
        return Position(offsets=_by_partition(f"{which}Offsets", text, least=EARLIEST))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise SourceError("Option subscribe names no topic: give a topic, or several separated by commas.")
    return names


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    takes = 'Option assign takes JSON such as {"orders":[0,1]}'
    found = _json(text, takes)
    try:
        pairs = tuple((topic, int(index)) for topic, indices in found.items() for index in indices)
    except (TypeError, ValueError):
        raise SourceError(f"{takes}.") from None
    if not pairs:
        raise SourceError(f"{takes}; the given JSON names no partition.")
    return pairs


def _by_partition(name: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    example = '"earliest", "latest" or ' if name.endswith("Offsets") else ""
    takes = f'Option {name} takes {example}JSON such as {{"orders":{{"0":23,"1":42}}}}'
    found = _json(text, takes)
    try:
        offsets = {
            (topic, int(index)): int(offset) for topic, inner in found.items() for index, offset in inner.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise SourceError(f"{takes}.") from None
    for (topic, index), offset in offsets.items():
        if offset < least:
            raise SourceError(
                f"Option {name} has {offset} for {topic}-{index}: give 0 or more; -2 is earliest, -1 latest."
            )
    return offsets


def _json(text: str, takes: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SourceError(f"{takes}, not {text!r}.")
    return found


def _check_batch(starting: Position | None, ending: Position | None) -> None:
    if starting is not None and (starting.everywhere == LATEST or LATEST in (starting.offsets or {}).values()):
        raise SourceError(
            "A batch query that starts at the latest offset reads no records: set startingOffsets=earliest."
        )
    if ending is not None and (ending.everywhere == EARLIEST or EARLIEST in (ending.offsets or {}).values()):
        raise SourceError("A batch query that ends at the earliest offset reads no records: set endingOffsets=latest.")


def _check_named(
    position: Position | None, what: str, topics: tuple[str, ...], assigned: tuple[TopicPartition, ...]
) -> None:
    named = position.named if position is not None else None
    for topic, index in named or ():
        if topics and topic not in topics:
            raise SourceError(
                f"The {what} offsets name topic {topic!r}, which is not in subscribe: add the topic there."
            )
        if assigned and (topic, index) not in assigned:
            raise SourceError(
                f"The {what} offsets name {topic}-{index}, which is not in assign: add the partition there."
            )


def _read_committed(client: Mapping[str, str]) -> bool:
    level = client.get("isolation.level", "read_uncommitted").lower()
    if level not in ("read_committed", "read_uncommitted"):
        raise SourceError(f"Option kafka.isolation.level is {level!r}: it takes read_committed, read_uncommitted.")
    return level == "read_committed"
