"""Collects metrics of the partitions that a node holds and leads, and limits the number of series.

Sums per node are always present. If this node leads at most PARTITIONS_MAX partitions, each of them has its own series.
Otherwise each topic has its own series, if there are at most TOPICS_MAX topics. `penstock_series_left_out` counts the
missing series.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import Phase
from penstock.broker.replicas.replica_figures import figures_of
from penstock.http.exposition import Family, gauge
from penstock.http.view import yield_between_slices
from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.replication.leader import Figures

PARTITIONS_MAX = 1000
TOPICS_MAX = 1000
#: Limits of (group, topic) pairs, and of the commits that are read to find them.
GROUPS_MAX = 1000
COMMITS_MAX = 10_000


@dataclass(slots=True)
class Led:
    figures: Figures
    size: int


@dataclass(slots=True)
class Held:
    """Holds the figures of all partitions on this node, for their metrics."""

    led: list[Led]
    followed: int = 0
    size: int = 0
    offline: int = 0


async def partition_families(broker: Broker) -> list[Family]:
    held = await _held(broker)
    held.led.sort(key=lambda each: (each.figures.topic, each.figures.partition))
    left_out = gauge(
        "penstock_series_left_out", "Partitions, topics or groups that have no series: there are too many."
    )
    families = [*_node(held), *await _cluster(broker)]
    families += _topics(held, left_out)
    families += await _partitions(held, left_out)
    families += await _groups(broker, left_out)
    return [*families, left_out]


async def _held(broker: Broker) -> Held:
    """Collects the figures of all partitions.

    Iterates over a copy, because partitions may change during the iteration.
    """
    held = Held([])
    for number, partition in enumerate(list(broker.partitions)):
        await yield_between_slices(number)
        if not partition.is_leader:
            held.followed += 1
        if not partition.is_open:
            continue
        log = partition.log
        held.size += log.size
        held.offline += log.offline
        if partition.is_leader:
            try:
                held.led.append(Led(figures_of(partition), log.size))
            except KafkaError:
                continue  # its directory failed: counted as offline
    return held


def _node(held: Held) -> Iterator[Family]:
    roles = gauge("penstock_partitions", "Replicas on this node, by role: leader or follower.")
    roles.add(len(held.led), role="leader")
    roles.add(held.followed, role="follower")
    yield roles
    figures = [each.figures for each in held.led]
    short = sum(each.under_replicated for each in figures)
    yield gauge("penstock_partitions_under_replicated", "Partitions led here with a follower out of sync.", short)
    refusing = sum(each.under_min_isr for each in figures)
    yield gauge("penstock_partitions_under_min_isr", "Partitions led here that refuse acks=all.", refusing)
    yield gauge("penstock_partitions_on_failed_disks", "Replicas here whose directory has failed.", held.offline)
    yield gauge("penstock_log_size_bytes", "Bytes of all logs of this node.", held.size)


async def _cluster(broker: Broker) -> list[Family]:
    """Returns metrics that count entries of this node's metadata image.

    They are equal on all nodes that have caught up.
    """
    image = broker.metadata.image
    states = {"up": 0, "fenced": 0, "stopping": 0}
    for each in image.brokers.values():
        states["fenced" if each.fenced else "stopping" if each.in_controlled_shutdown else "up"] += 1
    brokers = gauge("penstock_cluster_brokers", "Registered brokers of the cluster.")
    for state, count in states.items():
        brokers.add(count, state=state)
    offline = short = number = 0
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            await yield_between_slices(number)
            number += 1
            offline += partition.leader < 0
            short += partition.leader >= 0 and len(partition.isr) < len(partition.replicas)
    return [
        brokers,
        gauge("penstock_cluster_topics", "Topics of the cluster.", len(image.topics)),
        gauge("penstock_cluster_partitions", "Partitions of the cluster.", number),
        gauge("penstock_cluster_partitions_offline", "Partitions of the cluster without a leader.", offline),
        gauge("penstock_cluster_partitions_under_replicated", "Partitions of the cluster that lack a replica.", short),
    ]


def _topics(held: Held, left_out: Family) -> list[Family]:
    ends = gauge("penstock_topic_log_end_offset", "Sum of the end offsets of a topic's partitions that are led here.")
    records = gauge("penstock_topic_records", "Offsets from start to end of a topic's partitions led here.")
    size = gauge("penstock_topic_size_bytes", "Bytes of a topic's partitions that are led here.")
    lag = gauge("penstock_topic_follower_lag_records", "Largest lag of a follower of a topic's partitions led here.")
    late = gauge(
        "penstock_topic_follower_lag_seconds",
        "Longest lag of a follower of a topic's partitions led here.",
    )
    by_topic: dict[str, list[Led]] = {}
    for each in held.led:
        by_topic.setdefault(each.figures.topic, []).append(each)
    if len(by_topic) > TOPICS_MAX:
        left_out.add(len(by_topic), of="topic")
        return []
    for topic, members in by_topic.items():
        ends.add(sum(each.figures.log_end for each in members), topic=topic)
        records.add(sum(each.figures.log_end - each.figures.log_start for each in members), topic=topic)
        size.add(sum(each.size for each in members), topic=topic)
        figures = [each.figures for each in members]
        lag.add(max((behind for each in figures for behind in each.lag_records.values()), default=0), topic=topic)
        late_ms = max((behind for each in figures for behind in each.lag_ms.values()), default=0)
        late.add(late_ms / 1000, topic=topic)
    return [ends, records, size, lag, late]


async def _partitions(held: Held, left_out: Family) -> list[Family]:
    if len(held.led) > PARTITIONS_MAX:
        left_out.add(len(held.led), of="partition")
        return []
    start = gauge("penstock_partition_log_start_offset", "The first offset of a partition that is led here.")
    end = gauge("penstock_partition_log_end_offset", "The offset that a partition's next record gets.")
    mark = gauge("penstock_partition_high_watermark", "High watermark of a partition.")
    size = gauge("penstock_partition_size_bytes", "Bytes of a partition's log.")
    replicas = gauge("penstock_partition_replicas", "How many replicas a partition has.")
    in_sync = gauge("penstock_partition_in_sync_replicas", "How many replicas of a partition are in sync.")
    lag = gauge("penstock_partition_follower_lag_records", "Records that a follower lacks.")
    late = gauge("penstock_partition_follower_lag_seconds", "For how long a follower has not been caught up.")
    for number, each in enumerate(held.led):
        await yield_between_slices(number)
        figures = each.figures
        labels: dict[str, object] = {"topic": figures.topic, "partition": figures.partition}
        start.add(figures.log_start, **labels)
        end.add(figures.log_end, **labels)
        mark.add(figures.high_watermark, **labels)
        size.add(each.size, **labels)
        replicas.add(len(figures.replicas), **labels)
        in_sync.add(len(figures.isr), **labels)
        for replica, behind in sorted(figures.lag_records.items()):
            lag.add(behind, **labels, replica=replica)
            late.add(figures.lag_ms[replica] / 1000, **labels, replica=replica)
    return [start, end, mark, size, replicas, in_sync, lag, late]


async def _groups(broker: Broker, left_out: Family) -> list[Family]:
    """Returns the lag of groups. Covers only groups that this node coordinates, and partitions that this node holds."""
    found: dict[tuple[str, str], int] = {}
    groups = looked_at = 0
    for coordinator in broker.groups.coordinators():
        if coordinator.phase is not Phase.ACTIVE:
            continue
        shard = coordinator.machine
        groups += len(shard.groups)
        for group in list(shard.offsets.committed):
            for (topic, index), committed in list(shard.offsets.of_group(group).items()):
                looked_at += 1
                await yield_between_slices(looked_at)
                try:
                    partition = broker.partitions.get(topic, index)
                except KafkaError:
                    continue
                if partition.is_open:
                    behind = max(0, partition.log.high_watermark - committed.offset)
                    found[group, topic] = found.get((group, topic), 0) + behind
            if looked_at > COMMITS_MAX:
                break
    count = gauge("penstock_groups", "Groups that this node coordinates.", groups)
    lag = gauge("penstock_group_lag_records", "Offsets that a group has not committed yet, in partitions held here.")
    if len(found) > GROUPS_MAX or looked_at > COMMITS_MAX:
        left_out.add(groups, of="group")
        return [count]
    for (group, topic), behind in sorted(found.items()):
        lag.add(behind, group=group, topic=topic)
    return [count, lag]
