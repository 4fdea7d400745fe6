"""Creates topics without a CreateTopics request: topics that auto.create.topics.enable allows, and internal topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.metadata.controller.topics import TopicDefaults
from penstock.protocol.apis import APIS
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.protocol.vocabulary import CONSUMER_OFFSETS, EVENT_TOPIC, SHARE_GROUP_STATE, TRANSACTION_STATE

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_channel import ControllerChannel
    from penstock.broker.controlplane.lifecycle import Lifecycle
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.broker.requests.context import RequestContext
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import TopicImage

#: Small, because compaction leaves the newest segment as it is.
EVENT_SEGMENT_BYTES = 1024 * 1024
SEEN_WITHIN_S = 5.0  # maximum wait until this node's image has a topic that the controller created


def topic_to_create(settings: Settings, name: str) -> CreatableTopic:
    """Returns the CreateTopics entry for a missing topic.

    An internal topic gets its own partition count and configs; any other topic gets the broker's defaults.
    """
    if name == CONSUMER_OFFSETS:
        return _topic(
            name,
            settings.int("offsets.topic.num.partitions"),
            settings.int("offsets.topic.replication.factor"),
            {
                "compression.type": "producer",
                "cleanup.policy": "compact",
                "segment.bytes": str(settings.int("offsets.topic.segment.bytes")),
            },
        )
    if name == TRANSACTION_STATE:
        return _topic(
            name,
            settings.int("transaction.state.log.num.partitions"),
            settings.int("transaction.state.log.replication.factor"),
            {
                "compression.type": "uncompressed",
                "cleanup.policy": "compact",
                "min.insync.replicas": str(settings.int("transaction.state.log.min.isr")),
                "segment.bytes": str(settings.int("transaction.state.log.segment.bytes")),
                "unclean.leader.election.enable": "false",
            },
        )
    if name == SHARE_GROUP_STATE:
        return _topic(
            name,
            settings.int("share.coordinator.state.topic.num.partitions"),
            settings.int("share.coordinator.state.topic.replication.factor"),
            {
                "compression.type": "producer",
                "cleanup.policy": "delete",
                "min.insync.replicas": str(settings.int("share.coordinator.state.topic.min.isr")),
                "segment.bytes": str(settings.int("share.coordinator.state.topic.segment.bytes")),
                "retention.ms": "-1",
            },
        )
    if name == EVENT_TOPIC:
        return _topic(
            name,
            1,
            settings.int("penstock.events.topic.replication.factor"),
            {"cleanup.policy": "compact", "segment.bytes": str(EVENT_SEGMENT_BYTES)},
        )
    return _topic(name, -1, -1, {})


def _topic(name: str, partitions: int, replication_factor: int, configs: Mapping[str, str]) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )


def topic_defaults(settings: Settings) -> TopicDefaults:
    return TopicDefaults(settings.int("num.partitions"), settings.int("default.replication.factor"))


class TopicCreator:
    """Asks the active controller to create topics that a request or a coordinator needs."""

    def __init__(
        self, settings: Settings, metadata: MetadataLog, channel: ControllerChannel, lifecycle: Lifecycle
    ) -> None:
        self._settings = settings
        self._metadata = metadata
        self._channel = channel
        self._lifecycle = lifecycle

    async def create_missing(self, ctx: RequestContext, names: Iterable[str]) -> tuple[dict[str, KafkaError], int]:
        """Creates topics for a client. Returns the errors by topic name, and the throttle time.

        The request is forwarded with the client's principal, so that the controller counts it against this client's
        mutation quota. It is not an error if another request creates a topic first.
        """
        topics = [topic_to_create(self._settings, name) for name in dict.fromkeys(names)]
        request = CreateTopicsRequest(topics=topics)
        version = APIS[request.API_KEY].latest_stable
        creating = replace(ctx, api_key=request.API_KEY, api_version=version, large=False)
        reply = await self._channel.forward(creating, request)
        return await self._refused(topics, reply), reply.throttle_time_ms

    async def create(self, topics: list[CreatableTopic]) -> dict[str, KafkaError]:
        """Creates topics that this node needs. Returns the errors by topic name, as `create_missing` does."""
        if not topics:
            return {}
        return await self._refused(topics, await self._channel.ask(CreateTopicsRequest(topics=topics)))

    async def _refused(self, topics: list[CreatableTopic], reply: CreateTopicsResponse) -> dict[str, KafkaError]:
        """Returns the errors of the topics that the controller refused, by topic name.

        Before it returns, waits until the created topics are in this node's metadata image.
        """
        refused = {
            result.name: KafkaError(ErrorCode(result.error_code), result.error_message)
            for result in reply.topics
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        }
        made = [topic.name for topic in topics if topic.name not in refused]
        # The controller may be another node, and the caller reads the topics from this node's image.
        await self._lifecycle.sees(lambda image: all(name in image.topics for name in made), SEEN_WITHIN_S)
        return refused

    async def ensure(self, name: str, configs: Mapping[str, str] | None = None) -> TopicImage:
        """Returns the topic. Creates a missing topic first, with the given configs or with the defaults."""
        found = self._metadata.image.topics.get(name)
        if found is None:
            new = topic_to_create(self._settings, name) if configs is None else _topic(name, -1, -1, configs)
            refused = await self.create([new])
            if name in refused:
                raise refused[name]
            found = self._metadata.image.topics.get(name)
        if found is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' was deleted right after its creation: try again."
            )
        return found
