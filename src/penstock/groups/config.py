"""Defines the broker settings for groups, which are read from the properties once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

NEW_MEMBER_JOIN_TIMEOUT_MS = (
    5 * 60 * 1000
)  # a member that never learned its id cannot send heartbeats; a broken connection ends it sooner


# The methods below have the names of builtins.
_Int: TypeAlias = int
_Str: TypeAlias = str
_Strings: TypeAlias = tuple[str, ...]


class SettingsSource(Protocol):
    def int(self, name: _Str, /) -> _Int: ...

    def str(self, name: _Str, /) -> _Str: ...

    def list(self, name: _Str, /) -> _Strings: ...


@dataclass(frozen=True, slots=True)
class GroupConfig:
    initial_rebalance_delay_ms: int = 3000
    min_session_timeout_ms: int = 6000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2_147_483_647
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5000
    consumer_assignment_interval_ms: int = 1000
    consumer_max_size: int = 2_147_483_647
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: str = "bidirectional"
    consumer_regex_refresh_interval_ms: int = 600_000
    share_session_timeout_ms: int = 45_000
    share_heartbeat_interval_ms: int = 5000
    share_assignment_interval_ms: int = 1000
    share_max_size: int = 200
    share_initialize_retry_ms: int = 30_000
    streams_session_timeout_ms: int = 45_000
    streams_heartbeat_interval_ms: int = 5000
    streams_assignment_interval_ms: int = 1000
    streams_initial_rebalance_delay_ms: int = 3000
    streams_standby_replicas: int = 0
    streams_max_size: int = 2_147_483_647

    @classmethod
    def from_settings(cls, settings: SettingsSource) -> GroupConfig:
        return cls(
            initial_rebalance_delay_ms=settings.int("group.initial.rebalance.delay.ms"),
            min_session_timeout_ms=settings.int("group.min.session.timeout.ms"),
            max_session_timeout_ms=settings.int("group.max.session.timeout.ms"),
            max_size=settings.int("group.max.size"),
            offset_metadata_max_bytes=settings.int("offset.metadata.max.bytes"),
            offsets_retention_ms=settings.int("offsets.retention.minutes") * 60_000,
            consumer_session_timeout_ms=settings.int("group.consumer.session.timeout.ms"),
            consumer_heartbeat_interval_ms=settings.int("group.consumer.heartbeat.interval.ms"),
            consumer_assignment_interval_ms=settings.int("group.consumer.assignment.interval.ms"),
            consumer_max_size=settings.int("group.consumer.max.size"),
            consumer_assignors=settings.list("group.consumer.assignors"),
            consumer_migration_policy=settings.str("group.consumer.migration.policy").lower(),
            consumer_regex_refresh_interval_ms=settings.int("group.consumer.regex.refresh.interval.ms"),
            share_session_timeout_ms=settings.int("group.share.session.timeout.ms"),
            share_heartbeat_interval_ms=settings.int("group.share.heartbeat.interval.ms"),
            share_assignment_interval_ms=settings.int("group.share.assignment.interval.ms"),
            share_max_size=settings.int("group.share.max.size"),
            share_initialize_retry_ms=settings.int("group.share.initialize.retry.interval.ms"),
            streams_session_timeout_ms=settings.int("group.streams.session.timeout.ms"),
            streams_heartbeat_interval_ms=settings.int("group.streams.heartbeat.interval.ms"),
            streams_assignment_interval_ms=settings.int("group.streams.assignment.interval.ms"),
            streams_initial_rebalance_delay_ms=settings.int("group.streams.initial.rebalance.delay.ms"),
            streams_standby_replicas=settings.int("group.streams.num.standby.replicas"),
            streams_max_size=settings.int("group.streams.max.size"),
        )
