"""Tests that a coordinator at its memory limit refuses new groups, members and offsets, but serves existing groups."""

from __future__ import annotations

from random import Random
from sys import getsizeof

from consumer_driver import ConsumerDriver
from group_driver import Driver

from penstock.allowance import FULL_RECOUNT_MS, Allowance
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.config import GroupConfig
from penstock.groups.shard import GroupShard
from penstock.protocol.errors import ErrorCode

CONFIG = GroupConfig(initial_rebalance_delay_ms=0, consumer_assignment_interval_ms=0)


def bound(driver: Driver, limit: int) -> Allowance:
    allowance = driver.shard.allowance = Allowance(limit)
    allowance.counted_by(driver.shard.held_bytes)
    return allowance


def test_new_groups_are_refused_at_the_memory_limit_but_known_members_can_rejoin() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    allowance = bound(driver, 10_000)
    joined = []
    for number in range(10):
        waiting = driver.join(group=f"g{number}")
        if waiting.error is ErrorCode.POLICY_VIOLATION:
            break
        joined.append(waiting.joined.member_id)
    assert 2 <= len(joined) < 10
    assert f"g{len(joined)}" not in driver.shard.groups
    assert driver.shard.held_bytes() <= allowance.limit
    again = driver.join(joined[0], group="g0")
    assert again.error is ErrorCode.NONE
    driver.leave(joined[0], group="g0")
    driver.leave(joined[1], group="g1")
    driver.now_ms += FULL_RECOUNT_MS
    assert driver.join(group="g0").error is ErrorCode.NONE


def test_pending_member_ids_count_towards_the_memory_limit() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    allowance = bound(driver, 10_000)
    codes = []
    for _ in range(20):
        codes.append(driver.join(version=9).error)
        driver.now_ms += FULL_RECOUNT_MS // 10
    assert codes[0] is ErrorCode.MEMBER_ID_REQUIRED
    assert codes[-1] is ErrorCode.POLICY_VIOLATION
    assert driver.shard.held_bytes() <= allowance.limit


def test_metadata_of_members_counts_towards_the_memory_limit() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    bound(driver, 1_000_000)
    assert driver.join(group="a", protocols=(("range", bytes(600_000)),)).error is ErrorCode.NONE
    assert driver.join(group="b", protocols=(("range", bytes(600_000)),)).error is ErrorCode.POLICY_VIOLATION
    assert driver.join(group="c").error is ErrorCode.NONE
    group = driver.shard.groups["a"]
    (member,) = group.members
    driver.leave(member, group="a")
    assert driver.shard.held_bytes() < 10_000


def test_new_consumer_protocol_members_are_refused_with_a_message_at_the_memory_limit() -> None:
    driver = ConsumerDriver()
    bound(driver, 7_000)
    answers = [driver.enter(f"m{number}") for number in range(10)]
    codes = [answer.error_code for answer in answers]
    assert codes[0] == ErrorCode.NONE
    assert codes[-1] == ErrorCode.POLICY_VIOLATION
    assert "penstock.coordinator.max.bytes" in str(answers[-1].error_message)
    assert len(driver.shard.groups["g"].members) == codes.count(ErrorCode.NONE)
    again = driver.enter("m0")
    assert again.error_code == ErrorCode.NONE


def test_offsets_of_new_partitions_are_refused_at_the_memory_limit_but_known_offsets_are_updated() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    bound(driver, 10_000)
    assert driver.commit({("t", 0): 5}, metadata="m" * 4000) == [ErrorCode.NONE]
    assert driver.commit({("t", 0): 6}, metadata="m" * 4000, group="h") == [ErrorCode.POLICY_VIOLATION]
    assert "h" not in driver.shard.groups
    assert driver.commit({("t", 0): 7}, metadata="m" * 4000) == [ErrorCode.NONE]
    assert driver.shard.held_bytes() < 6_000


def test_counted_memory_of_offsets_is_exact_after_every_change() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    offsets = driver.shard.offsets
    driver.commit({("t", 0): 5}, metadata="m" * 100)
    driver.commit({("t", 1): 5})
    both = offsets.bytes
    driver.commit({("t", 0): 6})
    assert offsets.bytes == both - 100
    again = driver.reload().shard.offsets
    again.of_group("g")
    assert again.bytes == offsets.bytes
    driver.run(lambda turn: offsets.erase_group(turn, "g"))
    assert offsets.bytes == 0


# --- all stored data of clients counts


def recounted(driver: Driver, group: str = "g") -> bool:
    """Returns True if the counted memory of the members equals the sum of their sizes."""
    found = driver.shard.groups[group]
    counted = found.members_bytes if isinstance(found, ClassicGroup) else found.members.bytes
    return counted == sum(member.held_bytes for member in found.members.values())


def test_protocol_names_of_members_count_towards_the_memory_limit() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    allowance = bound(driver, 1_000_000)
    names = tuple((f"{number}" + "x" * 30_000, b"") for number in range(10))
    codes = [driver.join(group=f"g{number}", protocols=names).error for number in range(5)]
    assert codes == [ErrorCode.NONE] * 3 + [ErrorCode.POLICY_VIOLATION] * 2
    assert 900_000 < driver.shard.held_bytes() <= allowance.limit
    assert recounted(driver, "g0")


def test_empty_protocol_of_a_member_counts_with_the_size_of_its_python_objects() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    driver.join(protocols=tuple((f"{number}", b"") for number in range(1_000)))
    assert driver.shard.held_bytes() > 1_000 * (getsizeof("9") + 130)  # a name, its bytes object, a tuple and a counter


