"""CreateTopics v2-7: creates topics, or only validates the request.

A request gives, for each topic, the number of partitions and replicas or a manual assignment of replicas, and configs.
Since v5 the response contains the topics' configs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.broker.controlplane.auto_topics import topic_defaults
from penstock.broker.limits.mutations import Mutations
from penstock.metadata.configs.describe import created_topic_configs
from penstock.metadata.controller.topics import create_topics
from penstock.protocol.messages.api_19_create_topics import (
    CreatableTopicConfigs,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.requests.context import RequestContext

FIRST_VERSION_WITH_CONFIGS = 5
STRICT_QUOTA_SINCE = 6


async def handle(broker: ControllerParts, ctx: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    defaults = topic_defaults(broker.settings)
    if ctx.api_version >= FIRST_VERSION_WITH_CONFIGS:
        defaults = replace(defaults, describe=_describing(broker))
    quota = Mutations(broker.quotas, ctx, strict=ctx.api_version >= STRICT_QUOTA_SINCE)
    response = await broker.metadata.submit(
        lambda image: create_topics(image, request, defaults, broker.random, quota.charge)
    )
    response.throttle_time_ms = quota.throttle_ms
    return response


def _describing(broker: ControllerParts) -> Callable[[Mapping[str, str]], list[CreatableTopicConfigs]]:
    """Returns a function that builds the configs of a topic in the response.

    Topics with the same config overrides share one cached list of configs.
    """
    made: dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]] = {}

    def describe(overrides: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        key = frozenset(overrides.items())
        if key not in made:
            made[key] = created_topic_configs(overrides, broker.settings)
        return made[key]

    return describe
