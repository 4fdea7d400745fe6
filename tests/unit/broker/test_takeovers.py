"""Tests which partitions of a failed broker are taken over, and how the time until their first write is measured."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from replica_cluster import NOW_MS, Cluster, batch, run

from penstock.broker.events.kinds import FirstWriteAfterFailover
from penstock.broker.replicas import takeovers
from penstock.broker.replicas.partition import Partition
from penstock.metadata.image import Fencing, ImageChanges, PartitionImage, TopicImage

ME = 1
#: The leaders of the partitions of one topic; None if the partition does not exist.
Leaders = tuple[int | None, ...]


def fencing(broker_id: int) -> Fencing:
    return Fencing(broker_id, 50 + broker_id, 9000 + broker_id, 1)


class Survivor:
    """Runs node 1, which stays alive while brokers 2 and 3 fail. The test elects the leaders."""

    def __init__(self) -> None:
        self.cluster = Cluster(1, 2, 3)
        self.node = self.cluster[ME]
        self.takeovers = self.node.replicas.takeovers
        self._epoch = 0

    async def start(self, topics: dict[str, Leaders]) -> Survivor:
        await self.node.start()
        self.elect(topics)
        await self.node.partitions.settle()
        return self

    def elect(self, topics: dict[str, Leaders], *fenced: int, others: dict[str, TopicImage] | None = None) -> None:
        """Publishes an image with these leaders. It fences some brokers, in this order."""
        self._epoch += 1
        images = {
            name: TopicImage(
                name,
                name.encode().ljust(16, b"\1"),
                {index: self.led_by(leader) for index, leader in enumerate(leaders) if leader is not None},
            )
            for name, leaders in topics.items()
        } | (others or {})
        old = self.cluster.image
        self.cluster.image = replace(
            old,
            version=old.version + 1,
            topics=images,
            topics_by_id={each.topic_id: each for each in images.values()},
            changes=ImageChanges(
                old.version, frozenset({*old.topics, *images}), fencings=tuple(fencing(each) for each in fenced)
            ),
        )
        self.cluster.publish(ME)

    def led_by(self, leader: int) -> PartitionImage:
        return PartitionImage((1, 2, 3), (leader,), leader, self._epoch, partition_epoch=self._epoch)

    def partition(self, topic: str, index: int = 0) -> Partition:
        return self.node.partitions.get(topic, index)

    def write(self, topic: str, index: int = 0) -> None:
        self.partition(topic, index).append(batch(b"x"), now_ms=NOW_MS)

    def watched(self) -> list[tuple[str, int]]:
        """Returns the partitions at which something waits for the next commit."""
        return [(each.topic, each.index) for each in self.node.partitions if each.waiters.commits]

    def reports(self) -> list[FirstWriteAfterFailover]:
        return [each for each in self.node.events if isinstance(each, FirstWriteAfterFailover)]


def test_first_write_after_a_failover_is_reported_once_with_the_time_since_the_election() -> None:
    async def scenario() -> None:
        node = await Survivor().start({"t": (2, 2), "u": (2,)})
        node.elect({"t": (1, 1), "u": (1,)}, 2)
        await asyncio.sleep(0.25)
        assert (node.reports(), sum(node.takeovers.until_first_write.counts)) == ([], 0)
        node.write("t", 1)
        await asyncio.sleep(0)
        assert node.reports() == [FirstWriteAfterFailover("t-1", 2, 52, 9002, 250)]
        for _ in range(2):
            for topic, index in (("t", 0), ("t", 1), ("u", 0)):
                node.write(topic, index)
                await asyncio.sleep(0)
        assert len(node.reports()) == 1
        assert (sum(node.takeovers.until_first_write.counts), node.takeovers.until_first_write.total) == (1, 250)
        assert node.watched() == []
        await node.cluster.close()

    run(scenario())


def test_two_writes_in_one_pass_of_the_event_loop_end_one_takeover() -> None:
    async def scenario() -> None:
        node = await Survivor().start({"t": (2, 2, 2)})
        node.elect({"t": (1, 1, 1)}, 2)
        for index in (2, 0, 1):
            node.write("t", index)
        await asyncio.sleep(0)
        assert [each.partition for each in node.reports()] == ["t-2"]
        assert sum(node.takeovers.until_first_write.counts) == 1
        await node.cluster.close()

    run(scenario())


@pytest.mark.parametrize(
    ("before", "after", "taken"),
    [
        pytest.param(2, 1, True, id="from the fenced broker"),
        pytest.param(3, 1, False, id="from another broker"),
        pytest.param(1, 1, False, id="led by this node already"),
        pytest.param(2, 3, False, id="to another node"),
        pytest.param(2, -1, False, id="without a new leader"),
        pytest.param(None, 1, False, id="new in this image"),
    ],
)
def test_partition_is_taken_over_only_if_it_changes_from_the_fenced_broker_to_this_node(
    before: int | None, after: int, taken: bool
) -> None:
    async def scenario() -> None:
        node = await Survivor().start({"t": (2, before, 2), "u": (before,), "__internal": (before,)})
        node.elect({"t": (1, after, 1), "u": (after,), "__internal": (after,)}, 2)
        expected = [("t", 0), ("t", 1), ("t", 2), ("u", 0)] if taken else [("t", 0), ("t", 2)]
        assert sorted(node.watched()) == expected
        await node.cluster.close()

    run(scenario())


def test_partition_without_a_replica_on_this_node_is_not_taken_over() -> None:
    def elsewhere(leader: int) -> dict[str, TopicImage]:
        image = PartitionImage((2, 3), (leader,), leader, leader, partition_epoch=leader)
        return {"a": TopicImage("a", b"a" * 16, {0: image})}

    async def scenario() -> None:
        node = await Survivor().start({"t": (2,)})
        node.elect({"t": (2,)}, others=elsewhere(2))
        node.elect({"t": (1,)}, 2, others=elsewhere(3))
        assert node.watched() == [("t", 0)]
        await node.cluster.close()

    run(scenario())


def test_partition_whose_log_is_not_open_is_not_taken_over() -> None:
    async def scenario() -> None:
        node = await Survivor().start({"t": (2,)})
        node.elect({"t": (2,), "u": (2,)})
        assert not node.partition("u").is_open
        node.elect({"t": (1,), "u": (1,)}, 2)
        assert node.watched() == [("t", 0)]
        assert not node.partition("u").is_open
        await node.cluster.close()

    run(scenario())


def test_image_that_fences_no_broker_begins_no_takeover() -> None:
    async def scenario() -> None:
        node = await Survivor().start({"t": (2,)})
        node.elect({"t": (1,)})
        assert node.watched() == []
        await node.cluster.close()

    run(scenario())


@pytest.mark.parametrize("order", [(2, 3), (3, 2)])
def test_takeovers_of_two_brokers_in_one_image_are_measured_apart(order: tuple[int, int]) -> None:
    async def scenario() -> None:
        node = await Survivor().start({"t": (2, 3)})
        node.elect({"t": (1, 1)}, *order)
        await asyncio.sleep(0.1)
        node.write("t", 1)
        await asyncio.sleep(0.1)
        node.write("t", 0)
        await asyncio.sleep(0)
        assert [(each.partition, each.broker_id, each.took_ms) for each in node.reports()] == [
            ("t-1", 3, 100),
            ("t-0", 2, 200),
        ]
        assert node.takeovers.until_first_write.total == 300
        await node.cluster.close()

    run(scenario())


def test_takeover_ends_without_a_report_at_a_partition_that_gets_another_leader() -> None:
    async def scenario() -> None:
        node = await Survivor().start({"t": (2, 2)})
        node.elect({"t": (1, 1)}, 2)
        node.elect({"t": (3, 1)})
        await asyncio.sleep(0)
        assert (node.reports(), node.watched()) == ([], [("t", 1)])
        node.write("t", 1)
        await asyncio.sleep(0)
        assert [each.partition for each in node.reports()] == ["t-1"]
        await node.cluster.close()

    run(scenario())


def test_commit_of_records_from_before_the_failover_is_not_the_first_write() -> None:
    async def scenario() -> None:
        node = await Survivor().start({"t": (1,)})
        partition = node.partition("t")
        partition.follow_image(replace(partition.image, isr=(1, 3), partition_epoch=50))
        node.write("t")
        assert partition.log.high_watermark == 0
        node.elect({"t": (2,)})
        node.elect({"t": (1,)}, 2)
        await asyncio.sleep(0)
        assert (partition.log.high_watermark, node.reports()) == (1, [])
        node.write("t")
        await asyncio.sleep(0)
        assert [each.partition for each in node.reports()] == ["t-0"]
        await node.cluster.close()

    run(scenario())


def test_only_the_first_partitions_of_a_large_takeover_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeovers, "WATCHED_MAX", 2)

    async def scenario() -> None:
        node = await Survivor().start({"t": (2, 2, 2), "u": (3, 3, 3)})
        node.elect({"t": (1, 1, 1), "u": (1, 1, 1)}, 2, 3)
        assert sorted(node.watched()) == [("t", 0), ("t", 1), ("u", 0), ("u", 1)]
        await node.cluster.close()

    run(scenario())
