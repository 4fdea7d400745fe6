"""Runs random histories of a cluster, and checks that the controller's rules hold in any order of events."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from penstock.metadata.apply import apply
from penstock.metadata.controller.alter_partition import alter_partition, assign_replicas
from penstock.metadata.controller.broker_states import fence_broker, heartbeat, without_broker
from penstock.metadata.controller.brokers import Registration, register_broker
from penstock.metadata.controller.elections import balance_leaders, elect_leaders, elect_unclean
from penstock.metadata.controller.partition_change import Rules
from penstock.metadata.controller.reassignments import alter_reassignments
from penstock.metadata.controller.topics import TopicDefaults, create_topics
from penstock.metadata.decision import Decision
from penstock.metadata.features import SUPPORTED_FEATURES, default_features
from penstock.metadata.image import EMPTY_IMAGE, Endpoint, MetadataImage, PartitionImage
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages import api_56_alter_partition as api_56
from penstock.protocol.messages import api_73_assign_replicas_to_dirs as api_73
from penstock.protocol.messages.api_19_create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from penstock.protocol.messages.api_43_elect_leaders import ElectLeadersRequest, TopicPartitions
from penstock.protocol.messages.api_45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest

BROKERS = (1, 2, 3, 4, 5)
TOPIC, LAX = "careful", "lax"  # the second topic allows unclean elections
PARTITIONS = 3


def directories_of(broker_id: int) -> list[bytes]:
    return [bytes([9, broker_id, disk] + [0] * 13) for disk in (1, 2)]


class Records:
    """Counts the records of each replica of the first topic, and the acknowledged records.

    A leader acknowledges the records that all in-sync replicas have, if enough replicas are in sync. An unclean
    shutdown may lose the last records of a broker. A cleanly elected leader must have every acknowledged record.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.ends: dict[tuple[int, int], int] = {}
        self.acked: dict[int, int] = {}

    def write(self, image: MetadataImage) -> None:
        for index, one in image.topics[TOPIC].partitions.items():
            if one.leader >= 0 and len(one.isr) >= min(2, len(one.replicas)):
                end = self.ends.get((index, one.leader), 0) + 1
                self.ends.update({(index, broker_id): end for broker_id in one.isr})
                self.acked[index] = end

    def lose(self, broker_id: int) -> None:
        for index in range(PARTITIONS):
            held = self.ends.get((index, broker_id), 0)
            self.ends[index, broker_id] = max(0, held - self.random.randint(0, 3))

    def follow(self, index: int, old: PartitionImage, new: PartitionImage, unclean: bool) -> None:
        if old.leader >= 0 and (new.leader == old.leader or completes(old, new)):
            # A replica that joins the ISR has all records of the leader that adds it.
            for broker_id in set(new.isr) - set(old.isr):
                self.ends[index, broker_id] = self.ends.get((index, old.leader), 0)
        if new.leader >= 0 and new.leader != old.leader:
            end = self.ends.get((index, new.leader), 0)
            if unclean or new.leader_recovery_state:
                self.acked[index] = min(end, self.acked.get(index, 0))
            assert end >= self.acked.get(index, 0), "an acknowledged record is lost"
            for broker_id in BROKERS:
                held = self.ends.get((index, broker_id), 0)
                self.ends[index, broker_id] = end if broker_id in new.isr else min(held, end)
        for broker_id in set(BROKERS) - set(new.replicas):
            self.ends[index, broker_id] = 0


