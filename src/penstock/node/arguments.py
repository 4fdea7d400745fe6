"""Checks the properties, configs and topics that code passes to an embedded node. Each error message is one
sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.metadata.configs.broker import BROKER_CONFIGS, OWN_CONFIGS, broker_key
from penstock.metadata.configs.protection import protection_refusal
from penstock.metadata.configs.topic import TOPIC_CONFIGS
from penstock.spelling import did_you_mean

Value = str | int | float | list[str] | tuple[str, ...]
"""The value of a property or config: numbers, booleans and lists are converted to Kafka's text form."""


def properties(config: Mapping[str, Value] | None) -> dict[str, str]:
    """Returns server properties as text. Raises ValueError for an unknown property, which would have no effect."""
    texts = _texts("property", config or {})
    for name, text in texts.items():
        if broker_key(name) is None:
            known = (*BROKER_CONFIGS, *OWN_CONFIGS)
            refusal = protection_refusal(name, text)
            raise ValueError(refusal or f"there is no server property {name!r}: {did_you_mean(name, known)}")
    return texts


def topic_configs(configs: Mapping[str, Value] | None) -> dict[str, str]:
    for name in configs or {}:
        if name not in TOPIC_CONFIGS:
            raise ValueError(f"there is no topic config {name!r}: {did_you_mean(name, TOPIC_CONFIGS)}")
    return _texts("topic config", configs or {})


def keyword_configs(keywords: Mapping[str, Value]) -> dict[str, str]:
    """Returns topic configs from Python keyword arguments, which have underscores instead of dots:
    `retention_ms=1000`."""
    for name, value in keywords.items():
        if isinstance(value, Mapping):
            raise TypeError(f"{name}={value!r} is a mapping: write each config as a keyword, such as retention_ms=1000")
    return topic_configs({name.replace("_", "."): value for name, value in keywords.items()})


def partition_counts(topics: Mapping[str, int] | None) -> dict[str, int]:
    if not isinstance(topics, Mapping | None):
        raise TypeError(f"topics is {topics!r}: write names with partition counts, such as {{'orders': 3}}")
    for name, count in (topics or {}).items():
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is not a topic name: give a string")
        if type(count) is not int:
            raise TypeError(f"topic {name!r} has the partition count {count!r}: write a whole number")
    return dict(topics or {})


def node_count(nodes: int) -> int:
    if type(nodes) is not int:
        raise TypeError(f"nodes is {nodes!r}: write a whole number")
    if nodes < 1:
        raise ValueError(f"nodes is {nodes}: write 1 or more")
    return nodes


def _texts(kind: str, values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(kind, name, value) for name, value in values.items()}


def _text(kind: str, name: str, value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case list() | tuple():
            return ",".join(_text(kind, name, each) for each in value)
        case _:
            raise TypeError(f"{kind} {name} can't be {value!r}: give a string, a number, a bool or a list")
