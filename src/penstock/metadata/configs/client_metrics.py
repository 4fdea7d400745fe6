"""Defines the configs of client metrics subscriptions (KIP-714).

A subscription selects clients, the metrics that they push, and an interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.metadata.configs.definition import ConfigError, ConfigKey, ConfigType, ListOf, split_list, table
from penstock.metadata.patterns import Pattern, Work
from penstock.protocol.errors import KafkaError

ALL_METRICS = "*"
DEFAULT_INTERVAL_MS = 300_000
MIN_INTERVAL_MS, MAX_INTERVAL_MS = 100, 3_600_000
MATCH_PARAMETERS = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)

CLIENT_METRICS_CONFIGS: dict[str, ConfigKey] = table(
    [
        ConfigKey(
            "interval.ms",
            ConfigType.INT,
            str(DEFAULT_INTERVAL_MS),
            "Interval at which clients push their metrics: 100 ms to an hour.",
        ),
        ConfigKey(
            "match",
            ConfigType.LIST,
            "",
            "Clients that push metrics, as parameter=regular expression; all must match. Empty matches every client.",
            ListOf(),
        ),
        ConfigKey(
            "metrics",
            ConfigType.LIST,
            "",
            "Prefixes of the metrics to push; * is all metrics, empty is none.",
            ListOf(),
        ),
    ]
)


class ClientMetricsRequestError(ConfigError):
    """Raised for an invalid subscription. As in Kafka, its error code is INVALID_REQUEST; other invalid configs get
    INVALID_CONFIG."""


@dataclass(frozen=True, slots=True)
class Subscription:
    name: str
    metrics: tuple[str, ...]
    interval_ms: int
    match: Mapping[str, Pattern]

    @staticmethod
    def from_map(name: str, values: Mapping[str, str]) -> Subscription:
        interval = CLIENT_METRICS_CONFIGS["interval.ms"].parse(values.get("interval.ms", str(DEFAULT_INTERVAL_MS)))
        assert isinstance(interval, int)
        return Subscription(
            name,
            split_list(values.get("metrics", "")),
            interval,
            parse_match(split_list(values.get("match", "")), Work()),
        )


def validate_client_metrics(name: str, values: Mapping[str, str], work: Work) -> None:
    if not name:
        raise ClientMetricsRequestError("The subscription has no name: give a name.")
    for each in values:
        if each not in CLIENT_METRICS_CONFIGS:
            raise ClientMetricsRequestError(f"There is no client metrics config '{each}': check its spelling.")
    for each, text in values.items():
        value = CLIENT_METRICS_CONFIGS[each].parse(text)
        if isinstance(value, int) and not MIN_INTERVAL_MS <= value <= MAX_INTERVAL_MS:
            raise ClientMetricsRequestError(f"{each} can't be '{value}': give a number from 100 to 3600000.")
    parse_match(split_list(values.get("match", "")), work)


def parse_match(patterns: tuple[str, ...], work: Work) -> dict[str, Pattern]:
    """Parses match patterns. Returns a dict from client parameters to patterns.

    If a parameter is given twice, its last pattern counts. Any user may send patterns, so they have RE2's syntax and
    are matched in linear time. All given patterns share the step budget `work`.
    """
    parsed: dict[str, Pattern] = {}
    for pattern in patterns:
        parts = pattern.rstrip("=").split("=")
        if len(parts) != 2 or parts[0].strip() not in MATCH_PARAMETERS:
            raise ConfigError(
                f"'{pattern}' is not a client match: write a known parameter, = and a regular expression."
            )
        try:
            parsed[parts[0].strip()] = Pattern(parts[1].strip(), work)
        except KafkaError as error:
            raise ConfigError(f"'{pattern}' is not a client match: {error.message}") from None
    return parsed