class History:
    """Holds one image, applies random events to it, and checks the rules after each event."""

    def __init__(self, seed: int, *, elr: bool) -> None:
        self.random = Random(seed)
        features = default_features(30)
        if not elr:
            del features["eligible.leader.replicas.version"]
        self.elr = elr
        self.image: MetadataImage = replace(EMPTY_IMAGE, features=features)
        self.rules = Rules(min_insync_replicas=2)
        self.clean_epochs: dict[int, int] = {}
        self.records = Records(self.random)
        for broker_id in BROKERS:
            self.register(broker_id)
            self.unfence(broker_id)
        self.create()

    # --- events ----------------------------------------------------------------------------------------

    def commit(self, decision: Decision[Any], *, unclean: bool = False, lossy: int | None = None) -> Any:
        before, self.image = self.image, apply(self.image, decision.records)
        for name, index, old, new in self.pairs(before):
            check_partition(self.image, new, self.elr)
            if name == TOPIC and old is not None and old != new and self.elr:
                self.records.follow(index, old, new, unclean)
            check_step(old, new, unclean=unclean or name == LAX, elr=self.elr, lossy=lossy)
        return decision.reply

    def pairs(self, before: MetadataImage) -> Iterator[tuple[str, int, PartitionImage | None, PartitionImage]]:
        for topic in self.image.topics.values():
            for index, partition in topic.partitions.items():
                yield topic.name, index, before.partition(topic.name, index), partition

    def create(self) -> None:
        lax = CreatableTopicConfig(name="unclean.leader.election.enable", value="true")
        wanted = [
            CreatableTopic(name=name, num_partitions=PARTITIONS, replication_factor=3, configs=configs)
            for name, configs in [(TOPIC, []), (LAX, [lax])]
        ]
        request = CreateTopicsRequest(topics=wanted)
        self.commit(create_topics(self.image, request, TopicDefaults(1, 1), self.random))

    def register(self, broker_id: int, previous_epoch: int = -1) -> None:
        one = Registration(
            broker_id,
            self.random.randbytes(16),
            {"PLAINTEXT": Endpoint("h", 9092, 0)},
            directories_of(broker_id),
            features=SUPPORTED_FEATURES,
            previous_broker_epoch=previous_epoch,
        )
        known = self.image.brokers.get(broker_id)
        if known is None or known.epoch != previous_epoch:
            self.records.lose(broker_id)
        self.commit(register_broker(self.image, one, self.rules), lossy=broker_id)

    def beat(self, broker_id: int, **fields: Any) -> Any:
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[broker_id].epoch,
            current_metadata_offset=self.image.offset,
            **fields,
        )
        return self.commit(heartbeat(self.image, request, self.rules))

    def unfence(self, broker_id: int) -> None:
        self.beat(broker_id)

    def crash(self, broker_id: int) -> None:
        self.commit(fence_broker(self.image, broker_id, self.rules))

    def restart_at_once(self, broker_id: int) -> None:
        """Restarts the broker before its session ends."""
        self.register(broker_id)

    def come_back(self, broker_id: int) -> None:
        if self.image.brokers[broker_id].fenced:
            self.register(broker_id, self.clean_epochs.pop(broker_id, -1))
            self.unfence(broker_id)

    def stop(self, broker_id: int) -> None:
        if self.image.brokers[broker_id].fenced:
            return
        reply = self.beat(broker_id, want_shut_down=True)
        if reply.shutdown_offset is not None:
            request = BrokerHeartbeatRequest(
                broker_id=broker_id,
                broker_epoch=self.image.brokers[broker_id].epoch,
                current_metadata_offset=self.image.offset,
                want_shut_down=True,
            )
            done = heartbeat(
                self.image, request, self.rules, shutdown_offset=reply.shutdown_offset, lowest_active_offset=None
            )
            reply = self.commit(done)
        assert reply.state.value == "shutdown now"
        self.clean_epochs[broker_id] = self.image.brokers[broker_id].epoch

    def lose_disk(self, broker_id: int) -> None:
        if not self.image.brokers[broker_id].fenced and len(self.image.brokers[broker_id].log_dirs) > 1:
            self.beat(broker_id, offline_log_dirs=directories_of(broker_id)[:1])

    def place(self, broker_id: int) -> None:
        """Lets the broker assign directories to its replicas."""
        chosen: dict[bytes, list[tuple[bytes, int]]] = {}
        for topic in self.image.topics.values():
            for index, partition in topic.partitions.items():
                if broker_id in partition.replicas:
                    chosen.setdefault(self.random.choice(directories_of(broker_id)), []).append((topic.topic_id, index))
        request = api_73.AssignReplicasToDirsRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[broker_id].epoch,
            directories=[
                api_73.DirectoryData(
                    id=directory,
                    topics=[
                        api_73.TopicData(topic_id=each, partitions=[api_73.PartitionData(partition_index=index)])
                        for each, index in placed
                    ],
                )
                for directory, placed in sorted(chosen.items())
            ],
        )
        self.commit(assign_replicas(self.image, request, self.rules))

    def change_isr(self, broker_id: int) -> None:
        """Lets each leader remove or add replicas, sometimes with an outdated partition epoch."""
        for topic in list(self.image.topics.values()):
            for index, partition in topic.partitions.items():
                if partition.leader == broker_id:
                    others = [each for each in partition.replicas if each != broker_id]
                    isr = [broker_id, *self.random.sample(others, self.random.randint(0, len(others)))]
                    self.alter(broker_id, topic.topic_id, index, partition, isr, stale=self.random.random() < 0.1)

    def alter(
        self, broker_id: int, topic_id: bytes, index: int, seen: PartitionImage, isr: list[int], stale: bool = False
    ) -> None:
        wish = api_56.PartitionData(
            partition_index=index,
            leader_epoch=seen.leader_epoch,
            partition_epoch=seen.partition_epoch - stale,
            new_isr_with_epochs=[
                api_56.BrokerState(broker_id=each, broker_epoch=self.image.brokers[each].epoch) for each in isr
            ],
        )
        request = api_56.AlterPartitionRequest(
            broker_id=broker_id,
            broker_epoch=self.image.brokers[broker_id].epoch,
            topics=[api_56.TopicData(topic_id=topic_id, partitions=[wish])],
        )
        self.commit(alter_partition(self.image, request, self.rules))

    def move(self, broker_id: int) -> None:
        topic = self.random.choice(list(self.image.topics))
        target = self.random.choice([None, self.random.sample(BROKERS, self.random.randint(1, 4))])
        asked = ReassignablePartition(partition_index=self.random.randrange(PARTITIONS), replicas=target)
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=[asked])])
        self.commit(alter_reassignments(self.image, request, self.rules))

    def elect(self, broker_id: int) -> None:
        kind = self.random.choice([0, 0, 0, 1])
        asked = [TopicPartitions(topic=name, partitions=[0, 1, 2]) for name in (TOPIC, LAX)]
        request = ElectLeadersRequest(election_type=kind, topic_partitions=asked)
        self.commit(elect_leaders(self.image, request, self.rules), unclean=kind == 1)

    def balance(self, broker_id: int) -> None:
        self.commit(balance_leaders(self.image, self.rules, limit=2))
        self.commit(elect_unclean(self.image, self.rules, limit=2))

    def step(self) -> None:
        event = self.random.choice(
            [self.crash, self.come_back, self.come_back, self.restart_at_once, self.stop, self.lose_disk, self.place]
            + [self.change_isr] * 4
            + [self.move, self.move, self.elect, self.balance]
        )
        with suppress(KafkaError):  # a refusal changes nothing
            event(self.random.choice(BROKERS))
        self.records.write(self.image)

    def heal(self) -> None:
        """Starts all brokers again, and lets every leader add all replicas, until nothing changes any more."""
        for broker_id in BROKERS:
            broker = self.image.brokers[broker_id]
            if not broker.usable or len(broker.log_dirs) < 2:
                self.register(broker_id)
            self.unfence(broker_id)
        for _ in range(4):
            for topic in list(self.image.topics.values()):
                for index, partition in topic.partitions.items():
                    if partition.leader >= 0:
                        isr = list(partition.replicas)
                        self.alter(partition.leader, topic.topic_id, index, partition, isr)


