"""Applies random images to one node: it must host, lead and follow exactly the replicas that each image gives it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from zlib import crc32

import pytest
from replica_cluster import Cluster, run

from penstock.broker.replicas.followed_partition import FollowedPartition
from penstock.broker.replicas.partition import Partition
from penstock.metadata.image import ImageChanges, PartitionImage, TopicImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import ResourceType

ME, NAMES = 2, ("a", "b", "c")


def code_of(find: object, *key: object) -> ErrorCode:
    try:
        find(*key)  # type: ignore[operator]
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


class Walk:
    """Runs node 2 without its peers: its fetches fail and are repeated."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cluster = Cluster(1, 2, 3)
        self.node = self.cluster[ME]
        self.ids = 0
        self.gone: list[bytes] = []
        self.shrinks = self.expands = 0

    async def run(self, steps: int) -> None:
        await self.node.start()
        for _ in range(steps):
            known, entries = self._known(), self._entries()
            before, fetchers = self.cluster.image, self.node.settings.int("num.replica.fetchers")
            for _ in range(self.rng.choice((1, 1, 1, 2))):  # a node may skip images
                self._change()
            self._count(before.topics, self.cluster.image.topics)
            self.node.apply(self.cluster.image)
            self.compare()
            for key, partition in self._known().items():
                if key in known:
                    assert partition is known[key], "a replica that stays keeps its state"
            if self.node.settings.int("num.replica.fetchers") == fetchers:
                for key, entry in self._entries().items():
                    old = entries.get(key)
                    if old is not None and (old.partition, old.leader_epoch) == (entry.partition, entry.leader_epoch):
                        assert entry is old, "the fetcher need not start over"
            if self.rng.random() < 0.7:
                await self.node.partitions.settle()
                self.compare_logs()
        await self.cluster.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    def _known(self) -> dict[tuple[bytes, int], Partition]:
        return {(each.topic_id, each.index): each for each in self.node.partitions}

    def _entries(self) -> dict[tuple[bytes, int], FollowedPartition]:
        return {
            key: entry for fetcher in self.node.replicas._fetchers.values() for key, entry in fetcher._followed.items()
        }

    # Images.

    def _change(self) -> None:
        old, rng = self.cluster.image, self.rng
        topics, configs = dict(old.topics), dict(old.configs)
        names = set(rng.sample(NAMES, rng.randint(1, 3)))
        for name in names:
            self._change_topic(topics, name)
        changed = {(int(ResourceType.TOPIC), name): {"retention.ms": str(rng.randint(1, 9))} for name in names}
        key = (int(ResourceType.BROKER), "")
        changed[key] = {"num.replica.fetchers": str(rng.randint(1, 2)), "log.retention.ms": str(rng.randint(11, 19))}
        chosen = {each: changed[each] for each in changed if rng.random() < 0.2}
        self.cluster.image = replace(
            old,
            version=old.version + 1,
            topics=topics,
            topics_by_id={each.topic_id: each for each in topics.values()},
            configs={**configs, **chosen} if chosen else old.configs,
            changes=ImageChanges(old.version, frozenset(names), frozenset(chosen)),
        )

    def _change_topic(self, topics: dict[str, TopicImage], name: str) -> None:
        rng, known = self.rng, topics.get(name)
        if known is None or rng.random() < 0.2:
            if known is not None:
                self.gone.append(known.topic_id)
                del topics[name]
            if rng.random() < 0.7:
                self.ids += 1
                images = {index: self._partition(None) for index in range(rng.randint(1, 3))}
                topics[name] = TopicImage(name, bytes([self.ids]) * 16, images)
            return
        images = {
            index: self._partition(each) if rng.random() < 0.5 else each for index, each in known.partitions.items()
        }
        if rng.random() < 0.2 and len(images) < 4:
            images[len(images)] = self._partition(None)
        topics[name] = replace(known, partitions=images)

    def _partition(self, old: PartitionImage | None) -> PartitionImage:
        rng = self.rng
        if old is not None and rng.random() < 0.4:  # only another in-sync set
            isr = tuple(rng.sample(old.replicas, rng.randint(1, len(old.replicas))))
            return replace(old, isr=isr, partition_epoch=old.partition_epoch + 1)
        replicas = tuple(rng.sample((1, 2, 3), rng.randint(1, 3)))
        leader = rng.choice((*replicas, *replicas, -1))
        epoch = (old.leader_epoch, old.partition_epoch) if old is not None else (0, 0)
        return PartitionImage(replicas, replicas, leader, epoch[0] + 1, partition_epoch=epoch[1] + 1)

    def _count(self, before: Mapping[str, TopicImage], after: Mapping[str, TopicImage]) -> None:
        """Counts the changes of in-sync sets that this node leads before and after."""
        for name, topic in after.items():
            old = before.get(name)
            if old is None or old.topic_id != topic.topic_id:
                continue
            for index, one in topic.partitions.items():
                was = old.partitions.get(index)
                if was is not None and was.leader == one.leader == ME:
                    self.shrinks += not set(was.isr) <= set(one.isr)
                    self.expands += not set(one.isr) <= set(was.isr)

    # Comparisons.

    def compare(self) -> None:
        node, image = self.node, self.cluster.image
        hosted: dict[tuple[bytes, int], PartitionImage] = {}
        for topic in image.topics.values():
            for index, one in topic.partitions.items():
                here = ME in one.replicas
                expected = ErrorCode.NONE if here else ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert code_of(node.partitions.get, topic.name, index) is expected
                assert code_of(node.partitions.get_by_id, topic.topic_id, index) is expected
                if here:
                    hosted[topic.topic_id, index] = one
                    partition = node.partitions.get(topic.name, index)
                    assert partition is node.partitions.get_by_id(topic.topic_id, index)
                    assert (partition.image, partition.topic_id) == (one, topic.topic_id)
                    assert not partition.is_open or (partition.leading is not None) == (
                        one.leader == ME and len(one.replicas) > 1
                    )
        assert set(self._known()) == set(hosted)
        assert len(node.partitions) == len(hosted)
        for topic_id in self.gone:
            assert code_of(node.partitions.get_by_id, topic_id, 0) is ErrorCode.UNKNOWN_TOPIC_ID
        self._compare_fetchers(hosted)
        changes = node.replicas.isr_changes
        assert (changes.shrinks, changes.expands) == (self.shrinks, self.expands)

    def _compare_fetchers(self, hosted: dict[tuple[bytes, int], PartitionImage]) -> None:
        count = self.node.settings.int("num.replica.fetchers")
        wanted: dict[tuple[int, int], set[tuple[bytes, int]]] = {}
        for key, one in hosted.items():
            if one.leader not in (ME, -1):
                topic = self.node.partitions.get_by_id(*key).topic
                wanted.setdefault((one.leader, (crc32(topic.encode()) + key[1]) % count), set()).add(key)
        fetchers = self.node.replicas._fetchers
        assert {number: set(each._followed) for number, each in fetchers.items()} == wanted
        for key, entry in self._entries().items():
            assert entry.partition is self.node.partitions.get_by_id(*key)
            assert entry.leader_epoch == hosted[key].leader_epoch

    def compare_logs(self) -> None:
        """Compares the logs after the background task has opened all of them."""
        node, image = self.node, self.cluster.image
        assert {(log.topic, log.partition, log.topic_id) for log in node.logs} == {
            (each.topic, each.index, each.topic_id) for each in node.partitions
        }
        for each in node.partitions:
            assert each.is_open
            assert each.log.config == node.settings.log_config(image, each.topic)
            assert (each.leading is not None) == (each.image.leader == ME and len(each.image.replicas) > 1)


@pytest.mark.parametrize("first", range(0, 20, 4))
def test_node_hosts_leads_and_follows_what_random_images_say(first: int) -> None:
    for seed in range(first, first + 4):
        run(Walk(seed).run(60), seed)
