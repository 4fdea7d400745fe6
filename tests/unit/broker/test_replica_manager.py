"""Tests the replica manager with several leaders and partitions: fetchers, lags, figures and counts of each of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from disk_node import A, B, DiskNode, soon
from replica_cluster import NOW_MS, Cluster, Member, batch, run, until

from penstock.broker.replicas import partition as partition_module
from penstock.broker.replicas.followed_partition import FollowerLag
from penstock.log.log import Log
from penstock.metadata.image import ImageChanges, PartitionImage, TopicImage
from penstock.replication.leader import Figures


class Topics:
    """Publishes topics on the nodes 1, 2 and 3. Every partition has replicas on all of them."""

    def __init__(self, **settings: str) -> None:
        self.cluster = Cluster(1, 2, 3, **settings)
        self._epoch = 0

    async def start(self, **leaders: tuple[int, ...]) -> Topics:
        for member in self.cluster.members.values():
            await member.start()
        self.elect(**leaders)
        for member in self.cluster.members.values():
            await member.partitions.settle()
        return self

    def elect(self, isr: tuple[int, ...] = (1, 2, 3), **leaders: tuple[int, ...]) -> None:
        """Publishes the leaders of all partitions of all topics."""
        self._epoch += 1
        topics = {
            name: TopicImage(
                name,
                name.encode() * 16,
                {
                    index: PartitionImage((1, 2, 3), isr, leader, self._epoch, partition_epoch=self._epoch)
                    for index, leader in enumerate(partitions)
                },
            )
            for name, partitions in leaders.items()
        }
        self.publish(topics)

    def publish(self, topics: dict[str, TopicImage]) -> None:
        old = self.cluster.image
        self.cluster.image = replace(
            old,
            version=old.version + 1,
            topics=topics,
            topics_by_id={each.topic_id: each for each in topics.values()},
            changes=ImageChanges(old.version, frozenset({*old.topics, *topics})),
        )
        self.cluster.publish()

    def __getitem__(self, node_id: int) -> Member:
        return self.cluster[node_id]

    async def write(self, leader: int, topic: str, index: int, count: int = 1, *, commits: bool = True) -> None:
        partition = self[leader].partitions.get(topic, index)
        values = [b"x"] * count
        end = partition.append(batch(*values), now_ms=NOW_MS).last_offset + 1
        if commits:
            await asyncio.wait_for(partition.committed(end), 5)


def test_lags_are_listed_for_every_leader_and_added_up_over_its_fetchers() -> None:
    async def scenario() -> None:
        topics = await Topics(num_replica_fetchers="2").start(a=(1, 1, 2, 2))
        follower = topics[3].replicas
        await until(lambda: all(not each._paused for each in follower._fetchers.values()))
        assert sorted(follower._fetchers) == [(1, 0), (1, 1), (2, 0), (2, 1)]
        assert {leader: (lag.largest, lag.total) for leader, lag in follower.lags().items()} == {1: (0, 0), 2: (0, 0)}
        now = asyncio.get_running_loop().time()
        for fetcher in follower._fetchers.values():
            for (_, index), entry in fetcher._followed.items():
                entry.lag, entry.behind_since = 1 + index, now - index
            fetcher._answered_at = now - fetcher.leader_id
        assert follower.lags() == {1: FollowerLag(2, 3, 1000, 1000), 2: FollowerLag(4, 7, 3000, 2000)}
        await topics.cluster.close()

    run(scenario())


def test_all_fetchers_without_partitions_are_closed_at_once() -> None:
    async def scenario() -> None:
        topics = await Topics(num_replica_fetchers="2").start(a=(1, 1, 2, 2))
        fetchers = list(topics[3].replicas._fetchers.values())
        assert len(fetchers) == 4
        topics.elect(a=(3, 3, 3, 2))
        assert len(topics[3].replicas._fetchers) == 1
        await asyncio.sleep(1)
        alive = [each for each in fetchers if each._task is not None and not each._task.done()]
        assert alive == list(topics[3].replicas._fetchers.values())
        topics.elect(a=(3, 3, 3, 3))
        assert topics[3].replicas._fetchers == {}
        await topics.cluster.close()

    run(scenario())


def test_figures_list_every_open_partition_that_this_node_leads() -> None:
    async def scenario() -> None:
        topics = await Topics().start(a=(1, 1), b=(2, 1))
        await topics.write(1, "a", 1, 3)
        await until(lambda: topics[1].partitions.get("a", 1).leading is not None)
        found = list(topics[1].replicas.figures())
        assert [(each.topic, each.partition, each.log_end) for each in found] == [("a", 0, 0), ("a", 1, 3), ("b", 1, 0)]
        topics.elect(a=(1, 1), b=(2, 1), c=(1,))
        assert [each.topic for each in topics[1].replicas.figures()] == ["a", "a", "b"], "its log is not open yet"
        assert [each.partition for each in topics[2].replicas.figures()] == [0]
        await topics.cluster.close()

    run(scenario())


def test_figures_hold_the_offsets_the_isr_and_the_lag_of_each_follower() -> None:
    async def scenario() -> None:
        topics = Topics(replica_lag_time_max_ms="1000000")
        topics.cluster.cut = {(2, 1), (3, 1)}
        await topics.start(a=(1,))
        partition = topics[1].partitions.get("a", 0)
        await asyncio.sleep(2)
        await topics.write(1, "a", 0, 3, commits=False)
        await topics.write(1, "a", 0, 2, commits=False)
        partition.on_replica_fetch(2, 102, 5, 0)
        partition.on_replica_fetch(3, 103, 3, 0)
        partition.log.advance_log_start_offset(1)
        [found] = topics[1].replicas.figures()
        lag_ms = found.lag_ms
        assert found._replace(lag_ms={}) == Figures(
            topic="a",
            partition=0,
            leader_epoch=1,
            log_start=1,
            log_end=5,
            high_watermark=3,
            isr=(1, 2, 3),
            replicas=(1, 2, 3),
            lag_records={2: 0, 3: 2},
            lag_ms={},
            under_replicated=False,
            under_min_isr=False,
            isr_change_pending=False,
        )
        assert lag_ms == {2: 0, 3: pytest.approx(2000, abs=10)}
        assert partition.leading is not None
        partition.leading.shrink([3], 101)
        [found] = topics[1].replicas.figures()
        assert (found.isr_change_pending, found.isr) == (True, (1, 2, 3))
        await topics.cluster.close()

    run(scenario())


@pytest.mark.parametrize(("isr", "under_min"), [((1, 2, 3), False), ((1, 2), False), ((1,), True)])
def test_figures_say_whether_the_isr_is_smaller_than_the_replicas_and_than_min_insync_replicas(
    isr: tuple[int, ...], under_min: bool
) -> None:
    async def scenario() -> None:
        topics = Topics(min_insync_replicas="2", replica_lag_time_max_ms="1000000")
        topics.cluster.cut = {(2, 1), (3, 1)}
        await topics.start(a=(1,))
        topics.elect(isr, a=(1,))
        [found] = topics[1].replicas.figures()
        assert (found.isr, found.under_replicated, found.under_min_isr) == (isr, len(isr) < 3, under_min)
        assert found.lag_records == {2: 0, 3: 0}, "an unknown log end counts as empty"
        await topics.cluster.close()

    run(scenario())


def test_changes_of_the_isr_in_one_image_are_counted_for_every_led_partition() -> None:
    async def scenario() -> None:
        topics = await Topics().start(a=(1, 1, 2), b=(1,))
        changes = topics[1].replicas.isr_changes
        topics.cluster.cut = {(2, 1), (3, 1), (3, 2)}
        topics.elect((1, 2), a=(1, 1, 2), b=(1,))
        assert (changes.shrinks, changes.expands) == (3, 0)
        topics.elect((1, 2, 3), a=(1, 1, 2), b=(2,))
        assert (changes.shrinks, changes.expands) == (3, 2), "another node leads b now"
        topics.elect((1, 2, 3), a=(1, 1, 2), b=(2,), c=(1,))
        assert (changes.shrinks, changes.expands) == (3, 2), "a new partition is no change"
        await topics.cluster.close()

    run(scenario())


def test_check_for_lagging_followers_returns_the_number_of_partitions_that_have_some() -> None:
    async def scenario() -> None:
        topics = Topics(replica_lag_time_max_ms="1000")
        topics.cluster.cut = {(2, 1), (3, 1)}
        await topics.start(a=(1, 1, 2), b=(1,))
        for index in (0, 1):
            await topics.write(1, "a", index, commits=False)
        partition = topics[1].partitions.get("b", 0)
        for node in (2, 3):
            partition.on_replica_fetch(node, 100 + node, 0, 0)
        later = int(asyncio.get_running_loop().time() * 1000) + 1500
        assert topics[1].replicas.check_laggards(later) == 2
        assert topics[1].replicas.check_laggards(later) == 0, "their changes are pending"
        await topics.cluster.close()

    run(scenario())


def test_fenced_broker_no_longer_holds_back_deletions_of_any_partition() -> None:
    async def scenario() -> None:
        topics = await Topics(replica_lag_time_max_ms="1000000").start(a=(1, 1), b=(1,))
        partitions = [topics[1].partitions.get(topic, index) for topic, index in (("a", 0), ("a", 1), ("b", 0))]
        for each in partitions:
            await topics.write(1, each.topic, each.index)
        topics.cluster.cut = {(3, 1)}
        await asyncio.sleep(1)
        waits = [each.delete_before(1) for each in partitions]
        await asyncio.sleep(1)
        assert [each is not None and not each.done() for each in waits] == [True] * 3
        topics.cluster.change_broker(3, fenced=True)
        assert [each is not None and each.done() for each in waits] == [True] * 3
        await topics.cluster.close()

    run(scenario())


def test_replicas_that_the_controller_says_are_complete_have_all_committed_records() -> None:
    async def scenario() -> None:
        topics = await Topics().start(a=(1,), b=(1,))
        logs = [topics[1].partitions.get(name, 0).log for name in ("a", "b")]
        partitions = topics[1].partitions
        assert [partitions.all_replicas_have(log) for log in logs] == [True, True]
        images = dict(topics.cluster.image.topics)
        one = replace(images["b"].partitions[0], isr=(3, 1), partition_epoch=9)
        topics.publish({**images, "b": replace(images["b"], partitions={0: one})})
        assert [partitions.all_replicas_have(log) for log in logs] == [True, False]
        topics.publish({"b": topics.cluster.image.topics["b"]})
        assert not partitions.all_replicas_have(logs[0]), "its partition is deleted"
        await topics.cluster.close()

    run(scenario())


def test_records_that_a_move_to_another_directory_has_synced_are_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(log: Log) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        node = await DiskNode().start()
        node.move(A)
        node.create("t", flush_messages="1")
        node.write(5)
        await node.partitions.get("t", 0).committed(5)
        monkeypatch.setattr(partition_module, "make_countable", never)
        node.write(15)
        waiting = node.partitions.get("t", 0).when_committed(20)
        await asyncio.sleep(1)
        assert (node.log().high_watermark, waiting is not None and waiting.done()) == (5, False)
        node.move(B)
        await soon(lambda: bool(node.moves.ended))
        assert (node.log().log_dir, node.log().high_watermark) == (B, 20)
        assert waiting is not None
        assert waiting.done()
        await node.stop()

    run(scenario())


@pytest.mark.parametrize("after", [0.05, 0.3, 0.55, 0.8])
def test_follower_leaves_the_isr_between_one_and_one_and_a_half_lag_times_after_its_last_fetch(after: float) -> None:
    async def scenario() -> None:
        cluster = Cluster(1, 2)
        await cluster.start(PartitionImage((1, 2), (1, 2), 1, 1))
        await cluster[1].partition.committed(cluster[1].append(b"a"))
        loop = asyncio.get_running_loop()
        await asyncio.sleep(after)
        cluster.cut = {(2, 1)}
        cut = loop.time()
        cluster[1].append(b"b")
        await until(lambda: cluster.isr() == (1,))
        longest_fetch = cluster[1].settings.int("replica.fetch.wait.max.ms") / 1000
        assert 1 - longest_fetch < loop.time() - cut < 1.51
        await cluster.close()

    run(scenario())
