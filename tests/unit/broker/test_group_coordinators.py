"""Tests the group and share coordinators of one node: expiry, changes of the image, and their end."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from plain_coordinator import in_virtual_time
from test_coordinator_runtime import MemoryPartition, commit

from penstock.broker.coordinators import groups as groups_module
from penstock.broker.coordinators import share_states as share_module
from penstock.broker.coordinators.groups import Groups
from penstock.broker.coordinators.runtime import Phase
from penstock.broker.coordinators.share_states import ShareStates
from penstock.clock import ManualClock
from penstock.groups import offset_requests
from penstock.metadata.configs.settings import Settings
from penstock.metadata.image import MetadataImage, TopicChanges
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import CONSUMER_OFFSETS, SHARE_GROUP_STATE

HERE = 1


def image_of(topic: str, leader: int = HERE) -> MetadataImage:
    """Returns an image with an internal topic whose partitions 0 and 2 have this leader."""
    parts = {i: SimpleNamespace(leader=one, leader_epoch=0) for i, one in enumerate([leader, 2, leader])}
    return MetadataImage(topics=cast(Any, {topic: SimpleNamespace(name=topic, topic_id=bytes(16), partitions=parts)}))


class Broker:
    def __init__(self, topic: str) -> None:
        self.clock = ManualClock()
        self.image = image_of(topic)
        self.partitions = [MemoryPartition(leader_epoch=0) for _ in range(3)]

    def get(self, topic: str, index: int) -> MemoryPartition:
        return self.partitions[index]

    def groups(self, **settings: str) -> Groups:
        return Groups(
            node_id=HERE,
            settings=Settings({name.replace("_", "."): value for name, value in settings.items()}),
            clock=self.clock,
            random=Random(1),
            partitions=cast(Any, self),
            metadata=cast(Any, self),
            topics=cast(Any, None),
        )

    def share_states(self, **settings: str) -> ShareStates:
        return ShareStates(
            node_id=HERE,
            settings=Settings({name.replace("_", "."): value for name, value in settings.items()}),
            clock=self.clock,
            partitions=cast(Any, self),
            metadata=cast(Any, self),
        )


@pytest.fixture
def expired(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Notes the steps of the expiry of each group."""
    steps: list[tuple[str, str]] = []
    monkeypatch.setattr(offset_requests, "forget_missing", lambda shard, turn, group: steps.append(("missing", group)))
    monkeypatch.setattr(offset_requests, "expire", lambda shard, turn, group: steps.append(("expire", group)))
    return steps


def names_in(groups: Groups, index: int, count: int) -> list[str]:
    names = (f"g{number}" for number in range(1000))
    return [name for name in names if groups.partition_of(name) == index][:count]


def test_offsets_of_all_groups_of_all_coordinators_expire_at_each_interval(expired: list[tuple[str, str]]) -> None:
    async def scenario() -> None:
        groups = Broker(CONSUMER_OFFSETS).groups(offsets_retention_check_interval_ms="1000")
        groups.start()
        await asyncio.sleep(0.25)
        names = [*names_in(groups, 0, 2), *names_in(groups, 2, 2)]
        for name in names:
            groups.coordinator(name).run(commit(1, name))
        await asyncio.sleep(0.5)
        assert expired == []
        for _ in range(2):
            await asyncio.sleep(1)
            assert sorted(expired) == sorted((step, name) for step in ("missing", "expire") for name in names)
            expired.clear()
        groups.coordinator(names[0]).close()
        await groups.close()
        await asyncio.sleep(5)
        assert expired == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    in_virtual_time(scenario)


