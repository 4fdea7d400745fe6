"""Defines the topic configs of Kafka 4.3 and Penstock's own (`penstock.*`), with type, default and limits.

`TOPIC_CONFIGS` is the only list of topic configs. `LogConfig` holds their typed values. It has a field for each row,
named after the row with underscores for dots; a test checks that rows and fields agree. A row with `supported=False` is
accepted and shown but has no effect: docs/skipped.md lists it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from penstock.metadata.configs.definition import (
    ConfigError,
    ConfigKey,
    ConfigType,
    ConfigValue,
    ListOf,
    OneOf,
    Range,
    RangeOr,
    Validator,
    table,
)

if TYPE_CHECKING:
    pass

LONG_MAX = 2**63 - 1
WEEK_MS = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """Accepts a list of `partition:broker` pairs, or `*`."""

    def check(self, name: str, value: ConfigValue) -> None:
        items = value if isinstance(value, tuple) else ()
        if items == ("*",) or all(re.fullmatch(r"[0-9]+:[0-9]+", item) for item in items):
            return
        why = "give * alone or partition:broker pairs, such as 0:1,1:2."
        raise ConfigError.invalid(name, value, remedy=why)


def _key(
    name: str,
    kind: ConfigType,
    default: str | None,
    doc: str,
    validator: Validator | None = None,
    *,
    supported: bool = True,
    internal: bool = False,
) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, validator, supported=supported, internal=internal)


_BOOLEAN, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG
_STRING, _LIST, _DOUBLE = ConfigType.STRING, ConfigType.LIST, ConfigType.DOUBLE
_FROM_0, _FROM_1 = Range(0), Range(1)

TOPIC_CONFIGS: dict[str, ConfigKey] = table(
    [
        _key(
            "cleanup.policy",
            _LIST,
            "delete",
            "How old records are removed: 'delete' drops whole segments past the retention limits, 'compact' keeps the "
            "last value of each key, both together do both, an empty list keeps everything.",
            ListOf(("compact", "delete")),
        ),
        _key(
            "compression.gzip.level",
            _INT,
            "-1",
            "Compression level if compression.type is gzip; -1 is the library's default.",
            RangeOr(1, 9, -1),
        ),
        _key(
            "compression.lz4.level",
            _INT,
            "9",
            "Compression level if compression.type is lz4.",
            Range(1, 17),
        ),
        _key(
            "compression.type",
            _STRING,
            "producer",
            "The codec that batches have on disk: 'producer' keeps the producer's codec, any other value "
            "recompresses batches that arrive with another codec.",
            OneOf(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
        ),
        _key(
            "compression.zstd.level",
            _INT,
            "3",
            "Compression level if compression.type is zstd.",
            Range(-131072, 22),
        ),
        _key(
            "delete.retention.ms",
            _LONG,
            "86400000",
            "How long a tombstone is kept after its first compaction, so that a consumer that reads from the start "
            "sees it.",
            _FROM_0,
        ),
        _key(
            "errors.deadletterqueue.group.enable",
            _BOOLEAN,
            "false",
            "KIP-1191: true lets share groups use the topic as their dead-letter topic.",
            internal=True,  # not listed by Kafka 4.3; described where it is set
        ),
        _key(
            "file.delete.delay.ms",
            _LONG,
            "60000",
            "How long the files of a deleted segment stay on disk for reads in progress.",
            _FROM_0,
        ),
        _key(
            "flush.messages",
            _LONG,
            str(LONG_MAX),
            "Call fsync after this many records; 1 acknowledges records only once they are on disk.",
            _FROM_1,
        ),
        _key(
            "flush.ms",
            _LONG,
            str(LONG_MAX),
            "Longest time between an append and its fsync.",
            _FROM_0,
        ),
        _key(
            "follower.replication.throttled.replicas",
            _LIST,
            "",
            "Follower replicas that are throttled to the follower rate: partition:broker pairs, or *.",
            ThrottledReplicas(),
        ),
        _key(
            "index.interval.bytes",
            _INT,
            "4096",
            "Bytes of log between two entries of the offset index.",
            _FROM_0,
        ),
        _key(
            "internal.segment.bytes",
            _INT,
            None,
            "Segment size without a lower limit, for tests; if set, it replaces segment.bytes.",
            internal=True,
        ),
        _key(
            "leader.replication.throttled.replicas",
            _LIST,
            "",
            "Leader replicas that are throttled to the leader rate: partition:broker pairs, or *.",
            ThrottledReplicas(),
        ),
        _key(
            "local.retention.bytes",
            _LONG,
            "-2",
            "Local part of retention.bytes when the topic also has remote storage; -2 is retention.bytes.",
            Range(-2),
            supported=False,
        ),
        _key(
            "local.retention.ms",
            _LONG,
            "-2",
            "Local part of retention.ms when the topic also has remote storage; -2 is retention.ms.",
            Range(-2),
            supported=False,
        ),
        _key(
            "max.compaction.lag.ms",
            _LONG,
            str(LONG_MAX),
            "Longest time that a record may stay uncompacted, whatever the dirty ratio.",
            _FROM_1,
        ),
        _key(
            "max.message.bytes",
            _INT,
            "1048588",
            "The largest record batch accepted, after compression.",
            _FROM_0,
        ),
        _key(
            "message.timestamp.after.max.ms",
            _LONG,
            "3600000",
            "How far in the broker's future a record's CreateTime may lie before it is refused.",
            _FROM_0,
        ),
        _key(
            "message.timestamp.before.max.ms",
            _LONG,
            str(LONG_MAX),
            "How far in the broker's past a record's CreateTime may lie before it is refused.",
            _FROM_0,
        ),
        _key(
            "message.timestamp.type",
            _STRING,
            "CreateTime",
            "Clock that stamps records: the producer's (CreateTime) or the broker's on append (LogAppendTime).",
            OneOf(("CreateTime", "LogAppendTime")),
        ),
        _key(
            "min.cleanable.dirty.ratio",
            _DOUBLE,
            "0.5",
            "Share of a log that must be uncompacted before it is compacted.",
            Range(0, 1),
        ),
        _key(
            "min.compaction.lag.ms",
            _LONG,
            "0",
            "Shortest time that a record stays uncompacted.",
            _FROM_0,
        ),
        _key(
            "min.insync.replicas",
            _INT,
            "1",
            "Replicas that must be in sync for acks=all to be accepted.",
            _FROM_1,
        ),
        _key(
            "penstock.acks.fsync",
            _BOOLEAN,
            "false",
            "Penstock's own: acknowledge an append only after fsync; appends that wait at the same time share one "
            "fsync.",
        ),
        _key(
            "preallocate",
            _BOOLEAN,
            "false",
            "Reserve a segment's whole size on disk when it is made.",
            supported=False,
        ),
        _key(
            "remote.log.copy.disable",
            _BOOLEAN,
            "false",
            "Stop copying segments of a tiered topic to remote storage.",
            supported=False,
        ),
        _key(
            "remote.log.delete.on.disable",
            _BOOLEAN,
            "false",
            "Delete the topic's data in remote storage when tiering is disabled for it.",
            supported=False,
        ),
        _key(
            "remote.storage.enable",
            _BOOLEAN,
            "false",
            "Keep older segments of the topic in remote storage.",
            supported=False,
        ),
        _key(
            "retention.bytes",
            _LONG,
            "-1",
            "Size of a partition above which the delete policy removes its oldest segments; -1 is no limit.",
        ),
        _key(
            "retention.ms",
            _LONG,
            str(WEEK_MS),
            "Age of records after which the delete policy removes their segment; -1 is no limit.",
            Range(-1),
        ),
        _key(
            "segment.bytes",
            _INT,
            str(2**30),
            "Size at which a segment file is closed and the next one begun.",
            Range(1024 * 1024),
        ),
        _key(
            "segment.index.bytes",
            _INT,
            "10485760",
            "Size that an index file may reach before the segment is rolled.",
            Range(4),
        ),
        _key(
            "segment.jitter.ms",
            _LONG,
            "0",
            "Largest random time subtracted from segment.ms, so that partitions don't all roll at once.",
            _FROM_0,
        ),
        _key(
            "segment.ms",
            _LONG,
            str(WEEK_MS),
            "Age at which a segment is rolled even if it isn't full, so that retention and compaction can reach it.",
            _FROM_1,
        ),
        _key(
            "unclean.leader.election.enable",
            _BOOLEAN,
            "false",
            "Elect a replica that is not in sync if no other is left; acknowledged records can be lost.",
        ),
    ]
)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Holds a topic's configs as typed values. `LogConfig()` has Kafka's defaults."""

    cleanup_policy: frozenset[str] = field(default_factory=lambda: frozenset({"delete"}))
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = "producer"
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    errors_deadletterqueue_group_enable: bool = False
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    index_interval_bytes: int = 4096
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    local_retention_bytes: int = -2
    local_retention_ms: int = -2
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    penstock_acks_fsync: bool = False
    preallocate: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = WEEK_MS
    segment_bytes: int = 2**30
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = WEEK_MS
    unclean_leader_election_enable: bool = False

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def fsync_before_ack(self) -> bool:
        """Returns True if records of the topic are acknowledged only once they are on disk."""
        return self.penstock_acks_fsync or self.flush_messages == 1

    @staticmethod
    def from_map(values: Mapping[str, str]) -> LogConfig:
        """Returns a LogConfig with the defaults and these overrides. Raises ConfigError for a bad value; ignores
        unknown names."""
        return _DEFAULTS.overlaid(values)

    def overlaid(self, values: Mapping[str, str]) -> LogConfig:
        typed: dict[str, Any] = {}
        for name in sorted(values, key=_overrides_segment_bytes):
            key = TOPIC_CONFIGS.get(name)
            if key is not None:
                typed[_FIELD_OF.get(name, "segment_bytes")] = key.parse(values[name])
        if "cleanup_policy" in typed:
            typed["cleanup_policy"] = frozenset(typed["cleanup_policy"])
        return replace(self, **typed) if typed else self


