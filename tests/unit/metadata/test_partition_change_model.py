"""Compares random changes of partitions with a plain model of the rules for leaders, ISRs and eligible leaders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from penstock.metadata.apply import changed_partition
from penstock.metadata.controller.partition_change import Change, Election, Rules, leader_and_isr_changes
from penstock.metadata.image import (
    EMPTY_IMAGE,
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)

ID = bytes([1] * 16)
DISK, OTHER_DISK = bytes([7] * 16), bytes([8] * 16)
DIRECTORIES = (DISK, DISK, OTHER_DISK, UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY, LOST_DIRECTORY)
BROKERS = (1, 2, 3, 4)
INDEX = 1


@dataclass(frozen=True)
class Case:
    image: MetadataImage
    partition: PartitionImage
    wishes: dict[str, Any]
    min_isr: int

    @property
    def topic(self) -> TopicImage:
        return self.image.topics["t"]

    def decided(self) -> PartitionImage:
        record = Change(self.image, self.topic, INDEX, Rules(self.min_isr), **self.wishes).record()
        if record is None:
            return self.partition
        assert (record.topic_id, record.partition_id) == (ID, INDEX)
        return changed_partition(self.partition, record)


def some(random: Random, ids: Any, least: int = 0) -> tuple[int, ...]:
    """Returns some of the ids in any order."""
    return tuple(random.sample(list(ids), random.randint(min(least, len(ids)), len(ids))))


def random_broker(random: Random, broker_id: int) -> BrokerImage:
    state = random.choice(("usable", "usable", "fenced", "stopping"))
    disks = random.choice(((DISK,), (DISK, OTHER_DISK), ()))
    return BrokerImage(
        broker_id, 5, ID, {}, fenced=state == "fenced", in_controlled_shutdown=state == "stopping", log_dirs=disks
    )


def random_partition(random: Random) -> PartitionImage:
    replicas = some(random, BROKERS, least=1)
    isr = some(random, replicas)
    out = [each for each in replicas if each not in isr]
    moving = random.random() < 0.5
    return PartitionImage(
        replicas=replicas,
        isr=isr,
        leader=random.choice((*isr, *isr, -1, random.choice(replicas))),
        directories=tuple(random.choice(DIRECTORIES) for _ in replicas) if random.random() < 0.7 else (),
        elr=some(random, out) if random.random() < 0.5 else (),
        last_known_elr=random.choice(((), (), (random.choice(BROKERS),), some(random, replicas))),
        adding_replicas=some(random, replicas) if moving else (),
        removing_replicas=some(random, replicas) if moving else (),
        leader_recovery_state=random.choice((0, 0, 1)),
    )


def random_case(random: Random) -> Case:
    partition = random_partition(random)
    brokers = {each: random_broker(random, each) for each in BROKERS if random.random() < 0.9}
    known = sorted({*brokers, *partition.replicas})
    wishes: dict[str, Any] = {"election": random.choice(list(Election))}
    if random.random() < 0.5:
        wishes["isr"] = some(random, BROKERS if random.random() < 0.3 else partition.replicas)
    if random.random() < 0.3:
        wishes["replicas"] = some(random, known, least=1)
        wishes["isr"] = some(random, wishes["replicas"])
        wishes["adding"] = some(random, known) if random.random() < 0.5 else ()
        wishes["removing"] = some(random, known) if random.random() < 0.5 else ()
    if random.random() < 0.3:
        wishes["recovery_state"] = random.choice((0, 1))
    if random.random() < 0.4:
        of = random.choice(partition.last_known_elr or partition.replicas)
        wishes["directories"] = {of: random.choice((DISK, OTHER_DISK))}
    for name in ("leaving", "coming", "unclean_shutdown"):
        if random.random() < 0.3:
            wishes[name] = frozenset(some(random, BROKERS))
    features = {"metadata.version": random.choice((11, 12, 16, 17, 30))}
    if random.random() < 0.7:
        features["eligible.leader.replicas.version"] = random.choice((0, 1, 1))
    partitions = {INDEX: partition}
    if random.random() < 0.8:
        partitions[0] = PartitionImage(BROKERS[: random.randint(1, 4)], (), -1)
    topic = TopicImage("t", ID, partitions)
    image = replace(EMPTY_IMAGE, brokers=brokers, topics={"t": topic}, topics_by_id={ID: topic}, features=features)
    return Case(image, partition, wishes, min_isr=random.randint(1, 3))


class Model:
    """Computes the partition after a change, rule by rule."""

    def __init__(self, case: Case) -> None:
        wishes, self.case, self.old = case.wishes, case, case.partition
        old = self.old
        self.elr_on = case.image.features.get("eligible.leader.replicas.version", 0) > 0
        self.version = case.image.features["metadata.version"]
        self.lossy = wishes.get("unclean_shutdown", frozenset())
        self.moved_to = wishes.get("directories", {})
        self.isr = list(wishes.get("isr", old.isr))
        self.replicas = list(wishes.get("replicas", old.replicas))
        self.adding = list(wishes.get("adding", old.adding_replicas))
        self.removing = list(wishes.get("removing", old.removing_replicas))

    def online(self, broker_id: int, directory: bytes) -> bool:
        disks = self.case.image.brokers[broker_id].log_dirs
        if directory in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY):
            return True
        return directory != LOST_DIRECTORY and (not disks or directory in disks)

    def old_directory(self, broker_id: int) -> bytes:
        return dict(zip(self.old.replicas, self.old.directories)).get(broker_id, UNASSIGNED_DIRECTORY)

    def may_lead(self, broker_id: int) -> bool:
        wishes, broker = self.case.wishes, self.case.image.brokers.get(broker_id)
        if broker is None or broker_id in wishes.get("leaving", ()) or broker_id in self.lossy:
            return False
        is_up = not (broker.fenced or broker.in_controlled_shutdown) or broker_id in wishes.get("coming", ())
        return is_up and self.online(broker_id, self.moved_to.get(broker_id, self.old_directory(broker_id)))

    def last_known(self) -> tuple[tuple[int, ...], bool]:
        """Returns the last known leaders; True if they changed because the last known leader lost its directory."""
        last, replicas = self.old.last_known_elr, list(self.old.replicas)
        known = {*replicas} & self.moved_to.keys() & self.case.image.brokers.keys()
        if len(last) == 1 and last[0] in known and not self.online(last[0], self.old_directory(last[0])):
            return ((replicas * 2)[replicas.index(last[0]) + 1],), True
        return last, False

    def election(self) -> tuple[int, bool]:
        """Returns the leader, and True if the leader may lack acknowledged records."""
        kind = self.case.wishes["election"]
        safe = self.isr or self.elr
        order = [self.old.leader, *self.replicas]
        if kind is Election.PREFERRED:
            order.insert(0, self.replicas[0])
        leaders = [each for each in order if each in safe and self.may_lead(each)]
        if leaders:
            return leaders[0], False
        last, _ = self.last_known()
        nobody = not self.isr and not self.elr
        if self.elr_on and nobody and len(last) == 1 and last[0] in self.replicas and self.may_lead(last[0]):
            return last[0], True
        alive = [each for each in self.replicas if self.may_lead(each)]
        if kind is Election.UNCLEAN and alive:
            return alive[0], True
        return -1, False

    def partition(self) -> PartitionImage:
        old = self.old
        staying = [each for each in self.replicas if each not in self.removing]
        if (self.adding or self.removing) and staying and set(staying) <= set(self.isr):
            self.isr = [each for each in self.isr if each not in self.removing]
            self.replicas, self.adding, self.removing = staying, [], []
        self.elr: list[int] = []
        factor = len(self.case.topic.partitions[0].replicas) if 0 in self.case.topic.partitions else 9
        if self.elr_on and len(self.isr) < min(self.case.min_isr, factor):
            had = dict.fromkeys([*old.elr, *old.isr])
            out = [each for each in had if each not in self.isr and each not in self.lossy]
            self.elr = [each for each in out if each in self.replicas]
        leader, unclean = self.election()
        recovery = old.leader_recovery_state
        if leader != old.leader and leader in self.elr:
            self.isr, self.elr = [leader], [each for each in self.elr if each != leader]
        elif leader != old.leader and unclean:
            self.isr, self.elr, recovery = [leader], [], 1
        isr = tuple(self.isr) if self.isr or self.elr_on else old.isr
        raises = leader != old.leader or not set(old.replicas) <= set(self.replicas)
        shrinks = not set(old.isr) <= set(isr)
        raises = raises or (shrinks and self.version < 12)
        if "recovery_state" in self.case.wishes and self.case.wishes["recovery_state"] != old.leader_recovery_state:
            recovery = self.case.wishes["recovery_state"]
        new = replace(
            old,
            replicas=tuple(self.replicas),
            isr=isr,
            leader=leader if raises else old.leader,
            leader_epoch=old.leader_epoch + raises,
            directories=self.directories(),
            elr=tuple(self.elr),
            last_known_elr=self.remembered(leader, raises, isr),
            adding_replicas=tuple(self.adding),
            removing_replicas=tuple(self.removing),
            leader_recovery_state=recovery,
        )
        is_changed = raises or new != old
        return replace(new, partition_epoch=old.partition_epoch + 1) if is_changed else old

    def remembered(self, leader: int, raises: bool, isr: tuple[int, ...]) -> tuple[int, ...]:
        old = self.old
        heir, has_heir = self.last_known()
        if not self.elr_on:
            return old.last_known_elr
        if leader < 0 <= old.leader and not old.last_known_elr:
            return (old.leader,)
        if raises and leader >= 0 and old.last_known_elr:
            return ()
        gets_elr = bool(self.elr) and tuple(self.elr) != old.elr
        if not isr and old.isr and not gets_elr and not old.last_known_elr:
            return old.isr[:1]
        return heir if has_heir and (leader < 0 or not raises) else old.last_known_elr

    def directories(self) -> tuple[bytes, ...]:
        old = self.old
        moved = bool(self.moved_to) or tuple(self.replicas) != old.replicas
        if not moved or self.version < 17:
            return old.directories
        new = []
        for each in self.replicas:
            if each in self.moved_to:
                new.append(self.moved_to[each])
            elif each in old.replicas:
                new.append(self.old_directory(each))
            else:
                disks = self.case.image.brokers[each].log_dirs
                new.append(disks[0] if len(disks) == 1 else UNASSIGNED_DIRECTORY)
        return old.directories if new == [self.old_directory(each) for each in old.replicas] else tuple(new)


@pytest.mark.parametrize("seed", range(4))
def test_every_change_of_a_partition_follows_the_model(seed: int) -> None:
    random = Random(seed)
    seen = set()
    for _ in range(2000):
        case = random_case(random)
        if any(each not in case.image.brokers for each in case.wishes.get("replicas", ())):
            continue
        found, expected = case.decided(), Model(case).partition()
        assert found == expected, case
        seen.add(
            (found.leader == case.partition.leader, found.leader < 0, found.leader_recovery_state, bool(found.elr))
        )
    assert len(seen) == 16 or seed


def test_brokers_that_leave_return_or_lose_records_change_each_partition_as_the_model_says() -> None:
    random = Random(9)
    for _ in range(300):
        cases = [random_case(random) for _ in range(3)]
        image = replace(
            cases[0].image,
            topics={name: TopicImage(name, ID, {INDEX: one.partition}) for name, one in zip("abc", cases)},
            configs={(2, name): {"unclean.leader.election.enable": random.choice(("true", "false"))} for name in "ac"},
        )
        names = random.choice(("leaving", "coming", "unclean_shutdown"))
        who = random.choice(BROKERS)
        rules = Rules(2, unclean_leader_election=random.random() < 0.5)
        asked = [(image.topics[name], INDEX) for name in image.topics]
        records = leader_and_isr_changes(image, rules, asked, **{names: who})
        made = iter(records)
        record = next(made, None)
        for name, one in zip("abc", cases):
            topic = image.topics[name]
            allowed = image.configs.get((2, name), {}).get("unclean.leader.election.enable")
            is_unclean = rules.unclean_leader_election if allowed is None else allowed == "true"
            out = {who} if names != "coming" else set()
            wishes = {
                "election": Election.UNCLEAN if is_unclean else Election.ONLINE,
                "isr": [each for each in one.partition.isr if each not in out],
                names: frozenset({who}),
            }
            single = replace(image, topics={"t": topic})
            expected = Model(Case(single, one.partition, wishes, 2)).partition()
            if expected != one.partition:
                assert record is not None
                assert changed_partition(one.partition, record) == expected
                record = next(made, None)
        assert record is None