def check_partition(image: MetadataImage, one: PartitionImage, elr: bool) -> None:
    replicas = set(one.replicas)
    assert one.replicas
    assert len(replicas) == len(one.replicas)
    assert set(one.isr) <= replicas
    assert len(set(one.isr)) == len(one.isr)
    assert one.leader == -1 or one.leader in one.isr
    assert set(one.elr) <= replicas
    assert not set(one.elr) & set(one.isr)
    assert len(one.directories) == len(one.replicas)
    assert set(one.adding_replicas) | set(one.removing_replicas) <= replicas
    assert elr or one.isr
    assert elr or not one.elr
    assert elr or not one.last_known_elr
    if one.leader >= 0:
        assert image.brokers[one.leader].usable
        assert not one.last_known_elr


def check_step(old: PartitionImage | None, new: PartitionImage, *, unclean: bool, elr: bool, lossy: int | None) -> None:
    if old is None or old == new:
        return
    assert new.partition_epoch > old.partition_epoch
    assert new.leader_epoch >= old.leader_epoch
    if new.leader != old.leader:
        assert new.leader_epoch > old.leader_epoch
    if new.leader >= 0 and new.leader != old.leader and not unclean:
        last_known = old.last_known_elr == (new.leader,) and not {*old.isr, *old.elr} - {lossy}
        assert new.leader in old.isr or new.leader in old.elr or (elr and last_known) or completes(old, new)


