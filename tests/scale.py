"""Runs a broker with many partitions and groups, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from penstock.client.group_admin import GroupAdmin
from penstock.client.producer import ProducerSettings
from penstock.protocol.vocabulary import ConfigOperation, ResourceType
from penstock.testing import Broker

#: A topic with many partitions, a group with offsets in all partitions, and a share group on the topic.
WIDE, EVERYTHING, CREW = "wide", "everything", "crew"
TOPICS_AT_ONCE = 20


class Scale(NamedTuple):
    topics: int
    partitions: int
    """Partitions of each topic."""
    wide: int
    """Partitions of one more topic, which the share group reads."""
    groups: int


@contextmanager
def broker_of(scale: Scale, config: Mapping[str, str] | None = None) -> Iterator[Broker]:
    """Runs a broker with an HTTP listener, whose logs are all open. `config` has more server properties."""
    properties = {"penstock.http.listener": "127.0.0.1:0", **(config or {})}
    with Broker(config=properties) as broker, broker.client() as client:
        names = [f"topic-{number}" for number in range(scale.topics)]
        for start in range(0, len(names), TOPICS_AT_ONCE):
            broker.create_topics(dict.fromkeys(names[start : start + TOPICS_AT_ONCE], scale.partitions))
        broker.create_topic(WIDE, scale.wide)
        groups = GroupAdmin(client.asynchronous)
        for number in range(scale.groups):
            client.run(groups.commit(f"group-{number}", {(names[number % scale.topics], 0): 0}))
        for name, count in [*((name, scale.partitions) for name in names), (WIDE, scale.wide)]:
            client.run(groups.commit(EVERYTHING, {(name, index): 0 for index in range(count)}))
        reset = ("share.auto.offset.reset", int(ConfigOperation.SET), "earliest")
        client.alter_configs(ResourceType.GROUP, CREW, [reset])
        with client.share_consumer(CREW, [WIDE]) as consumer:
            while not consumer.assignment:
                consumer.poll()
        with client.producer(ProducerSettings(transactional_id="billing")) as producer:
            producer.begin()
            producer.send(WIDE, b"first", partition=0)
            producer.commit()
        broker.run(_opened(broker))
        yield broker


async def _opened(broker: Broker) -> None:
    for partition in broker.node.broker.partitions:
        assert partition.log.log_end_offset >= 0
