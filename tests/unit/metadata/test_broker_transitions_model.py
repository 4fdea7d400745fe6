"""Compares the effect of a broker's transitions on all partitions of two topics with a plain model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from test_partition_change_model import BROKERS, DISK, INDEX, OTHER_DISK, Case, Model, random_partition

from penstock.metadata.apply import apply
from penstock.metadata.controller.alter_partition import assign_replicas
from penstock.metadata.controller.broker_states import (
    begin_controlled_shutdown,
    fence_broker,
    offline_directories,
    unfence_broker,
    unregister_broker,
)
from penstock.metadata.controller.brokers import Registration, register_broker
from penstock.metadata.controller.partition_change import Election, Rules
from penstock.metadata.controller.quarantine import quarantine_broker
from penstock.metadata.image import (
    EMPTY_IMAGE,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from penstock.metadata.quarantine import QUARANTINED
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages import api_73_assign_replicas_to_dirs as api_73

ME, EPOCH = 1, 5
IDS = {"a": bytes([1] * 16), "b": bytes([2] * 16)}
LIFE, NEXT_LIFE = bytes([4] * 16), bytes([5] * 16)
Rule = Callable[[str, int, PartitionImage], PartitionImage]


@dataclass
class Cluster:
    image: MetadataImage
    rules: Rules
    unclean: dict[str, bool]

    def changed(self, name: str, old: PartitionImage, **wishes: Any) -> PartitionImage:
        """Returns the partition after a change, as the model of a partition computes it."""
        first = self.image.topics[name].partitions[0]
        image = replace(self.image, topics={"t": TopicImage("t", IDS[name], {0: first, INDEX: old})})
        election = Election.UNCLEAN if self.unclean[name] else Election.ONLINE
        wanted = {"election": election, **wishes}
        return Model(Case(image, old, wanted, self.rules.min_insync_replicas)).partition()

    def without_me(self, name: str, old: PartitionImage, how: str) -> PartitionImage:
        isr = [each for each in old.isr if each != ME]
        return self.changed(name, old, isr=isr, **{how: frozenset({ME})})

    def check(self, records: Any, rule: Rule) -> MetadataImage:
        """Checks that the records change each partition as the rule says, and returns the image after them."""
        done = apply(self.image, records)
        for name, topic in self.image.topics.items():
            for index, old in topic.partitions.items():
                assert done.topics[name].partitions[index] == rule(name, index, old), (name, index, old)
        return done


def random_cluster(random: Random, **me: Any) -> Cluster:
    topics = {}
    for name, topic_id in IDS.items():
        topics[name] = TopicImage(name, topic_id, {index: random_partition(random) for index in range(3)})
    brokers = {each: BrokerImage(each, EPOCH, LIFE, {}, fenced=random.random() < 0.3) for each in BROKERS}
    brokers[ME] = replace(brokers[ME], **{"fenced": False, "log_dirs": (DISK, OTHER_DISK), **me})
    features = {"metadata.version": 30, "eligible.leader.replicas.version": random.choice((0, 1, 1))}
    unclean = {name: random.random() < 0.3 for name in IDS}
    image = replace(
        EMPTY_IMAGE,
        offset=100,
        features=features,
        brokers=brokers,
        topics=topics,
        topics_by_id={topic.topic_id: topic for topic in topics.values()},
        configs={(2, "a"): {"unclean.leader.election.enable": str(unclean["a"]).lower()}},
        partition_count=6,
    )
    return Cluster(image, Rules(random.randint(1, 3), unclean_leader_election=unclean["b"]), unclean)


def is_in(partition: PartitionImage) -> bool:
    return ME in partition.isr or partition.leader == ME


def clusters(seed: int, count: int = 120, **me: Any) -> Any:
    random = Random(seed)
    for _ in range(count):
        yield random, random_cluster(random, **me)


def test_fenced_broker_leaves_every_isr_and_leadership_and_the_changes_are_counted() -> None:
    for _, cluster in clusters(1):

        def rule(name: str, index: int, old: PartitionImage, cluster: Cluster = cluster) -> PartitionImage:
            return cluster.without_me(name, old, "leaving") if is_in(old) else old

        decision = fence_broker(cluster.image, ME, cluster.rules)
        done = cluster.check(decision.records, rule)
        assert done.brokers == {**cluster.image.brokers, ME: replace(cluster.image.brokers[ME], fenced=True)}
        assert decision.reply == len(decision.records) - 1


def test_unfenced_broker_leads_every_leaderless_partition_that_it_may_lead() -> None:
    for _, cluster in clusters(2, fenced=True):

        def rule(name: str, index: int, old: PartitionImage, cluster: Cluster = cluster) -> PartitionImage:
            if old.leader >= 0 or ME not in old.replicas:
                return old
            return cluster.changed(name, old, isr=old.isr, coming=frozenset({ME}))

        done = cluster.check(unfence_broker(cluster.image, ME, EPOCH, cluster.rules).records, rule)
        assert done.brokers == {**cluster.image.brokers, ME: replace(cluster.image.brokers[ME], fenced=False)}


@pytest.mark.parametrize("already", [False, True])
def test_stopping_broker_leaves_every_isr_and_leadership_in_one_or_several_steps(already: bool) -> None:
    for _, cluster in clusters(3, 60, in_controlled_shutdown=already):

        def rule(name: str, index: int, old: PartitionImage, cluster: Cluster = cluster) -> PartitionImage:
            return cluster.without_me(name, old, "leaving") if is_in(old) else old

        records = begin_controlled_shutdown(cluster.image, ME, cluster.rules)
        done = cluster.check(records, rule)
        assert done.brokers[ME].in_controlled_shutdown
        assert any(hasattr(one, "in_controlled_shutdown") for one in records) == (not already)


def test_unregistered_broker_leaves_every_isr_and_is_no_eligible_leader() -> None:
    for _, cluster in clusters(4):

        def rule(name: str, index: int, old: PartitionImage, cluster: Cluster = cluster) -> PartitionImage:
            return cluster.without_me(name, old, "unclean_shutdown") if is_in(old) or ME in old.elr else old

        done = cluster.check(unregister_broker(cluster.image, ME, cluster.rules).records, rule)
        assert sorted(done.brokers) == [2, 3, 4]


def test_broker_with_failed_directories_leaves_the_isrs_of_their_partitions_only() -> None:
    for random, cluster in clusters(5):
        offline = random.choice(([DISK], [OTHER_DISK], [bytes([9] * 16)], [DISK, OTHER_DISK], []))

        def rule(
            name: str, index: int, old: PartitionImage, cluster: Cluster = cluster, offline: list[bytes] = offline
        ) -> PartitionImage:
            is_hit = is_in(old) and old.directory(ME) in offline
            return cluster.without_me(name, old, "leaving") if is_hit else old

        done = cluster.check(offline_directories(cluster.image, ME, offline, cluster.rules), rule)
        left = [each for each in (DISK, OTHER_DISK) if each not in offline]
        assert done.brokers[ME].log_dirs == tuple(left or (DISK, OTHER_DISK))


@pytest.mark.parametrize("previous", [EPOCH - 1, EPOCH, EPOCH + 1])
def test_restarted_broker_stays_an_eligible_leader_only_where_its_records_are_safe(previous: int) -> None:
    for random, cluster in clusters(6, 200):
        disks = random.choice(([DISK], [OTHER_DISK], [DISK, OTHER_DISK]))
        synced = frozenset((IDS[name], index) for name in IDS for index in range(3) if random.random() < 0.6)
        fsync = random.choice(({}, {"flush.messages": "1"}, {"flush.messages": "2"}, {"penstock.acks.fsync": "true"}))
        configs = {**cluster.image.configs, (2, "a"): {**cluster.image.configs[2, "a"], **fsync}}
        cluster.image = replace(cluster.image, configs=configs)
        registration = Registration(
            ME, NEXT_LIFE, {}, disks, features=dict.fromkeys(cluster.image.features, (0, 30)), synced=synced
        )
        registration = replace(registration, previous_broker_epoch=previous)
        keeps = {"a": "1" in fsync.values() or "true" in fsync.values(), "b": False}

        def rule(
            name: str,
            index: int,
            old: PartitionImage,
            cluster: Cluster = cluster,
            disks: list[bytes] = disks,
            synced: frozenset[tuple[bytes, int]] = synced,
            keeps: dict[str, bool] = keeps,
        ) -> PartitionImage:
            if not is_in(old) and ME not in old.elr:
                return old
            if previous != EPOCH:
                safe = keeps[name] and old.directory(ME) in disks and (IDS[name], index) in synced
                return cluster.without_me(name, old, "leaving" if safe else "unclean_shutdown")
            if old.directory(ME) not in (*disks, MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY):
                old = cluster.without_me(name, old, "unclean_shutdown")
            return cluster.without_me(name, old, "leaving") if is_in(old) else old

        decision = register_broker(cluster.image, registration, cluster.rules)
        done = cluster.check(decision.records, rule)
        assert (decision.reply, done.brokers[ME].epoch, done.brokers[ME].fenced) == (101, 101, True)
        assert done.brokers[ME].log_dirs == tuple(sorted(disks))


def test_assigned_directories_are_recorded_and_replicas_in_failed_directories_leave_the_isr() -> None:
    failed = bytes([9] * 16)
    for random, cluster in clusters(7):
        asked = {
            (n, i): random.choice((DISK, OTHER_DISK, failed)) for n in IDS for i in range(3) if random.random() < 0.7
        }
        request = api_73.AssignReplicasToDirsRequest(broker_id=ME, broker_epoch=EPOCH)
        for directory in (DISK, OTHER_DISK, failed):
            topics = [
                api_73.TopicData(
                    topic_id=IDS[name],
                    partitions=[
                        api_73.PartitionData(partition_index=index)
                        for index in range(3)
                        if asked.get((name, index)) == directory
                    ],
                )
                for name in IDS
            ]
            request.directories.append(api_73.DirectoryData(id=directory, topics=topics))

        def rule(
            name: str,
            index: int,
            old: PartitionImage,
            cluster: Cluster = cluster,
            asked: dict[tuple[str, int], bytes] = asked,
        ) -> PartitionImage:
            directory = asked.get((name, index))
            if directory is None or ME not in old.replicas:
                return old
            new = cluster.changed(name, old, election=Election.ONLINE, directories={ME: directory})
            return cluster.without_me(name, new, "leaving") if directory == failed else new

        decision = assign_replicas(cluster.image, request, cluster.rules)
        cluster.check(decision.records, rule)
        codes = {
            (one.id, topic.topic_id, part.partition_index): part.error_code
            for one in decision.reply.directories
            for topic in one.topics
            for part in topic.partitions
        }
        refused = ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert codes == {
            (directory, IDS[name], index): (
                0 if ME in cluster.image.topics[name].partitions[index].replicas else refused
            )
            for (name, index), directory in asked.items()
        }


def test_quarantine_is_refused_exactly_if_the_cluster_or_a_partition_needs_the_broker() -> None:
    refused = 0
    for random, cluster in clusters(8, 400):
        topics = {}
        for name, topic in cluster.image.topics.items():
            isr = tuple(random.sample(BROKERS, random.randint(2, 4)))
            topics[name] = replace(topic, partitions={0: PartitionImage(BROKERS, isr, isr[0])})
        brokers = {each: BrokerImage(each, EPOCH, LIFE, {}, fenced=random.random() < 0.1) for each in range(1, 7)}
        out = [each for each in (2, 3, 4) if random.random() < 0.3]
        configs = {(4, str(each)): {QUARANTINED: "bad"} for each in out}
        image = replace(cluster.image, brokers=brokers, topics=topics, configs=configs)
        rules = Rules(random.randint(1, 3))
        usable = sum(one.usable for each, one in brokers.items() if each != ME)
        needed = any(
            ME in topic.partitions[0].isr and len(topic.partitions[0].isr) <= rules.min_insync_replicas
            for topic in topics.values()
        )
        is_refused = 2 * (len(out) + 1) >= 6 or 2 * usable <= 6 or needed
        decision = quarantine_broker(image, ME, "wrong records", rules)
        assert (decision.reply is not None) == is_refused
        assert bool(decision.records) == (not is_refused)
        refused += is_refused
        if not is_refused:
            assert apply(image, decision.records).brokers[ME].fenced
    assert 100 < refused < 390