@pytest.mark.parametrize("kind", ["groups", "share"])
def test_every_coordinator_learns_each_new_image_and_its_timer_is_set(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = SimpleNamespace(deleted=["t"], created=(), changed=())
    module = groups_module if kind == "groups" else share_module
    monkeypatch.setattr(module, "topic_changes", lambda old, new: changes)

    async def scenario() -> None:
        broker = Broker(CONSUMER_OFFSETS if kind == "groups" else SHARE_GROUP_STATE)
        node: Any = broker.groups() if kind == "groups" else broker.share_states()
        node.start()
        await asyncio.sleep(1)
        coordinators = list(node.coordinators() if kind == "groups" else node.coordinators)
        assert [each.phase for each in coordinators] == [Phase.ACTIVE] * 2
        seen: list[tuple[int, object, object]] = []
        armed: list[int] = []
        for number, each in enumerate(coordinators):
            monkeypatch.setattr(each.machine, "see", lambda new, more, n=number: seen.append((n, new, more)))
            monkeypatch.setattr(each, "arm", lambda n=number: armed.append(n))
        new = broker.image
        node.apply(None, new)
        assert seen == []
        node.apply(new, new)
        expected = changes if kind == "groups" else 1000
        assert seen == [(0, new, expected), (1, new, expected)]
        assert armed == [0, 1]
        changes.deleted = []
        seen.clear()
        node.apply(new, new)
        assert [more for _, _, more in seen] == ([changes] * 2 if kind == "groups" else [None] * 2)
        await node.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("kind", ["groups", "share"])
def test_coordinators_open_and_close_with_the_leadership_of_their_partitions(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = groups_module if kind == "groups" else share_module
    monkeypatch.setattr(module, "topic_changes", lambda old, new: TopicChanges())

    async def scenario() -> None:
        topic = CONSUMER_OFFSETS if kind == "groups" else SHARE_GROUP_STATE
        broker = Broker(topic)
        node: Any = broker.groups() if kind == "groups" else broker.share_states()
        here, elsewhere = broker.image, image_of(topic, leader=2)
        node.apply(None, elsewhere)
        assert list(node.coordinators() if kind == "groups" else node.coordinators) == []
        node.apply(elsewhere, here)
        opened = list(node.coordinators() if kind == "groups" else node.coordinators)
        assert [each.machine.image for each in opened] == [here] * 2
        await asyncio.sleep(1)
        assert [each.phase for each in opened] == [Phase.ACTIVE] * 2, "they load in the background"
        node.apply(here, elsewhere)
        assert [each.phase for each in opened] == [Phase.CLOSED] * 2
        await node.close()

    in_virtual_time(scenario)


def test_closed_groups_answer_the_waiting_requests_of_all_coordinators() -> None:
    async def scenario() -> None:
        broker = Broker(CONSUMER_OFFSETS)
        groups = broker.groups()
        groups.start()
        await asyncio.sleep(0)
        waiting: list[Any] = []
        for index in (0, 2):
            broker.partitions[index].replicated = False
            (name,) = names_in(groups, index, 1)
            waiting.append(groups.coordinator(name).run(commit(1, name)))
        await asyncio.sleep(0)
        await groups.close()
        codes = [cast(KafkaError, each.exception()).code for each in waiting]
        assert codes == [ErrorCode.NOT_COORDINATOR] * 2

    in_virtual_time(scenario)


def test_logs_of_all_share_coordinators_are_pruned_at_each_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    pruned: list[object] = []

    async def prune(coordinator: object) -> None:
        pruned.append(coordinator)

    monkeypatch.setattr(share_module, "prune", prune)

    async def scenario() -> None:
        states = Broker(SHARE_GROUP_STATE).share_states(share_coordinator_state_topic_prune_interval_ms="60000")
        states.start()
        await asyncio.sleep(59)
        assert pruned == []
        coordinators = list(states.coordinators)
        for _ in range(2):
            await asyncio.sleep(60)
            assert pruned == coordinators
            pruned.clear()
        await states.close()
        await asyncio.sleep(120)
        assert pruned == []
        assert asyncio.all_tasks() == {asyncio.current_task()}

    in_virtual_time(scenario)
