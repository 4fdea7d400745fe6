"""Tests that a group changes its protocol without stopping its members."""

from dataclasses import replace
from typing import Any

import pytest
from consumer_driver import SESSION_MS, ConsumerDriver, error, shares, topic_id
from group_driver import REBALANCE_MS, Waiting
from group_driver import SESSION_MS as CLASSIC_SESSION_MS

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.config import GroupConfig
from penstock.groups.consumer.embedded import read_subscription
from penstock.protocol.codec import decode, encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)

CONFIG = GroupConfig(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0)


def metadata(*owned: int) -> tuple[tuple[str, bytes], ...]:
    subscription = ConsumerProtocolSubscription(
        topics=["t"], owned_partitions=[TopicPartition(topic="t", partitions=list(owned))] if owned else []
    )
    return (("cooperative-sticky", b"\x00\x01" + encode(subscription, 1)),)


def written(*partitions: int) -> bytes:
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartition(topic="t", partitions=list(partitions))] if partitions else []
    )
    return b"\x00\x01" + encode(assignment, 1)


def read(waiting: Waiting) -> list[int]:
    assignment = decode(ConsumerProtocolAssignment, 1, waiting.synced.assignment, 2)
    return [index for each in assignment.assigned_partitions for index in each.partitions]


def classic_pair(driver: ConsumerDriver) -> tuple[str, str]:
    """Returns the members of a stable classic group in generation 2: the first has partitions 0 and 1, the second 2 and
    3."""
    first = driver.join(protocols=metadata()).joined.member_id
    second = driver.join(protocols=metadata())
    driver.join(first, protocols=metadata())
    other = second.joined.member_id
    driver.sync(first, 2, {first: written(0, 1), other: written(2, 3)})
    driver.sync(other, 2)
    return first, other


def rejoin(driver: ConsumerDriver, member_id: str, *owned: int, **options: Any) -> tuple[int, list[int]]:
    """Sends JoinGroup with the owned partitions, then SyncGroup. Returns the generation and the assigned partitions."""
    generation = driver.join(member_id, protocols=metadata(*owned), **options).joined.generation_id
    return generation, read(driver.sync(member_id, generation))


