"""Compares the epochs, the hash and the assignments of a share group with plain rules, after random heartbeats."""

from __future__ import annotations

from random import Random

import pytest
from group_driver import WALL_START_MS
from share_driver import ShareDriver
from test_group_walks import MEMBERS, some_topics

from penstock.groups.config import GroupConfig
from penstock.groups.consumer.subscribe import metadata_hash

INTERVAL_MS = 2_000


def read_topics(driver: ShareDriver) -> set[str]:
    return {name for member in driver.group.members.values() for name in member.topics}


def is_unassigned(driver: ShareDriver) -> bool:
    """Returns True if a partition that a member reads has a state, but is in no target assignment."""
    topics = driver.shard.image.topics
    read = {topics[name].topic_id for name in read_topics(driver) if name in topics}
    ready = {
        (topic, index)
        for topic, indexes in driver.group.states.initialized.items()
        for index in indexes
        if topic in read
    }
    targets = driver.group.target.values()
    given = {(topic, index) for target in targets for topic, indexes in target.items() for index in indexes}
    return bool(ready - given)


def send(driver: ShareDriver, member_id: str, topics: list[str] | None) -> tuple[bool, ...]:
    """Sends a heartbeat, and compares the group with the rules. Returns for each rule whether it applied."""
    group = driver.group
    before = group.members.get(member_id)
    states, written = group.states, len(driver.journal)
    epoch, assigned, digest = group.epoch, group.assignment_epoch, group.metadata_hash
    has_free = epoch <= assigned and is_unassigned(driver)
    wall_ms = WALL_START_MS + driver.now_ms
    waited = wall_ms - group.assignment_ms >= driver.config.share_assignment_interval_ms
    may_assign = waited or not any(group.target.values())

    driver.share_beat(member_id, 0 if before is None else before.epoch, subscribed_topic_names=topics)
    member = group.members[member_id]
    is_changed = before is None or member.topics != before.topics
    hashed = metadata_hash(driver.shard.image, read_topics(driver))
    is_new = is_changed or hashed != digest or has_free
    assert group.epoch == epoch + is_new
    assert group.metadata_hash == hashed
    assigns = may_assign and group.epoch > assigned
    assert group.assignment_epoch == (group.epoch if assigns else assigned)
    assert (group.assignment_ms == wall_ms) >= assigns
    assert member.epoch == group.assignment_epoch
    if before is not None and member.epoch != before.epoch:
        assert member.previous_epoch == before.epoch
    if member == before and not is_new and not assigns and group.states == states:
        assert len(driver.journal) == written, "a heartbeat that changes nothing writes no record"
    return is_changed, hashed != digest, has_free, is_new, assigns, member == before, group.epoch > assigned


def leave(driver: ShareDriver, member_id: str) -> None:
    epoch = driver.group.epoch
    driver.share_beat(member_id, -1)
    assert driver.group.epoch == epoch + 1
    assert driver.group.metadata_hash == metadata_hash(driver.shard.image, read_topics(driver))


def test_share_group_gets_a_new_epoch_and_assignment_exactly_by_the_rules() -> None:
    seen: set[tuple[int, bool]] = set()
    for seed in range(8):
        random = Random(seed)
        interval_ms = random.choice([0, INTERVAL_MS])
        config = GroupConfig(share_assignment_interval_ms=interval_ms, share_initialize_retry_ms=1_000)
        driver = ShareDriver(config, some_topics(random))
        driver.come("a")
        for _ in range(40):
            member = random.choice(MEMBERS)
            known = member in driver.group.members
            match random.randint(0, 6):
                case 0 | 1:
                    seen.update(enumerate(send(driver, member, random.sample("tuv", random.randint(1, 3)))))
                case 2 | 3 if known:
                    seen.update(enumerate(send(driver, member, None)))
                case 4 if known:
                    leave(driver, member)
                case 5:
                    driver.see(some_topics(random, driver.shard.image.topics))
                    driver.advance(random.choice([1, 1_000]))
                case 6:
                    driver.create_states()
    assert seen == {(rule, applied) for rule in range(7) for applied in (False, True)}, "each rule was tried"


def test_member_that_leaves_a_share_group_gives_it_a_new_epoch_even_if_all_partitions_have_other_members() -> None:
    driver = ShareDriver(topics={"t": 1})
    driver.come("a")
    driver.create_states()
    for member in ("a", "b", "c"):
        send(driver, member, ["t"])
    leave(driver, "b")
    driver.advance(driver.config.share_session_timeout_ms - 1)
    driver.share_beat("a", driver.group.members["a"].epoch)
    epoch = driver.group.epoch
    driver.advance(1)
    assert list(driver.group.members) == ["a"]
    assert driver.group.epoch == epoch + 1


@pytest.mark.parametrize("names", [["t"], ["t", "u"], ["t", "u", "v"]])
def test_share_group_that_waits_for_its_next_assignment_keeps_its_next_epoch(names: list[str]) -> None:
    driver = ShareDriver(GroupConfig(share_assignment_interval_ms=INTERVAL_MS), dict.fromkeys("tuv", 2))
    driver.come("a", *names)
    driver.create_states()
    send(driver, "a", None)
    epoch = driver.group.epoch
    assert driver.group.assignment_epoch == epoch
    driver.see({"t": 3, "u": 2, "v": 2})
    for _ in range(3):
        send(driver, "a", None)
        driver.create_states()  # the new partition has a state, and still waits for its assignment
        assert (driver.group.epoch, driver.group.assignment_epoch) == (epoch + 1, epoch)
    driver.advance(INTERVAL_MS)
    send(driver, "a", None)
    assert (driver.group.epoch, driver.group.assignment_epoch) == (epoch + 1, epoch + 1)
