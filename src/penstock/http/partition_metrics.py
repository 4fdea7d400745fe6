"""Collects metrics of the partitions that a node holds and leads, and limits the number of series.

Sums per node are always present. If this node leads at most PARTITIONS_MAX partitions, each of them has its own series.
Otherwise each topic has its own series, if there are at most TOPICS_MAX topics, and the partitions of chosen topics
have series on demand. `penstock_series_left_out` counts the missing series. Everything that grows with the number of
partitions yields to the event loop between slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from posixpath import dirname
from typing import TYPE_CHECKING

from penstock.broker.coordinators.runtime import Phase
from penstock.broker.replicas.followed_partition import FollowerLag
from penstock.broker.replicas.replica_figures import figures_of
from penstock.http.exposition import Family, gauge
from penstock.http.local_groups import committed_here
from penstock.net.yielding import yield_between_slices
from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.replication.leader import Figures

PARTITIONS_MAX = 100
#: Limit of the partitions that have series on demand.
CHOSEN_MAX = 10_000
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
    """Holds the measured values of all partitions on this node, from which the metrics are made."""

    led: list[Led]
    followed: int = 0
    size: int = 0
    offline: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    lags: dict[int, FollowerLag] = field(default_factory=dict)
    """How far each follower is behind on the partitions led here."""
    directories: dict[str, int] = field(default_factory=dict)
    """The bytes of all logs in each log directory."""

    def add_led(self, led: Led) -> None:
        self.led.append(led)
        figures = led.figures
        self.under_replicated += figures.under_replicated
        self.under_min_isr += figures.under_min_isr
        for replica, records in figures.lag_records.items():
            self.lags.setdefault(replica, FollowerLag()).add(records, figures.lag_ms[replica])


@dataclass(slots=True)
class TopicSums:
    """Holds sums over those partitions of a topic that this node leads."""

    ends: int = 0
    records: int = 0
    size: int = 0
    lag: FollowerLag = field(default_factory=FollowerLag)

    def add(self, led: Led) -> None:
        figures = led.figures
        self.ends += figures.log_end
        self.records += figures.log_end - figures.log_start
        self.size += led.size
        for replica, records in figures.lag_records.items():
            self.lag.add(records, figures.lag_ms[replica])


async def partition_families(broker: Broker, chosen: frozenset[str] | None = None) -> list[Family]:
    """Returns the metrics of partitions. If topics are chosen, only their partitions have their own series.

    If there are too many partitions for this, no partition has its own series.
    """
    held = await _held(broker)
    held.led.sort(key=lambda each: (each.figures.topic, each.figures.partition))
    left_out = gauge(
        "penstock_series_left_out", "Partitions, topics or groups that have no series: there are too many."
    )
    families = [*_node(held), *await _cluster(broker)]
    families += await _topics(held, left_out)
    families += await _partitions(held, chosen, left_out)
    families += await _groups(broker, left_out)
    return [*families, left_out]


async def _held(broker: Broker) -> Held:
    """Measures all partitions of this node.

    Iterates over a copy of the list, because partitions may be added or removed meanwhile.
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
        directory = dirname(log.path)
        held.directories[directory] = held.directories.get(directory, 0) + log.size
        held.offline += log.offline
        if partition.is_leader:
            try:
                held.add_led(Led(figures_of(partition), log.size))
            except KafkaError:
                continue  # its directory failed: counted as offline
    return held


def _node(held: Held) -> Iterator[Family]:
    roles = gauge("penstock_partitions", "Replicas on this node, by role: leader or follower.")
    roles.add(len(held.led), role="leader")
    roles.add(held.followed, role="follower")
    yield roles
    short, refusing = held.under_replicated, held.under_min_isr
    yield gauge("penstock_partitions_under_replicated", "Partitions led here with a follower out of sync.", short)
    yield gauge("penstock_partitions_under_min_isr", "Partitions led here that refuse acks=all.", refusing)
    yield from _follower_lag(held)
    used = gauge("penstock_log_directory_used_bytes", "Bytes of the logs in a log directory.")
    for directory, size in sorted(held.directories.items()):
        used.add(size, directory=directory)
    yield used
    yield gauge("penstock_partitions_on_failed_disks", "Replicas here whose directory has failed.", held.offline)
    yield gauge("penstock_log_size_bytes", "Bytes of all logs of this node.", held.size)


def _follower_lag(held: Held) -> Iterator[Family]:
    most = gauge("penstock_follower_lag_records_max", "Largest lag of a follower of a partition led here, by follower.")
    total = gauge("penstock_follower_lag_records_sum", "Lag of a follower over all partitions led here, by follower.")
    late = gauge("penstock_follower_lag_seconds_max", "Longest time that a follower has not been caught up.")
    for replica, lag in sorted(held.lags.items()):
        most.add(lag.largest, replica=replica)
        total.add(lag.total, replica=replica)
        late.add(lag.longest_ms / 1000, replica=replica)
    yield from (most, total, late)