def _overrides_segment_bytes(name: str) -> bool:
    return name == "internal.segment.bytes"


_DEFAULTS = LogConfig()
_FIELD_OF = {each.name.replace("_", "."): each.name for each in fields(LogConfig)}


def validate_topic_configs(values: Mapping[str, str]) -> None:
    """Raises ConfigError for overrides that Kafka refuses when a topic is created or altered."""
    for name in values:
        if name not in TOPIC_CONFIGS:
            raise ConfigError(f"There is no topic config '{name}': check its spelling.")
    parsed = {name: TOPIC_CONFIGS[name].parse(text) for name, text in values.items()}
    if parsed.get("remote.storage.enable") is True:
        raise ConfigError("Penstock has no tiered storage: leave remote.storage.enable out or set it to false.")
    shortest = parsed.get("min.compaction.lag.ms", 0)
    longest = parsed.get("max.compaction.lag.ms", LONG_MAX)
    assert isinstance(shortest, int)
    assert isinstance(longest, int)
    if shortest > longest:
        raise ConfigError(
            f"min.compaction.lag.ms={shortest} is above max.compaction.lag.ms={longest}: lower the first or raise "
            "the second."
        )


# Broker properties from which a topic config inherits, the most precise first, with the factor between their units.
TOPIC_SYNONYMS: dict[str, tuple[tuple[str, int], ...]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "compression.gzip.level": (("compression.gzip.level", 1),),
    "compression.lz4.level": (("compression.lz4.level", 1),),
    "compression.type": (("compression.type", 1),),
    "compression.zstd.level": (("compression.zstd.level", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "file.delete.delay.ms": (("log.segment.delete.delay.ms", 1),),
    "flush.messages": (("log.flush.interval.messages", 1),),
    "flush.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "local.retention.bytes": (("log.local.retention.bytes", 1),),
    "local.retention.ms": (("log.local.retention.ms", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "max.message.bytes": (("message.max.bytes", 1),),
    "message.timestamp.after.max.ms": (("log.message.timestamp.after.max.ms", 1),),
    "message.timestamp.before.max.ms": (("log.message.timestamp.before.max.ms", 1),),
    "message.timestamp.type": (("log.message.timestamp.type", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "min.insync.replicas": (("min.insync.replicas", 1),),
    "preallocate": (("log.preallocate", 1),),
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", 3_600_000)),
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", 3_600_000)),
    "unclean.leader.election.enable": (("unclean.leader.election.enable", 1),),
}
