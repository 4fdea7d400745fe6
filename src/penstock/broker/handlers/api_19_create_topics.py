"""CreateTopics v2-7: counts or manual assignments, configs, validate-only; v5+ answers with the topic's configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.broker.auto_topics import topic_defaults
from penstock.metadata.configs.settings import ConfigSource
from penstock.metadata.configs.topic import TOPIC_CONFIGS, TOPIC_SYNONYMS
from penstock.metadata.controller.topics import create_topics
from penstock.protocol.messages.api_19_create_topics import (
    CreatableTopicConfigs,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext
    from penstock.metadata.configs.settings import Settings

FIRST_VERSION_WITH_CONFIGS = 5


async def handle(broker: Broker, ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    defaults = topic_defaults(broker.settings)
    if ctx.api_version >= FIRST_VERSION_WITH_CONFIGS:
        defaults = replace(defaults, describe=lambda overrides: describe_configs(broker.settings, overrides))
    return await broker.metadata.submit(lambda image: create_topics(image, request, defaults, broker.random))


def describe_configs(settings: Settings, overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
    """Every config of a topic with these overrides, and where its value comes from."""
    described = []
    inherited = settings.topic_defaults()
    for name in sorted(TOPIC_CONFIGS):
        key = TOPIC_CONFIGS[name]
        value: str | None
        if name in overrides:
            value, source = overrides[name], ConfigSource.TOPIC_CONFIG
        else:
            value, source = inherited.get(name, key.default), _source(settings, name)
        described.append(
            CreatableTopicConfigs(
                name=name,
                value=None if key.sensitive else value,
                config_source=source,
                is_sensitive=key.sensitive,
            )
        )
    return described


def _source(settings: Settings, name: str) -> ConfigSource:
    for property_name, _ in TOPIC_SYNONYMS.get(name, ()):
        found = settings.synonyms(property_name)
        if found and settings.raw(property_name) is not None:
            return found[0].source
    return ConfigSource.DEFAULT_CONFIG