def test_join_of_a_consumer_protocol_member_upgrades_the_group_and_keeps_its_classic_members() -> None:
    driver = ConsumerDriver(CONFIG)
    first, second = classic_pair(driver)
    new = driver.enter("new")
    assert (error(new), shares(new)) == (ErrorCode.NONE, {})
    assert [(each.member_id, each.member_type) for each in driver.describe().members] == [
        (first, 0),
        (second, 0),
        ("new", 1),
    ]
    # The target takes a partition from one member: its heartbeat makes it rejoin, revoke the partition, and rejoin
    # again.
    assert driver.heartbeat(first, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(second, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    generations = {}
    held = {}
    for member, owned in ((first, (0, 1)), (second, (2, 3))):
        generations[member], held[member] = rejoin(driver, member, *owned)
        if driver.heartbeat(member, generations[member]) is ErrorCode.REBALANCE_IN_PROGRESS:
            generations[member], held[member] = rejoin(driver, member, *held[member])
    got = shares(driver.beat("new", new.member_epoch))
    assert got is not None
    assert sorted([*held[first], *held[second], *got["t"]]) == [0, 1, 2, 3]
    assert driver.describe().group_state == "Stable"
    assert driver.heartbeat(first, generations[first]) is ErrorCode.NONE
    assert driver.commit({("t", 0): 1}, member_id=first, generation=generations[first]) == [ErrorCode.NONE]
    assert driver.commit({("t", 0): 1}, member_id=first, generation=1) == [ErrorCode.ILLEGAL_GENERATION]
    assert driver.reload().shard.remembered() == driver.shard.remembered()


def test_parked_joins_of_a_classic_group_get_rebalance_in_progress_when_it_is_upgraded() -> None:
    driver = ConsumerDriver(CONFIG)
    first, _ = classic_pair(driver)
    waiting = driver.join(first, protocols=metadata(0, 1))
    assert waiting.answer is None
    driver.enter("new")
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert rejoin(driver, first, 0, 1)[1] != []


def test_upgrade_whose_records_are_refused_leaves_the_classic_group_unchanged() -> None:
    driver = ConsumerDriver(CONFIG)
    first, second = classic_pair(driver)
    group = driver.shard.groups["g"]
    waiting = driver.join(first, protocols=metadata(0, 1))
    driver.refuse_records = True
    driver.enter("new")
    driver.refuse_records = False
    assert driver.shard.groups["g"] is group
    assert waiting.answer is None, "the parked join waits for the other member, as before"
    assert driver.join(second, protocols=metadata(2, 3)).joined.generation_id == waiting.joined.generation_id == 3
    driver.advance(CLASSIC_SESSION_MS + REBALANCE_MS)
    assert driver.state() == "Empty", "the session timeouts of the members are armed again"


def test_downgrade_whose_records_are_refused_leaves_the_consumer_group_unchanged() -> None:
    driver = ConsumerDriver(CONFIG)
    classic_pair(driver)
    epoch = driver.enter("new").member_epoch
    group = driver.consumers
    driver.refuse_records = True
    driver.beat("new", -1)
    driver.refuse_records = False
    assert driver.shard.groups["g"] is group
    assert error(driver.beat("new", epoch)) is ErrorCode.NONE
    driver.advance(CLASSIC_SESSION_MS + SESSION_MS)
    assert group.state == "Empty", "the session timeouts of the members are armed again"


def test_the_group_is_downgraded_when_the_last_consumer_protocol_member_leaves() -> None:
    driver = ConsumerDriver(CONFIG)
    first, second = classic_pair(driver)
    driver.enter("new")
    driver.beat("new", -1)
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert group.state == "PreparingRebalance"
    waiting = driver.join(first, protocols=metadata(0, 1))
    assert driver.join(second, protocols=metadata(2, 3)).error is ErrorCode.NONE
    assert waiting.joined.leader in (first, second)
    assert waiting.joined.generation_id > 2
    assert driver.reload().shard.remembered() == driver.shard.remembered()


def test_the_group_is_downgraded_when_the_last_consumer_protocol_member_times_out() -> None:
    driver = ConsumerDriver(CONFIG)
    first, _ = classic_pair(driver)
    driver.enter("new")
    generation = rejoin(driver, first, 0, 1)[0]
    for _ in range(SESSION_MS // 5000):
        driver.advance(5000)
        if isinstance(driver.shard.groups["g"], ClassicGroup):
            break
        if driver.heartbeat(first, generation) is ErrorCode.REBALANCE_IN_PROGRESS:
            generation = rejoin(driver, first, 0, 1)[0]
    assert isinstance(driver.shard.groups["g"], ClassicGroup)


def test_a_classic_member_joins_a_consumer_group() -> None:
    driver = ConsumerDriver(CONFIG)
    new = driver.enter("new")
    handed = driver.join(protocols=metadata(), version=4)
    assert handed.error is ErrorCode.MEMBER_ID_REQUIRED
    member_id = handed.joined.member_id
    generation, held = rejoin(driver, member_id, version=4)
    assert held == []
    driver.beat("new", new.member_epoch)
    driver.beat("new", new.member_epoch, owned={"t": [0, 1]})
    assert driver.heartbeat(member_id, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert rejoin(driver, member_id)[1] == [2, 3]


def test_classic_requests_to_a_consumer_group_with_a_wrong_generation_or_protocol_are_refused() -> None:
    driver = ConsumerDriver(CONFIG)
    first, _ = classic_pair(driver)
    driver.enter("new")
    assert driver.join(protocols=(("range", b""),)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.join(protocols=metadata(), protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.heartbeat("new", 3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(first, 9) is ErrorCode.ILLEGAL_GENERATION
    assert driver.sync("ghost", 2).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.sync(first, 9).error is ErrorCode.ILLEGAL_GENERATION
    assert driver.sync(first, 2).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.sync(first, 2, protocol_name="range").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert [each.error_code for each in driver.leave("new", "ghost").members] == [ErrorCode.UNKNOWN_MEMBER_ID] * 2


def test_a_classic_member_leaves_a_consumer_group() -> None:
    driver = ConsumerDriver(CONFIG)
    first, second = classic_pair(driver)
    new = driver.enter("new")
    driver.leave(first)
    driver.leave(second)
    assert shares(driver.beat("new", new.member_epoch)) == {"t": [0, 1, 2, 3]}


def test_classic_member_of_a_consumer_group_is_removed_if_it_does_not_rejoin_and_sync_in_time() -> None:
    driver = ConsumerDriver(CONFIG)
    first, second = classic_pair(driver)
    new = driver.enter("new")
    assert driver.heartbeat(first, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    joined = driver.join(second, protocols=metadata(2, 3)).joined
    epoch = new.member_epoch
    for _ in range(REBALANCE_MS // 5000):
        driver.advance(5000)
        epoch = driver.beat("new", epoch).member_epoch
        driver.heartbeat(first, 2)
        driver.heartbeat(second, joined.generation_id)
    assert list(driver.consumers.members) == ["new"]


def test_classic_member_of_a_consumer_group_is_removed_after_its_own_session_timeout() -> None:
    driver = ConsumerDriver(CONFIG)
    first, second = classic_pair(driver)
    driver.enter("new")
    driver.advance(CLASSIC_SESSION_MS - 1)
    driver.heartbeat(second, 2)
    driver.advance(1)
    assert first not in driver.consumers.members
    assert second in driver.consumers.members


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_migration_policy_can_forbid_the_upgrade_to_the_consumer_protocol(policy: str) -> None:
    driver = ConsumerDriver(replace(CONFIG, consumer_migration_policy=policy))
    classic_pair(driver)
    assert error(driver.enter("new")) is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("policy", ["upgrade"])
def test_migration_policy_can_forbid_the_downgrade_to_the_classic_protocol(policy: str) -> None:
    driver = ConsumerDriver(replace(CONFIG, consumer_migration_policy=policy))
    classic_pair(driver)
    driver.enter("new")
    driver.beat("new", -1)
    assert not isinstance(driver.shard.groups["g"], ClassicGroup)


def test_classic_group_of_another_protocol_type_than_consumer_is_not_upgraded() -> None:
    driver = ConsumerDriver(CONFIG)
    driver.stable(protocol_type="connect")
    assert error(driver.enter("new")) is ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.state() == "Stable"


def test_a_static_member_that_restarts_with_the_classic_protocol_keeps_its_membership() -> None:
    driver = ConsumerDriver(CONFIG)
    driver.enter("new", instance_id="i")
    driver.enter("other")
    joined = driver.join(instance="i", protocols=metadata(), version=5).joined
    assert joined.error_code == ErrorCode.NONE
    assert "new" not in driver.consumers.members
    assert driver.consumers.owners[topic_id("t"), 0] == joined.member_id


def test_upgrade_keeps_the_assignment_as_the_target_of_each_member() -> None:
    driver = ConsumerDriver(CONFIG)
    first, second = classic_pair(driver)
    driver.enter("new", "other")  # subscribes to another topic, so no partition has to move
    assert driver.consumers.target[first] == {topic_id("t"): frozenset({0, 1})}
    assert driver.consumers.target[second] == {topic_id("t"): frozenset({2, 3})}


def test_classic_member_rejoins_a_full_group() -> None:
    driver = ConsumerDriver(replace(CONFIG, consumer_max_size=3))
    first, _ = classic_pair(driver)
    driver.enter("new")
    assert driver.join(protocols=metadata()).joined.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.join(first, protocols=metadata(0, 1)).joined.error_code == ErrorCode.NONE


def test_subscription_with_a_negative_version_is_read_as_version_0() -> None:
    written = encode(ConsumerProtocolSubscription(topics=["t"]), 0)
    assert read_subscription(b"\xff\xff" + written).topics == ["t"]
