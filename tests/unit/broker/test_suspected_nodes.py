"""Tests Metadata responses shortly after a leader has died, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

from penstock.broker.handlers import api_03_metadata
from penstock.broker.peers.suspected_nodes import HOLD_S, LINGER_S, SuspectedNodes
from penstock.broker.requests.fault_rules import Faults
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import EMPTY_IMAGE, BrokerImage, Endpoint, MetadataImage, PartitionImage, TopicImage
from penstock.protocol.messages.api_03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.sim.engine.loop import Timeline

LISTENER = "PLAINTEXT"
TOPIC_ID = bytes([7] * 16)


def image(leader: int, *, fenced: int = 0) -> MetadataImage:
    topic = TopicImage("t", TOPIC_ID, {0: PartitionImage((1, 2), (1, 2), leader)})
    brokers = {
        node: BrokerImage(node, 1, bytes(16), {LISTENER: Endpoint(f"host{node}", 9092, 0)}, fenced=node == fenced)
        for node in (1, 2)
    }
    return replace(EMPTY_IMAGE, brokers=brokers, topics={"t": topic}, topics_by_id={TOPIC_ID: topic})


class Fixture:
    """Holds the parts of a broker that the Metadata handler uses."""

    def __init__(self) -> None:
        self.suspects = SuspectedNodes()
        self.metadata = SimpleNamespace(image=image(1), answers={})
        self.broker: Any = SimpleNamespace(
            node_id=2,
            cluster_id="c",
            settings=Settings({}),
            metadata=self.metadata,
            peers=SimpleNamespace(suspects=self.suspects),
            faults=Faults(),
        )

    def decide(self, new: MetadataImage) -> None:
        old, self.metadata.image = self.metadata.image, new
        self.suspects.apply(old, new)

    async def ask(self) -> MetadataResponse:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
        ctx: Any = SimpleNamespace(api_key=3, api_version=13, listener_name=LISTENER, now_ms=0)
        reply: Any = api_03_metadata.handle(self.broker, ctx, request)
        answer: MetadataResponse = reply if isinstance(reply, MetadataResponse) else await reply
        return answer


def in_virtual_time(test: Callable[[Fixture], Awaitable[None]]) -> None:
    timeline = Timeline(Random(1))
    loop = timeline.process("test")

    async def main() -> None:
        await test(Fixture())

    timeline.run(main(), loop, until=60.0)


def leader_of(answer: MetadataResponse) -> int:
    (topic,) = answer.topics
    return topic.partitions[0].leader_id


def now() -> float:
    return asyncio.get_running_loop().time()


def test_metadata_response_waits_until_the_controller_decides_about_a_suspected_leader() -> None:
    async def test(node: Fixture) -> None:
        node.suspects.lost(1)
        asyncio.get_running_loop().call_later(0.02, node.decide, image(2, fenced=1))
        answer = await node.ask()
        assert leader_of(answer) == 2
        assert now() < HOLD_S

    in_virtual_time(test)


def test_metadata_request_waits_only_once_if_the_controller_does_not_decide_about_a_suspected_leader() -> None:
    async def test(node: Fixture) -> None:
        node.suspects.lost(1)
        assert leader_of(await node.ask()) == 1
        held = now()
        assert held >= HOLD_S
        node.suspects.lost(1)  # still unreachable: not suspected again
        await node.ask()
        assert now() == held

    in_virtual_time(test)


def test_node_that_answers_again_is_no_longer_suspected() -> None:
    async def test(node: Fixture) -> None:
        node.suspects.lost(1)
        node.suspects.reached(1)
        await node.ask()
        assert now() == 0.0

    in_virtual_time(test)


def test_metadata_of_topics_without_a_suspected_leader_is_answered_at_once() -> None:
    async def test(node: Fixture) -> None:
        node.suspects.lost(2)
        assert leader_of(await node.ask()) == 1
        assert now() == 0.0

    in_virtual_time(test)


def test_just_fenced_node_stays_in_the_broker_list_of_metadata_for_a_while() -> None:
    async def test(node: Fixture) -> None:
        node.decide(image(2, fenced=1))
        assert {broker.node_id for broker in (await node.ask()).brokers} == {1, 2}
        await asyncio.sleep(LINGER_S + 0.1)
        assert {broker.node_id for broker in (await node.ask()).brokers} == {2}

    in_virtual_time(test)
