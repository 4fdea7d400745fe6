"""Builds the rows of DescribeConfigs for a resource: each config with its value, source and documentation.

CreateTopics, DescribeConfigs and the command line use the same rows. Sensitive values are never shown. Values of
unknown properties are not shown either, because they could be passwords of a plug-in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.metadata.configs.broker import BROKER_CONFIGS, UPDATE_MODES, broker_key
from penstock.metadata.configs.client_metrics import CLIENT_METRICS_CONFIGS
from penstock.metadata.configs.definition import ConfigError, ConfigKey, format_value
from penstock.metadata.configs.group import GROUP_CONFIGS, GROUP_INHERITANCE, Inheritance, group_default
from penstock.metadata.configs.settings import ConfigSource, Settings, Synonym
from penstock.metadata.configs.topic import TOPIC_CONFIGS, TOPIC_SYNONYMS
from penstock.protocol.messages.api_19_create_topics import CreatableTopicConfigs

UNKNOWN_TYPE = 0


@dataclass(frozen=True, slots=True)
class Described:
    name: str
    value: str | None
    source: ConfigSource
    type: int
    synonyms: tuple[Synonym, ...] = ()
    read_only: bool = False
    sensitive: bool = False
    documentation: str | None = None


def describe_topic(overrides: Mapping[str, str], settings: Settings) -> list[Described]:
    """Returns the rows of DescribeConfigs for a topic. Topics without overrides share one list, so that describing ten
    thousand topics is fast."""
    inherited = _inherited_topic_configs(settings)
    if not overrides:
        return inherited
    found = {each.name: each for each in inherited}
    for name, own in overrides.items():
        key = TOPIC_CONFIGS.get(name)
        if key is not None:
            value = _canonical(key, own)
            set_here = Synonym(name, value, ConfigSource.TOPIC_CONFIG)
            found[name] = _described(key, value, [set_here, *(found[name].synonyms if name in found else ())])
    return sorted(found.values(), key=lambda each: each.name)


def _inherited_topic_configs(settings: Settings) -> list[Described]:
    if "topic" not in settings.derived:
        values = settings.topic_defaults()
        settings.derived["topic"] = [
            _described(
                key,
                _canonical(key, values.get(name, key.default)),
                settings.synonyms(TOPIC_SYNONYMS[name][0][0]) if name in TOPIC_SYNONYMS else [],
            )
            for name, key in TOPIC_CONFIGS.items()
            if not key.internal
        ]
    found: list[Described] = settings.derived["topic"]
    return found


def describe_broker(settings: Settings) -> list[Described]:
    """Returns a row for every property of this broker.

    This includes unknown properties that are set in its properties file or its dynamic configs.
    """
    if "broker" not in settings.derived:
        names = {name for name, key in BROKER_CONFIGS.items() if not key.internal}
        names.update(settings.static, settings.dynamic_own(), settings.dynamic_defaults())
        settings.derived["broker"] = [_broker_config(name, settings, settings.synonyms(name)) for name in sorted(names)]
    found: list[Described] = settings.derived["broker"]
    return found


def describe_cluster_defaults(settings: Settings) -> list[Described]:
    """Returns rows for the cluster-wide dynamic configs only."""
    return [
        _broker_config(
            name,
            settings,
            [each for each in settings.synonyms(name) if each.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG],
        )
        for name in sorted(settings.dynamic_defaults())
    ]


def _broker_config(name: str, settings: Settings, synonyms: list[Synonym]) -> Described:
    key = broker_key(name)
    read_only = name not in UPDATE_MODES
    if key is None:
        hidden = tuple(replace(each, value=None) for each in synonyms)
        source = hidden[0].source if hidden else ConfigSource.DEFAULT_CONFIG
        return Described(name, None, source, UNKNOWN_TYPE, hidden, read_only, sensitive=True)
    cluster_only = bool(synonyms) and synonyms[0].source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    raw = synonyms[0].value if cluster_only else settings.raw(name)
    return _described(replace(key, name=name), _canonical(key, raw), synonyms, read_only=read_only)


def describe_group(overrides: Mapping[str, str], settings: Settings) -> list[Described]:
    found = []
    for name, key in GROUP_CONFIGS.items():
        if key.internal and name not in overrides:
            continue
        broker_property = GROUP_INHERITANCE.get(name, Inheritance()).default
        if broker_property is not None:
            synonyms = settings.synonyms(broker_property)
        else:
            synonyms = [Synonym(name, key.default, ConfigSource.DEFAULT_CONFIG)]
        if name in overrides:
            value = _canonical(key, overrides[name])
            synonyms.insert(0, Synonym(name, value, ConfigSource.GROUP_CONFIG))
        else:
            value = format_value(group_default(name, settings))
        found.append(_described(key, value, synonyms))
    return found


def describe_client_metrics(values: Mapping[str, str]) -> list[Described]:
    found = []
    for name, key in CLIENT_METRICS_CONFIGS.items():
        value = _canonical(key, values.get(name, key.default))
        own = [Synonym(name, value, ConfigSource.CLIENT_METRICS_CONFIG)] if name in values else []
        found.append(_described(key, value, own))
    return found


def _described(key: ConfigKey, value: str | None, synonyms: list[Synonym], *, read_only: bool = False) -> Described:
    source = synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG
    if key.sensitive:
        value = None
        synonyms = [replace(each, value=None) for each in synonyms]
    return Described(key.name, value, source, key.type, tuple(synonyms), read_only, key.sensitive, key.doc)


def _canonical(key: ConfigKey, text: str | None) -> str | None:
    """Returns a config's value in the form that Kafka returns: `5` for ` 5 `, `a,b` for `a , b`."""
    if text is None or text == key.default:
        return text
    try:
        return format_value(key.parse(text))
    except ConfigError:
        return text


def created_topic_configs(overrides: Mapping[str, str], settings: Settings) -> list[CreatableTopicConfigs]:
    """Returns the configs of a new topic for the response of CreateTopics."""
    return [
        CreatableTopicConfigs(
            name=config.name,
            value=config.value,
            read_only=config.read_only,
            config_source=config.source,
            is_sensitive=config.sensitive,
        )
        for config in describe_topic(overrides, settings)
    ]
