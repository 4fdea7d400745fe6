"""Tests images that change several topics and partitions at once: every one of them is followed, kept or removed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from replica_cluster import NOW_MS, Cluster, Member, batch, run, until

from penstock.metadata.image import ImageChanges, PartitionImage, TopicImage
from penstock.protocol.vocabulary import ResourceType

NAMES = ("a", "b")


def led_by(leader: int, epoch: int = 1) -> PartitionImage:
    return PartitionImage(replicas=(1, 2), isr=(1, 2), leader=leader, leader_epoch=epoch, partition_epoch=epoch)


def topics_led_by(leader: int, epoch: int = 1) -> dict[str, TopicImage]:
    """Returns two topics with two partitions each."""
    return {
        name: TopicImage(name, bytes([number]) * 16, {0: led_by(leader, epoch), 1: led_by(leader, epoch)})
        for number, name in enumerate(NAMES, 1)
    }


def publish(cluster: Cluster, topics: dict[str, TopicImage]) -> None:
    old = cluster.image
    cluster.image = replace(
        old,
        version=old.version + 1,
        topics=topics,
        topics_by_id={each.topic_id: each for each in topics.values()},
        changes=ImageChanges(old.version, frozenset({*old.topics, *topics})),
    )
    cluster.publish()


async def started(**settings: str) -> Cluster:
    """Starts two nodes without topics: the first image with topics comes later, as on a running node."""
    cluster = Cluster(1, 2, **settings)
    for member in cluster.members.values():
        await member.start()
    return cluster


async def write_to_all(leader: Member) -> None:
    """Writes a record to every partition at the same time, and waits until all are committed."""
    waits = []
    for name in NAMES:
        for index in (0, 1):
            partition = leader.partitions.get(name, index)
            info = partition.append(batch(b"x"), now_ms=NOW_MS, required_acks=-1)
            waits.append(partition.committed(info.last_offset + 1))
    await asyncio.wait_for(asyncio.gather(*waits), 5)


def test_follower_fetches_every_partition_of_topics_created_in_one_metadata_image() -> None:
    async def scenario() -> None:
        cluster = await started()
        publish(cluster, topics_led_by(1))
        await write_to_all(cluster[1])
        assert {len(fetcher) for fetcher in cluster[2].replicas._fetchers.values()} == {4}
        await cluster.close()

    run(scenario())


def test_every_partition_changes_its_leader_if_one_image_elects_a_new_leader_for_all_of_them() -> None:
    async def scenario() -> None:
        cluster = await started()
        publish(cluster, topics_led_by(1))
        await write_to_all(cluster[1])
        publish(cluster, topics_led_by(2, epoch=2))
        await write_to_all(cluster[2])
        assert not cluster[2].replicas._fetchers
        await cluster.close()

    run(scenario())


def test_logs_and_fetches_of_all_topics_that_one_image_deletes_are_gone() -> None:
    async def scenario() -> None:
        cluster = await started()
        publish(cluster, topics_led_by(1))
        await write_to_all(cluster[1])
        waiting = [cluster[1].partitions.get(name, index) for name in NAMES for index in (0, 1)]
        publish(cluster, {})
        for member in cluster.members.values():
            assert (len(member.partitions), len(member.replicas._followed)) == (0, 0)
            assert not list(member.logs)
        assert all(each.leading is None for each in waiting)
        await until(lambda: not cluster[2].replicas._fetchers)
        await cluster.close()

    run(scenario())


def test_topic_that_is_deleted_and_created_again_in_one_image_gets_a_new_empty_log() -> None:
    async def scenario() -> None:
        cluster = await started()
        publish(cluster, topics_led_by(1))
        await write_to_all(cluster[1])
        new = {
            name: replace(topic, topic_id=bytes([9]) + topic.topic_id[1:]) for name, topic in topics_led_by(1).items()
        }
        publish(cluster, new)
        assert {cluster[1].partitions.get(name, 0).log.log_end_offset for name in NAMES} == {0}
        await write_to_all(cluster[1])
        assert {each.topic_id[:1] for each in cluster[2].partitions} == {bytes([9])}
        await cluster.close()

    run(scenario())


def test_new_number_of_replica_fetchers_spreads_all_partitions_over_them() -> None:
    def change(cluster: Cluster, fetchers: str) -> None:
        old, key = cluster.image, (int(ResourceType.BROKER), "")
        cluster.image = replace(
            old,
            version=old.version + 1,
            configs={**old.configs, key: {"num.replica.fetchers": fetchers}},
            changes=ImageChanges(old.version, configs=frozenset({key})),
        )
        cluster.publish()

    async def scenario() -> None:
        cluster = await started()
        publish(cluster, topics_led_by(1))
        await write_to_all(cluster[1])
        follower = cluster[2].replicas
        for fetchers in (2, 1):
            change(cluster, str(fetchers))
            assert {number: len(each) for (_, number), each in follower._fetchers.items()} == (
                {0: 2, 1: 2} if fetchers == 2 else {0: 4}
            )
            await write_to_all(cluster[1])
        await cluster.close()

    run(scenario())


def test_replica_that_leaves_a_node_is_no_longer_followed_and_the_other_partitions_stay() -> None:
    async def scenario() -> None:
        cluster = await started()
        publish(cluster, topics_led_by(1))
        await write_to_all(cluster[1])
        topics = topics_led_by(1)
        alone = replace(led_by(1), replicas=(1,), isr=(1,), partition_epoch=2)
        topics["a"] = replace(topics["a"], partitions={0: alone, 1: topics["a"].partitions[1]})
        publish(cluster, topics)
        assert cluster[2].partitions.find("a", 0) is None
        assert ({log.topic for log in cluster[2].logs}, len(list(cluster[2].logs))) == ({"a", "b"}, 3)
        assert len(cluster[2].replicas._followed) == 3
        await write_to_all(cluster[1])
        assert cluster[2].partitions.get("a", 1).log.log_end_offset == 2
        await cluster.close()

    run(scenario())


def test_closed_node_has_no_running_tasks() -> None:
    async def scenario() -> None:
        cluster = await started()
        publish(cluster, topics_led_by(1))
        await write_to_all(cluster[1])
        cluster.cut = {(2, 1)}
        member = cluster[1]
        partition = member.partitions.get("a", 0)
        partition.append(batch(b"y"), now_ms=NOW_MS, required_acks=1)
        await cluster.close()
        await asyncio.sleep(5)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert member.replicas.isr_changes._requests.closed
        assert member.replicas._assignments._reports.closed

    run(scenario())
