"""Sends random heartbeats to consumer, share and streams groups and checks after each that the group's fields agree.

A refused heartbeat changes nothing. At the end every partition has its member, and silent members are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from consumer_driver import topic_id
from group_driver import Waiting
from share_driver import ShareDriver
from streams_driver import StreamsDriver, stateful
from test_group_offsets import subscription
from test_group_records import check_indexes

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.config import GroupConfig
from penstock.groups.consumer.group import ConsumerGroup
from penstock.groups.reconciliation import MemberState, indexes_of
from penstock.groups.streams.group import Role
from penstock.protocol.errors import ErrorCode

pytestmark = pytest.mark.exhaustive

MEMBERS = ["a", "b", "c", "d"]
RETRY_MS = 1_000


def config(random: Random) -> GroupConfig:
    interval_ms = random.choice([0, 0, 2_000])
    return GroupConfig(
        initial_rebalance_delay_ms=0,
        consumer_assignment_interval_ms=interval_ms,
        share_assignment_interval_ms=interval_ms,
        streams_assignment_interval_ms=interval_ms,
        streams_initial_rebalance_delay_ms=random.choice([0, 1_000]),
        streams_standby_replicas=1,
        share_initialize_retry_ms=RETRY_MS,
        consumer_max_size=4,
    )


def some_topics(random: Random, before: Mapping[str, Any] | None = None) -> dict[str, int]:
    """Returns topics t, u and v with at most four partitions each, but not fewer than before.

    Sometimes one of the topics does not exist.
    """
    least = {name: len(topic.partitions) for name, topic in (before or {}).items()}
    least = {name: least.get(name, 4 if before else 1) for name in "tuv"}
    return {name: random.randint(least[name], 4) for name in "tuv" if random.random() < 0.9}


ALL_TOPICS = dict.fromkeys("tuv", 4)


def check_timers(driver: Any, group: Any, session_ms: int) -> None:
    for member_id, member in group.members.items():
        classic = getattr(member, "classic", None)
        if getattr(member, "epoch", 0) == -2:
            continue  # a static member that left for a while has no deadline yet, or its session's
        timeout_ms = classic.session_timeout_ms if classic is not None else session_ms
        assert driver.now_ms <= group.sessions[member_id].deadline_ms <= driver.now_ms + timeout_ms
        if hasattr(group, "revocations") and classic is None:
            timer = group.revocations.get(member_id)
            revokes = member.state is MemberState.UNREVOKED_PARTITIONS
            assert (timer is not None and timer.armed) == revokes
            assert not revokes or bool(member.pending_revocation)
    for name in ("sessions", "revocations", "rejoins", "syncs"):
        assert set(getattr(group, name, {})) <= set(group.members)
    assert set(group.target) <= set(group.members)


def check_loaded(driver: Any, kind: str) -> None:
    """Checks that another coordinator restores the same group, and starts its members' sessions."""
    other = driver.reload()
    group, loaded = driver.shard.groups["g"], other.shard.groups["g"]
    assert loaded.remembered() == group.remembered()
    assert loaded.assignment_ms == group.assignment_ms or kind == "consumer"
    check_indexes(kind, loaded)
    for member_id in loaded.members:
        assert loaded.sessions[member_id].armed
    for member_id, member in loaded.members.items():
        if getattr(member, "state", None) is MemberState.UNREVOKED_PARTITIONS:
            assert loaded.revocations[member_id].armed


# --- consumer groups


