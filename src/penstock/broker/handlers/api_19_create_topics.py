"""CreateTopics v2-7: counts or manual assignments, configs, validate-only; v5+ answers with the topic's configs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.broker.auto_topics import topic_defaults
from penstock.metadata.configs.describe import created_topic_configs
from penstock.metadata.controller.topics import create_topics
from penstock.protocol.messages.api_19_create_topics import CreateTopicsRequest, CreateTopicsResponse

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.broker.context import RequestContext

FIRST_VERSION_WITH_CONFIGS = 5


async def handle(broker: Broker, ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    defaults = topic_defaults(broker.settings)
    if ctx.api_version >= FIRST_VERSION_WITH_CONFIGS:
        defaults = replace(defaults, describe=lambda overrides: created_topic_configs(overrides, broker.settings))
    return await broker.metadata.submit(lambda image: create_topics(image, request, defaults, broker.random))
