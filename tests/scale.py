"""Runs a broker with many partitions and groups, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from penstock.client.client import AsyncClient
from penstock.client.group_admin import GroupAdmin
from penstock.client.producer import ProducerSettings
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.protocol.messages.api_14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from penstock.protocol.messages.consumer_protocol import TopicPartition as ConsumerTopicPartition
from penstock.protocol.vocabulary import ConfigOperation, ResourceType
from penstock.testing import Broker

#: A topic with many partitions, a group with offsets in all partitions, and a share group on the topic.
WIDE, EVERYTHING, CREW = "wide", "everything", "crew"
#: Classic groups whose leaders wrote assignments with very many partitions, or topics, that don't exist.
INVENTED_PARTITIONS, INVENTED_TOPICS = "invented-partitions", "invented-topics"
INVENTED = {
    INVENTED_PARTITIONS: [ConsumerTopicPartition(topic=WIDE, partitions=list(range(250_000)))],
    INVENTED_TOPICS: [ConsumerTopicPartition(topic=f"t{number:05}", partitions=[0]) for number in range(60_000)],
}
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
        for group, assigned in INVENTED.items():
            client.run(lead_group(client.asynchronous, group, assigned))
        broker.run(_opened(broker))
        yield broker


async def _opened(broker: Broker) -> None:
    for partition in broker.node.broker.partitions:
        assert partition.log.log_end_offset >= 0


async def lead_group(client: AsyncClient, group: str, assigned: list[ConsumerTopicPartition]) -> None:
    """Joins a classic group as its only member, and gives this member an assignment. The member stays for minutes."""
    assignment = (0).to_bytes(2, "big") + encode(ConsumerProtocolAssignment(assigned_partitions=assigned), 0)
    protocol = JoinGroupRequestProtocol(name="range", metadata=b"")
    member = ""
    while True:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=600_000,
            rebalance_timeout_ms=600_000,
            member_id=member,
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = await client.ask_coordinator(group, request)
        if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            break
        member = joined.member_id
    assert not joined.error_code, joined
    synced = await client.ask_coordinator(
        group,
        SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assignment)],
        ),
    )
    assert not synced.error_code, synced