class ConsumerWalk:
    def __init__(self, seed: int, with_classic: bool) -> None:
        self.random = Random(seed)
        self.driver = StreamsDriver(config(self.random), some_topics(self.random))
        self.with_classic = with_classic
        self.joins: list[Waiting] = []

    @property
    def group(self) -> ConsumerGroup | None:
        found = self.driver.shard.groups.get("g")
        return found if isinstance(found, ConsumerGroup) else None

    def step(self) -> None:
        acts = [self.enter, self.enter, self.beat, self.beat, self.beat, self.leave, self.see, self.wait]
        if self.with_classic:
            acts += [self.join, self.join, self.rejoin, self.rejoin, self.classic_heartbeat, self.classic_leave]
        self.random.choice(acts)()

    def fields(self) -> dict[str, Any]:
        chosen = {
            "subscribed_topic_names": self.random.sample("tuv", self.random.randint(1, 3)),
            "server_assignor": self.random.choice(["range", "uniform"]),
            "rack_id": self.random.choice(["r", "s"]),
            "rebalance_timeout_ms": self.random.choice([1_000, 5_000]),
            "subscribed_topic_regex": self.random.choice(["t|u", "u|v", ""]),
        }
        return {name: value for name, value in chosen.items() if self.random.random() < 0.4}

    def send(self, member: str, epoch: int, **fields: Any) -> None:
        """Sends a heartbeat, and compares the response with the group."""
        before = deepcopy(self.driver.shard.remembered())
        response = self.driver.beat(member, epoch, **fields)
        if response.error_code:
            assert self.driver.shard.remembered() == before
            return
        if epoch < 0:
            return
        assert self.group is not None
        known = self.group.members[member]
        assert response.member_epoch == known.epoch
        assert response.heartbeat_interval_ms == self.driver.config.consumer_heartbeat_interval_ms
        if response.assignment is not None:
            listed = {each.topic_id: frozenset(each.partitions) for each in response.assignment.topic_partitions}
            assert listed == indexes_of(known.assigned)
        for name in ("rack_id", "server_assignor", "rebalance_timeout_ms"):
            if name in fields:
                assert getattr(known, name) == fields[name]
        if "subscribed_topic_names" in fields:
            assert known.topics == tuple(sorted(fields["subscribed_topic_names"]))
        if "subscribed_topic_regex" in fields:
            assert known.regex == (fields["subscribed_topic_regex"] or None)

    def enter(self) -> None:
        member = self.random.choice(MEMBERS)
        fields = {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 5_000, **self.fields()}
        instance = {"c": "i", "d": "j"}.get(member)
        self.send(member, 0, owned={}, instance_id=instance, **fields)

    def beat(self) -> None:
        group = self.group
        if group is None or not group.members:
            return
        member = self.random.choice(list(group.members.values()))
        owned = None
        if self.random.random() < 0.8:
            names = {topic_id(name): name for name in "tuv"}
            owned = {names[topic]: indexes for topic, indexes in indexes_of(member.assigned).items()}
        epoch = self.random.choice([member.epoch, member.epoch, member.epoch, member.previous_epoch, member.epoch + 1])
        instance = self.random.choice([member.instance_id, member.instance_id, None, "other"])
        self.send(member.member_id, max(epoch, 0), owned=owned, instance_id=instance, **self.fields())

    def leave(self) -> None:
        member = self.random.choice(MEMBERS)
        instance = {"c": "i", "d": "j"}.get(member)
        self.send(member, self.random.choice([-1, -2]), instance_id=instance)

    def see(self) -> None:
        self.driver.see(some_topics(self.random, self.driver.shard.image.topics))

    def wait(self) -> None:
        self.driver.advance(self.random.choice([1, 1_000, 3_000, 20_000]))

    # --- members with the classic protocol

    def metadata(self) -> tuple[tuple[str, bytes], ...]:
        return subscription(*self.random.sample("tuv", self.random.randint(1, 2)))

    def join(self) -> None:
        instance = self.random.choice([None, None, "k"])
        self.joins.append(self.driver.join(instance=instance, version=5 if instance else 3, protocols=self.metadata()))

    def rejoin(self) -> None:
        """Lets a member with the classic protocol join again and get its assignment."""
        group = self.group
        for member in list(group.members.values()) if group is not None else ():
            if member.classic is None:
                continue
            waiting = self.driver.join(
                member.member_id, instance=member.instance_id, version=5, protocols=member.classic.protocols
            )
            self.joins.append(waiting)
            if self.group is not None and waiting.answer is not None and waiting.error is ErrorCode.NONE:
                generation = waiting.joined.generation_id
                assert generation == self.group.members[member.member_id].epoch
                self.driver.sync(member.member_id, generation, instance=member.instance_id)

    def classic_heartbeat(self) -> None:
        group = self.group
        for member in list(group.members.values()) if group is not None else ():
            if member.classic is not None:
                self.driver.heartbeat(member.member_id, member.epoch, instance=member.instance_id)

    def classic_leave(self) -> None:
        ids = [each.joined.member_id for each in self.joins if each.answer is not None]
        if ids:
            self.driver.leave(self.random.choice(ids))

    def check(self) -> None:
        group = self.group
        if group is None:
            return
        check_indexes("consumer", group)
        check_timers(self.driver, group, self.driver.config.consumer_session_timeout_ms)
        check_loaded(self.driver, "consumer")
        if group.epoch == group.assignment_epoch:
            slots = [
                (topic, index)
                for partitions in group.target.values()
                for topic, indexes in partitions.items()
                for index in indexes
            ]
            assert len(slots) == len(set(slots)), "a partition is in the target of one member"