def test_assignment_counts_towards_the_memory_limit_until_it_is_replaced_or_its_member_leaves() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    bound(driver, 1_000_000)
    before = []
    for group, code in (("a", ErrorCode.NONE), ("b", ErrorCode.POLICY_VIOLATION)):
        joined = driver.join(group=group).joined
        before.append(driver.shard.held_bytes())
        synced = driver.sync(joined.member_id, joined.generation_id, {joined.member_id: bytes(600_000)}, group=group)
        assert synced.error is code
    assert driver.shard.held_bytes() - before[0] > 600_000
    assert recounted(driver, "a")
    (member_id,) = driver.shard.groups["a"].members
    generation = driver.join(member_id, group="a").joined.generation_id
    assert driver.sync(member_id, generation, {member_id: bytes(500_000)}, group="a").error is ErrorCode.NONE
    assert recounted(driver, "a")
    driver.leave(member_id, group="a")
    assert driver.shard.held_bytes() < 10_000


def test_memory_of_an_assignment_that_the_log_refuses_is_released() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    joined = driver.join().joined
    driver.hold_commits = True
    driver.sync(joined.member_id, joined.generation_id, {joined.member_id: bytes(600_000)})
    driver.release_commits(ErrorCode.NOT_COORDINATOR)
    assert recounted(driver)
    assert driver.shard.held_bytes() < 10_000


def test_ids_of_groups_and_instances_count_towards_the_memory_limit() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    assert driver.join(group="g" * 30_000, instance="i" * 20_000).error is ErrorCode.NONE
    assert driver.shard.held_bytes() > 30_000 + 2 * 20_000  # the member id starts with the instance id


def test_subscribed_topics_of_classic_consumers_count_towards_the_memory_limit() -> None:
    from penstock.protocol.codec import encode
    from penstock.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    topics = [f"{number}" for number in range(1_000)]
    metadata = b"\0\0" + encode(ConsumerProtocolSubscription(topics=topics), 0)
    assert driver.join(protocols=(("range", metadata),)).error is ErrorCode.NONE
    assert driver.shard.held_bytes() > 1_000 * 100


def test_memory_of_a_rejoining_member_is_not_counted_twice() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    bound(driver, 1_000_000)
    protocols = (("range", bytes(600_000)),)
    member_id = driver.join(protocols=protocols).joined.member_id
    codes = [driver.join(member_id, protocols=protocols).error for _ in range(5)]
    assert codes == [ErrorCode.NONE] * 5
    assert driver.join(group="h", protocols=(("range", bytes(300_000)),)).error is ErrorCode.NONE
    assert recounted(driver)


def test_memory_is_reserved_for_a_pending_member_id_until_its_member_joins() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    held = []
    ids = []
    for _ in range(3):
        ids.append(driver.join(version=9).joined.member_id)
        held.append(driver.shard.held_bytes())
    assert held[1] - held[0] == held[2] - held[1] >= 1_500
    allowance = bound(driver, held[2] + 1_000)
    assert allowance.grant(1, driver.now_ms)  # the pending id counts
    assert driver.join(ids[0], version=9).error is ErrorCode.NONE  # it uses the memory reserved for its pending id


def test_join_that_only_requests_a_member_id_takes_no_memory_for_its_protocols() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    bound(driver, 1_000_000)
    protocols = (("range", bytes(600_000)),)
    member_id = driver.join(protocols=protocols, version=9).joined.member_id
    assert driver.join(member_id, protocols=protocols, version=9).error is ErrorCode.NONE


def test_topic_names_of_consumer_protocol_members_count_towards_the_memory_limit() -> None:
    driver = ConsumerDriver()
    bound(driver, 1_000_000)
    long = [f"{number}" + "x" * 30_000 for number in range(10)]
    codes = [driver.enter(f"m{number}", *long, group_id=f"g{number}").error_code for number in range(5)]
    assert codes == [ErrorCode.NONE] * 3 + [ErrorCode.POLICY_VIOLATION] * 2
    assert 900_000 < driver.shard.held_bytes() <= 1_000_000
    assert recounted(driver, "g0")


def test_larger_subscription_takes_memory_and_a_smaller_subscription_releases_memory() -> None:
    driver = ConsumerDriver()
    bound(driver, 100_000)
    epoch = driver.enter("m0").member_epoch
    empty = driver.shard.held_bytes()
    epoch = driver.beat("m0", epoch, rack_id="r" * 30_000, subscribed_topic_names=["x" * 30_000]).member_epoch
    assert driver.shard.held_bytes() > empty + 60_000
    more = [f"{number}" + "x" * 30_000 for number in range(3)]
    assert driver.beat("m0", epoch, subscribed_topic_names=more).error_code == ErrorCode.POLICY_VIOLATION
    assert driver.beat("m0", epoch).error_code == ErrorCode.NONE
    assert recounted(driver)
    driver.beat("m0", -1)
    assert driver.shard.held_bytes() < 5_000


def test_counted_memory_of_members_is_exact_after_a_load() -> None:
    driver = Driver(shard=GroupShard(CONFIG, Random(7)))
    driver.stable(3, protocols=(("range", bytes(10_000)),))
    assert recounted(driver.reload())
    consumers = ConsumerDriver()
    consumers.enter("m0")
    consumers.enter("m1")
    again = consumers.reload()
    assert recounted(again)
    assert again.shard.held_bytes() == consumers.shard.held_bytes()