def completes(old: PartitionImage, new: PartitionImage) -> bool:
    """Returns True if this change completed a reassignment: the previous leader reported the next leader as in sync."""
    moving = bool(old.adding_replicas or old.removing_replicas)
    return moving and not new.adding_replicas and not new.removing_replicas and new.leader in new.isr


@pytest.mark.parametrize("elr", [True, False], ids=["eligible leaders", "without"])
@pytest.mark.parametrize("seed", range(40))
def test_controller_invariants_hold_in_random_histories_and_the_cluster_recovers(seed: int, elr: bool) -> None:
    life = History(seed, elr=elr)
    for _ in range(60):
        life.step()
    life.heal()
    for topic in life.image.topics.values():
        for partition in topic.partitions.values():
            assert not partition.adding_replicas, "a reassignment ends when everybody is in sync"
            assert not partition.removing_replicas
            if partition.leader >= 0:
                assert set(partition.isr) == set(partition.replicas)
            else:
                # Only the replica that may have records that no other has can be missing, because it lost its own.
                assert elr
                assert not partition.isr
                assert not partition.elr


def any_replica(target: Any, broker_id: int) -> bool:
    return broker_id in target.replicas


def all_that_left(change: Any, target: Any) -> list[int]:
    before = (*change.partition.elr, *change.partition.isr)
    return [each for each in dict.fromkeys(before) if each not in target.isr and each in target.replicas]


def trusted_for_ever(image: MetadataImage, broker_id: int, rules: Rules, *_: Any) -> list[Any]:
    return without_broker(image, broker_id, rules)


@pytest.mark.parametrize(
    ("where", "bug"),
    [
        ("partition_change.has_everything", any_replica),
        ("partition_change.eligible_leaders", all_that_left),
        ("brokers.after_unclean_shutdown", trusted_for_ever),
    ],
    ids=["anybody leads", "eligible for ever", "trusted after a crash"],
)
def test_random_histories_find_a_planted_controller_bug(where: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"penstock.metadata.controller.{where}", bug)
    with pytest.raises(AssertionError):
        run_many()


def run_many() -> None:
    for seed in range(60):
        life = History(seed, elr=True)
        for _ in range(60):
            life.step()


def test_controller_history_of_a_seed_is_the_same_in_every_run() -> None:
    lives = []
    for _ in range(2):
        life = History(7, elr=True)
        for _ in range(60):
            life.step()
        lives.append(life.image)
    assert lives[0] == lives[1]