async def _cluster(broker: Broker) -> list[Family]:
    """Returns metrics that count entries of this node's metadata image.

    All nodes that have caught up with the metadata log report the same values.
    """
    image = broker.metadata.image
    states = {"up": 0, "fenced": 0, "stopping": 0}
    for each in image.brokers.values():
        states["fenced" if each.fenced else "stopping" if each.in_controlled_shutdown else "up"] += 1
    brokers = gauge("penstock_cluster_brokers", "Registered brokers of the cluster.")
    for state, count in states.items():
        brokers.add(count, state=state)
    offline = short = number = moving = 0
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            await yield_between_slices(number)
            number += 1
            offline += partition.leader < 0
            short += partition.leader >= 0 and len(partition.isr) < len(partition.replicas)
            moving += bool(partition.adding_replicas or partition.removing_replicas)
    return [
        brokers,
        gauge("penstock_cluster_topics", "Topics of the cluster.", len(image.topics)),
        gauge("penstock_cluster_partitions", "Partitions of the cluster.", number),
        gauge("penstock_cluster_partitions_offline", "Partitions of the cluster without a leader.", offline),
        gauge("penstock_cluster_partitions_under_replicated", "Partitions of the cluster that lack a replica.", short),
        gauge(
            "penstock_cluster_partitions_reassigning", "Partitions of the cluster that are being reassigned.", moving
        ),
    ]


async def _topics(held: Held, left_out: Family) -> list[Family]:
    ends = gauge("penstock_topic_log_end_offset", "Sum of the end offsets of a topic's partitions that are led here.")
    records = gauge("penstock_topic_records", "Offsets from start to end of a topic's partitions led here.")
    size = gauge("penstock_topic_size_bytes", "Bytes of a topic's partitions that are led here.")
    lag = gauge("penstock_topic_follower_lag_records", "Largest lag of a follower of a topic's partitions led here.")
    late = gauge(
        "penstock_topic_follower_lag_seconds",
        "Longest lag of a follower of a topic's partitions led here.",
    )
    by_topic: dict[str, TopicSums] = {}
    for number, each in enumerate(held.led):
        await yield_between_slices(number)
        by_topic.setdefault(each.figures.topic, TopicSums()).add(each)
    if len(by_topic) > TOPICS_MAX:
        left_out.add(len(by_topic), of="topic")
        return []
    for topic, sums in by_topic.items():
        ends.add(sums.ends, topic=topic)
        records.add(sums.records, topic=topic)
        size.add(sums.size, topic=topic)
        lag.add(sums.lag.largest, topic=topic)
        late.add(sums.lag.longest_ms / 1000, topic=topic)
    return [ends, records, size, lag, late]


async def _partitions(held: Held, chosen: frozenset[str] | None, left_out: Family) -> list[Family]:
    led, limit = held.led, PARTITIONS_MAX
    if chosen is not None:
        led, limit = [each for each in led if each.figures.topic in chosen], CHOSEN_MAX
    if len(led) > limit:
        left_out.add(len(led), of="partition")
        return []
    start = gauge("penstock_partition_log_start_offset", "The first offset of a partition that is led here.")
    end = gauge("penstock_partition_log_end_offset", "The offset that a partition's next record gets.")
    mark = gauge("penstock_partition_high_watermark", "High watermark of a partition.")
    size = gauge("penstock_partition_size_bytes", "Bytes of a partition's log.")
    replicas = gauge("penstock_partition_replicas", "How many replicas a partition has.")
    in_sync = gauge("penstock_partition_in_sync_replicas", "How many replicas of a partition are in sync.")
    lag = gauge("penstock_partition_follower_lag_records", "Records that a follower lacks.")
    late = gauge("penstock_partition_follower_lag_seconds", "For how long a follower has not been caught up.")
    for number, each in enumerate(led):
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
    """Returns the number of groups that this node coordinates, and their lags on partitions that this node holds."""
    found: dict[tuple[str, str], int] = {}
    active = [each for each in broker.groups.coordinators() if each.phase is Phase.ACTIVE]
    groups, looked_at = sum(len(each.machine.groups) for each in active), 0
    async for group, (topic, index), offset in committed_here(broker, COMMITS_MAX + 1):
        looked_at += 1
        try:
            partition = broker.partitions.get(topic, index)
        except KafkaError:
            continue
        if partition.is_open:
            behind = max(0, partition.log.high_watermark - offset)
            found[group, topic] = found.get((group, topic), 0) + behind
    count = gauge("penstock_groups", "Groups that this node coordinates.", groups)
    lag = gauge("penstock_group_lag_records", "Offsets that a group has not committed yet, in partitions held here.")
    if len(found) > GROUPS_MAX or looked_at > COMMITS_MAX:
        left_out.add(groups, of="group")
        return [count]
    for (group, topic), behind in sorted(found.items()):
        lag.add(behind, group=group, topic=topic)
    return [count, lag]