@pytest.mark.parametrize("with_classic", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_fields_of_a_consumer_group_agree_after_every_heartbeat(seed: int, with_classic: bool) -> None:
    walk = ConsumerWalk(seed, with_classic)
    for _ in range(40):
        walk.step()
        walk.check()
    group = walk.group
    if group is not None and not with_classic:
        walk.driver.see(ALL_TOPICS)
        settle(walk, group)
    walk.driver.advance(60 * 60_000)
    for found in walk.driver.shard.groups.values():
        assert not found.members
        assert not isinstance(found, ClassicGroup) or found.state == "Empty"
    assert all(each.answer is not None for each in walk.joins)


def settle(walk: ConsumerWalk, group: ConsumerGroup) -> None:
    """Sends heartbeats until the group is stable, and checks that each partition has one subscriber."""
    names = {topic_id(name): name for name in "tuv"}
    for _ in range(12):
        walk.driver.advance(2_000)
        for member in list(group.members.values()):
            owned = {names[topic]: indexes for topic, indexes in indexes_of(member.assigned).items()}
            epoch = max(member.epoch, 0)  # a static member that left for a while comes back
            fields: dict[str, Any] = {}
            if not epoch:
                owned, fields = {}, {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 5_000}
            walk.send(member.member_id, epoch, owned=owned, instance_id=member.instance_id, **fields)
        walk.check()
    read = {topic_id(name) for name in "tuv" if group.is_subscribed(name)}
    slots = {(topic, index) for topic in read for index in range(4)}
    assert group.owners.keys() == (slots if group.members else set())
    assert group.state == ("Stable" if group.members else "Empty")


# --- share groups


@pytest.mark.parametrize("seed", range(25))
def test_fields_of_a_share_group_agree_after_every_heartbeat(seed: int) -> None:
    random = Random(seed)
    driver = ShareDriver(config(random), some_topics(random))
    driver.come("a")

    def send(member: str, epoch: int, **fields: Any) -> None:
        before = deepcopy(driver.shard.remembered())
        response = driver.share_beat(member, epoch, **fields)
        if response.error_code:
            assert driver.shard.remembered() == before
        elif epoch >= 0:
            known = driver.group.members[member]
            assert response.member_epoch == known.epoch == driver.group.assignment_epoch
            assert known.assigned == driver.group.target.get(member, {})
            assert (known.client_id, known.client_host) == ("client", "/127.0.0.1")
            if "subscribed_topic_names" in fields:
                assert known.topics == tuple(sorted(fields["subscribed_topic_names"]))
                assert response.assignment is not None
            if response.assignment is not None:
                listed = {each.topic_id: frozenset(each.partitions) for each in response.assignment.topic_partitions}
                exists = driver.shard.image.topics_by_id
                assert listed == {topic: some for topic, some in known.assigned.items() if topic in exists and some}

    for _ in range(40):
        member = random.choice(MEMBERS)
        known = driver.group.members.get(member)
        match random.randint(0, 6):
            case 0 | 1:
                send(member, 0, subscribed_topic_names=random.sample("tuv", random.randint(1, 3)))
            case 2 | 3:
                if known is not None:
                    send(member, random.choice([known.epoch, known.epoch, known.previous_epoch, known.epoch + 1]))
            case 4:
                send(member, random.choice([-1, 3]))
            case 5:
                driver.see(some_topics(random, driver.shard.image.topics))
                driver.advance(random.choice([1, 1_000, 20_000]))
            case _:
                driver.create_states()
        group = driver.group
        check_indexes("share", group)
        check_timers(driver, group, driver.config.share_session_timeout_ms)
        check_loaded(driver, "share")
        states = group.states
        assert set(states.names) == set(states.initializing) | set(states.initialized) | set(states.deleting)
    settle_share(driver)
    driver.advance(60 * 60_000)
    assert not driver.group.members


def settle_share(driver: ShareDriver) -> None:
    """Sends heartbeats until all states exist, and checks that each partition has at least one subscriber."""
    driver.see(ALL_TOPICS)
    for _ in range(6):
        driver.advance(2_000)
        for member in list(driver.group.members.values()):
            driver.share_beat(member.member_id, member.epoch)
        driver.create_states()
    group = driver.group
    if group.members:
        read = {topic_id(name) for name in "tuv" if group.is_subscribed(name)}
        wanted = {(topic, index) for topic in read for index in range(4)}
        held = {
            (topic, index) for each in group.members.values() for topic, some in each.assigned.items() for index in some
        }
        assert held == wanted


# --- streams groups


@pytest.mark.parametrize("seed", range(25))
def test_fields_of_a_streams_group_agree_after_every_heartbeat(seed: int) -> None:
    random = Random(seed)
    driver = StreamsDriver(config(random), {"t": 4, "g-changelog": 4})
    driver.come("a", stateful(), process_id="p")
    for _ in range(40):
        member = random.choice(MEMBERS)
        known = driver.group.members.get(member)
        before = deepcopy(driver.shard.remembered())
        response = None
        match random.randint(0, 6):
            case 0 | 1:
                response = driver.come(member, stateful(), process_id="p" if member in "ab" else member)
            case 2 | 3 | 4:
                if known is not None:
                    response = driver.stay(member) if random.random() < 0.7 else driver.stream_beat(member, known.epoch)
            case 5:
                driver.stream_beat(member, random.choice([-1, 3]))
            case _:
                driver.advance(random.choice([1, 1_000, 4_000, 20_000]))
        if response is not None:
            if response.error_code:
                assert driver.shard.remembered() == before
            else:
                assert response.member_epoch == driver.group.members[member].epoch
        check_indexes("streams", driver.group)
        check_timers(driver, driver.group, driver.config.streams_session_timeout_ms)
        check_loaded(driver, "streams")
        check_processes(driver)
    for _ in range(6):
        driver.advance(2_000)
        driver.settle(2)
        check_processes(driver)
    group = driver.group
    active = {index for key, index in group.holders if key.role is Role.ACTIVE}
    standby = {index for key, index in group.holders if key.role is Role.STANDBY}
    processes = {each.process_id for each in group.members.values()}
    assert active == (set(range(4)) if group.members else set())
    assert standby == (set(range(4)) if len(processes) > 1 else set())
    assert group.state == ("Stable" if group.members else "Empty")
    driver.advance(60 * 60_000)
    assert not driver.group.members


def check_processes(driver: StreamsDriver) -> None:
    """Checks that one member holds an active task, and that no process holds a task twice."""
    for (key, index), holders in driver.group.holders.items():
        assert key.role is not Role.ACTIVE or len(holders) == 1, (key, index)
    held: set[tuple[str, str, int]] = set()
    for member in driver.group.members.values():
        for key, index in member.tasks():
            assert (member.process_id, key.subtopology, index) not in held
            held.add((member.process_id, key.subtopology, index))
