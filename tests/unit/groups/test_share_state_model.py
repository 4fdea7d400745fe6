"""Compares the lists of a share group's states with plain sets, after random heartbeats, deletions and changes of
offsets, with a reload after each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from consumer_driver import topic_id
from share_driver import ShareDriver

from penstock.groups import share_requests
from penstock.groups.config import GroupConfig
from penstock.groups.share.group import StatePartitions
from penstock.groups.share.states import InitializeStates
from penstock.protocol.errors import ErrorCode, KafkaError

Slot = tuple[bytes, int]
TOPICS = "tuv"
MEMBERS = "ab"
RETRY_MS = 1_000
CONFIG = GroupConfig(share_assignment_interval_ms=0, share_initialize_retry_ms=RETRY_MS)


def listed(slots: set[Slot]) -> dict[bytes, frozenset[int]]:
    return {topic: frozenset(index for each, index in slots if each == topic) for topic, _ in slots}


@dataclass
class Model:
    topics: dict[str, int]
    initializing: set[Slot] = field(default_factory=set)
    initialized: set[Slot] = field(default_factory=set)
    deleting: set[bytes] = field(default_factory=set)
    asked_ms: int | None = None

    def expected(self) -> StatePartitions:
        used = {topic for topic, _ in self.initializing | self.initialized} | self.deleting
        names = {topic_id(name): name for name in TOPICS if topic_id(name) in used}
        return StatePartitions(listed(self.initializing), listed(self.initialized), frozenset(self.deleting), names)

    def beat(self, read: set[str], now_ms: int) -> tuple[Slot, ...]:
        """Returns the partitions whose states are requested."""
        present = {(topic_id(name), index) for name in read for index in range(self.topics.get(name, 0))}
        known = {slot for slot in self.initializing | self.initialized if slot[0] not in self.deleting}
        missing = present - known
        again = self.asked_ms is None or now_ms - self.asked_ms >= RETRY_MS
        wanted = missing | self.initializing if again else missing
        restarted = self.deleting & {topic for topic, _ in missing}
        self.initializing = self.initializing | missing
        self.initialized = {slot for slot in self.initialized if slot[0] not in restarted}
        self.deleting -= restarted
        if wanted:
            self.asked_ms = now_ms
        return tuple(sorted(wanted))

    def forget(self, gone: set[bytes]) -> None:
        self.initializing = {slot for slot in self.initializing if slot[0] not in gone}
        self.initialized = {slot for slot in self.initialized if slot[0] not in gone}
        self.deleting -= gone


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.driver = ShareDriver(CONFIG, {"t": 2, "u": 2})
        self.model = Model({"t": 2, "u": 2})
        self.pending: list[Slot] = []

    def step(self) -> None:
        random, driver = self.random, self.driver
        has_group = "g" in driver.shard.groups
        members = driver.group.members if has_group else {}
        match random.randrange(9):
            case 0 | 1:
                self.beat(random.choice(MEMBERS), random.sample(TOPICS, random.randint(1, 3)))
            case 2 if members:
                self.beat(random.choice(sorted(members)), None)
            case 3 if members:
                driver.share_beat(random.choice(sorted(members)), -1)
            case 4 if has_group:
                done = random.sample(self.pending, random.randint(0, len(self.pending)))
                driver.run(lambda turn: share_requests.states_initialized(driver.shard, turn, "g", done))
                self.model.initializing -= set(done)
                self.model.initialized |= set(done)
            case 5:
                self.change(random.choice(("alter", "delete")), bool(members), has_group)
            case 6:
                self.see({name: random.randint(1, 3) for name in TOPICS if random.random() < 0.8})
            case 7:
                driver.advance(random.choice((1, RETRY_MS - 1, RETRY_MS)))
            case 8:
                self.driver = driver.reload()
                self.driver.journal = list(driver.journal)
                self.model.asked_ms = None

    def beat(self, member: str, topics: list[str] | None) -> None:
        driver = self.driver
        group = driver.shard.groups.get("g")
        known = driver.group.members.get(member) if group is not None else None
        before, effects = dict(driver.group.members) if group is not None else {}, len(driver.asked)
        driver.share_beat(member, 0 if known is None else known.epoch, subscribed_topic_names=topics)
        read = {name for each, one in before.items() if each != member for name in one.topics}
        read |= set(topics if topics is not None else before[member].topics)
        slots = self.model.beat(read, driver.now_ms)
        expected = [InitializeStates("g", driver.group.epoch, slots)] if slots else []
        assert driver.asked[effects:] == expected
        self.pending += slots

    def change(self, kind: str, has_members: bool, has_group: bool) -> None:
        """Alters or deletes offsets of some topics. This is refused while the group has members."""
        random, driver, model = self.random, self.driver, self.model
        names = random.sample(sorted(model.topics), random.randint(0, len(model.topics)))
        slots = {topic_id(name): frozenset(random.sample(range(4), random.randint(1, 2))) for name in names}
        epoch, digest = (driver.group.epoch, driver.group.metadata_hash) if has_group else (0, 0)
        if has_members or not (has_group or kind == "alter"):
            begin = share_requests.begin_alter if kind == "alter" else share_requests.begin_delete
            with pytest.raises(KafkaError) as refused:
                begin(driver.shard, driver.shard.turn(driver.now_ms, 0), "g", slots)
            expected = ErrorCode.NON_EMPTY_GROUP if has_members else ErrorCode.GROUP_ID_NOT_FOUND
            assert refused.value.code is expected
        elif kind == "alter":
            altered = driver.run(lambda turn: share_requests.begin_alter(driver.shard, turn, "g", slots))
            model.initializing |= {(topic, index) for topic, indexes in slots.items() for index in indexes}
            assert altered == driver.group.epoch == epoch + 1
            assert driver.group.metadata_hash == digest
        else:
            found = driver.run(lambda turn: share_requests.begin_delete(driver.shard, turn, "g", slots))
            held = model.initializing | model.initialized
            assert found == sorted(slot for slot in held if slot[0] in slots)
            model.deleting |= {topic for topic, _ in found}
            assert driver.group.epoch == epoch
            self.check()
            if random.random() < 0.5:
                written = len(driver.journal)
                driver.run(lambda turn: share_requests.finish_delete(driver.shard, turn, "g", slots))
                model.forget(set(slots))
                assert len(driver.journal) == written + bool(found)

    def see(self, topics: dict[str, int]) -> None:
        kept = {name: max(count, self.model.topics.get(name, 0)) for name, count in topics.items()}
        gone = {topic_id(name) for name in self.model.topics.keys() - kept.keys()}
        self.model.topics = kept
        self.driver.see(kept)
        self.driver.advance(0)
        self.model.forget(gone)
        self.pending = [slot for slot in self.pending if slot[0] not in gone]

    def check(self) -> None:
        driver = self.driver
        if "g" not in driver.shard.groups:
            assert share_requests.initialized_partitions(driver.shard, "g") == {}
            return
        expected = self.model.expected()
        for each in (driver, driver.reload()):
            assert each.group.states == expected
        assert list(driver.group.state_keys()) == sorted(self.model.initializing | self.model.initialized)
        assert share_requests.initialized_partitions(driver.shard, "g") == {
            topic: sorted(indexes) for topic, indexes in sorted(expected.initialized.items())
        }


@pytest.mark.parametrize("seed", range(12))
def test_states_of_a_share_group_are_listed_and_requested_like_plain_sets(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(60):
        walk.step()
        walk.check()
