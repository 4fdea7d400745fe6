"""Creates the internal topics of streams groups: repartition topics and changelogs.

A heartbeat requests the topics that its group lacks, and does not wait until they exist: a later heartbeat finds them
in the metadata image. If the controller refuses a topic, the topic is requested again after a pause. During the pause,
the responses to heartbeats show the controller's reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreatableTopicConfig

if TYPE_CHECKING:
    from penstock.broker.controlplane.auto_topics import TopicCreator
    from penstock.broker.tasks import Tasks
    from penstock.groups.streams.topics import InternalTopic

logger = logging.getLogger(__name__)

#: Topics whose refusals are remembered at once; the oldest is forgotten first.
MAX_REFUSALS = 1000
#: Partitions in one request to the controller, which refuses larger ones.
MAX_PARTITIONS_AT_ONCE = 1000
DEFAULT_REPLICATION = -1


class _Refusal(NamedTuple):
    reason: str
    until_s: float  # on the event loop's clock


class InternalTopics:
    def __init__(self, creator: TopicCreator, tasks: Tasks) -> None:
        self._creator = creator
        self._tasks = tasks
        self._asked: set[str] = set()
        self._refused: dict[str, _Refusal] = {}

    def create(self, topics: Mapping[str, InternalTopic], pause_s: float) -> dict[str, str]:
        """Requests the creation of the topics, unless it is already in progress. Does not wait for the result.

        A topic that the controller refuses is not requested again for `pause_s` seconds. Returns the controller's
        reasons for these topics.
        """
        now_s = asyncio.get_running_loop().time()
        refused = {
            name: self._refused[name].reason
            for name in topics
            if name in self._refused and now_s < self._refused[name].until_s
        }
        wanted = [topic for name, topic in topics.items() if name not in refused and name not in self._asked]
        if wanted:
            self._asked.update(topic.name for topic in wanted)
            self._tasks.start(self._create(wanted, pause_s))
        return refused

    async def _create(self, topics: list[InternalTopic], pause_s: float) -> None:
        names = [topic.name for topic in topics]
        errors: dict[str, KafkaError] = {}
        try:
            for some in _requests(topics):
                errors |= await self._refusals(some)
        finally:
            self._asked.difference_update(names)
        if errors:
            name, error = next(iter(errors.items()))
            logger.warning("%d internal topics can't be created, such as %s: %s", len(errors), name, error)
        until_s = asyncio.get_running_loop().time() + pause_s
        for name in names:
            self._refused.pop(name, None)
            if name in errors:
                self._refused[name] = _Refusal(str(errors[name].message or errors[name].code.name), until_s)
        while len(self._refused) > MAX_REFUSALS:
            del self._refused[next(iter(self._refused))]

    async def _refusals(self, topics: list[InternalTopic]) -> dict[str, KafkaError]:
        try:
            return await self._creator.create([_creatable(topic) for topic in topics])
        except KafkaError as error:
            return {topic.name: error for topic in topics}


def _requests(topics: list[InternalTopic]) -> Iterator[list[InternalTopic]]:
    """Divides the topics into requests of at most MAX_PARTITIONS_AT_ONCE partitions.

    A topic with more partitions is sent in its own request.
    """
    some: list[InternalTopic] = []
    partitions = 0
    for topic in topics:
        if some and partitions + topic.partitions > MAX_PARTITIONS_AT_ONCE:
            yield some
            some, partitions = [], 0
        some.append(topic)
        partitions += topic.partitions
    if some:
        yield some


def _creatable(topic: InternalTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor or DEFAULT_REPLICATION,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )
