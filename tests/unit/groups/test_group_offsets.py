import pytest
from group_driver import SESSION_MS, Driver

from penstock.groups import offset_requests
from penstock.groups.classic.commit import check_commit
from penstock.groups.classic.group import ClassicGroup
from penstock.groups.config import GroupConfig
from penstock.groups.journal import decode_record
from penstock.groups.turn import Turn
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from penstock.protocol.persisted.group.offset_commit import OffsetCommitKey, OffsetCommitValue

DAY_MS = 24 * 60 * 60 * 1000
T0, T1 = ("t", 0), ("t", 1)


def subscription(*topics: str) -> tuple[tuple[str, bytes], ...]:
    return (("range", b"\x00\x00" + encode(ConsumerProtocolSubscription(topics=list(topics)), 0)),)


def delete_offsets(driver: Driver, *partitions: tuple[str, int], group: str = "g") -> list[ErrorCode]:
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index)])
            for topic, index in partitions
        ],
    )
    response = driver.run(lambda turn: offset_requests.delete_offsets(driver.shard, turn, request))
    if response.error_code:
        return [ErrorCode(response.error_code)]
    return [ErrorCode(each.error_code) for topic in response.topics for each in topic.partitions]


def expire(driver: Driver, group: str = "g") -> None:
    driver.run(lambda turn: offset_requests.expire(driver.shard, turn, group))


def test_a_simple_consumer_commits_without_joining_and_reads_its_offsets_back() -> None:
    driver = Driver()
    assert driver.commit({T0: 5, T1: 7}) == [ErrorCode.NONE, ErrorCode.NONE]
    assert driver.fetch(T0, ("t", 2)) == {T0: 5, ("t", 2): -1}
    assert driver.fetch() == {T0: 5, T1: 7}
    assert driver.state() == "Empty"


def test_offset_fetch_for_a_group_without_commits_returns_no_offset() -> None:
    assert Driver().fetch(T0) == {T0: -1}
    assert Driver().fetch() == {}


def test_commit_of_a_member_is_accepted_only_in_the_current_generation() -> None:
    driver = Driver()
    [member] = driver.stable()
    assert driver.commit({T0: 1}, member_id=member, generation=1) == [ErrorCode.NONE]
    assert driver.commit({T0: 1}, member_id=member, generation=0) == [ErrorCode.ILLEGAL_GENERATION]
    assert driver.commit({T0: 1}, member_id="ghost", generation=1) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_commit_of_a_non_member_to_a_group_with_members_is_refused() -> None:
    driver = Driver()
    driver.stable()
    assert driver.commit({T0: 1}) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_commit_with_the_old_id_of_a_restarted_static_member_is_fenced() -> None:
    driver = Driver()
    [member] = driver.stable(instance="i", version=5)
    driver.join(instance="i", version=5)
    assert driver.commit({T0: 1}, member_id=member, generation=1, instance="i") == [ErrorCode.FENCED_INSTANCE_ID]


def test_member_can_commit_in_the_join_phase_but_not_while_the_group_waits_for_the_assignment() -> None:
    driver = Driver()
    [member] = driver.stable()
    driver.join()
    assert driver.commit({T0: 1}, member_id=member, generation=1) == [ErrorCode.NONE]
    driver.join(member)
    assert driver.commit({T0: 1}, member_id=member, generation=2) == [ErrorCode.REBALANCE_IN_PROGRESS]


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_offset_commit_with_a_generation_for_a_missing_group_is_refused(version: int, code: ErrorCode) -> None:
    assert Driver().commit({T0: 1}, member_id="m", generation=3, version=version) == [code]


def test_offset_commit_extends_the_member_session() -> None:
    driver = Driver()
    [member] = driver.stable()
    for _ in range(3):
        driver.advance(SESSION_MS - 1)
        driver.commit({T0: 1}, member_id=member, generation=1)
    assert driver.heartbeat(member, 1) is ErrorCode.NONE


def test_offset_metadata_that_is_too_large_fails_only_its_partition() -> None:
    driver = Driver(GroupConfig(offset_metadata_max_bytes=3))
    assert driver.commit({T0: 1}, metadata="1234") == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert driver.commit({T0: 1}, metadata="123") == [ErrorCode.NONE]
    assert driver.commit({T0: 2}, metadata=None) == [ErrorCode.NONE]


def test_recreated_topic_has_no_committed_offsets_of_the_deleted_topic() -> None:
    driver = Driver()
    driver.commit({T0: 5}, topic_id=b"A" * 16)
    assert driver.fetch(T0, topic_id=b"B" * 16) == {T0: -1}
    assert driver.fetch(T0, topic_id=b"A" * 16) == {T0: 5}
    assert driver.fetch(T0) == {T0: 5}


def test_offsets_of_an_empty_group_expire_and_the_group_is_deleted_with_its_last_offset() -> None:
    driver = Driver()
    [member] = driver.stable()
    driver.commit({T0: 1}, member_id=member, generation=1)
    driver.leave(member)
    driver.advance(7 * DAY_MS - 1)
    expire(driver)
    assert driver.fetch(T0) == {T0: 1}
    driver.advance(1)
    expire(driver)
    assert driver.fetch(T0) == {T0: -1}
    assert driver.state() == "Dead"
    assert driver.reload().shard.remembered() == driver.shard.remembered()


def test_offsets_of_a_simple_consumer_expire_individually() -> None:
    driver = Driver()
    driver.commit({T0: 1})
    driver.advance(DAY_MS)
    driver.commit({T1: 1})
    driver.advance(6 * DAY_MS)
    expire(driver)
    assert driver.fetch() == {T1: 1}
    assert driver.state() == "Empty"


def test_offset_retention_time_in_a_commit_of_an_old_client_is_respected() -> None:
    driver = Driver()
    driver.commit({T0: 1}, retention_ms=1000, version=4)
    driver = driver.reload()
    driver.advance(999)
    expire(driver)
    assert driver.fetch() == {T0: 1}
    driver.advance(1)
    expire(driver)
    assert driver.fetch() == {}


def test_offset_with_a_retention_time_of_zero_expires_at_once() -> None:
    driver = Driver()
    driver.commit({T0: 1}, retention_ms=0, version=4)
    expire(driver)
    assert driver.fetch() == {}


def test_offset_expiry_time_beyond_int64_is_capped() -> None:
    driver = Driver()
    driver.commit({T0: 5}, retention_ms=2**63 - 1, version=4)
    driver = driver.reload()
    driver.advance(10 * DAY_MS)
    expire(driver)
    assert driver.fetch() == {T0: 5}


def test_group_with_members_loses_only_expired_offsets_of_topics_it_no_longer_reads() -> None:
    driver = Driver()
    [member] = driver.stable(protocols=subscription("t"), session_ms=1_800_000)
    driver.commit({T0: 1, ("other", 0): 1}, member_id=member, generation=1)
    for _ in range(7 * 24 * 3):
        driver.advance(DAY_MS // 24 // 3)
        driver.heartbeat(member, 1)
    expire(driver)
    assert driver.fetch() == {T0: 1}


def test_offsets_of_deleted_topics_are_erased() -> None:
    driver = Driver()
    driver.commit({T0: 1, ("other", 0): 2})
    driver.run(lambda turn: offset_requests.forget_topics(driver.shard, turn, {"t"}))
    assert driver.fetch() == {("other", 0): 2}


def test_offset_delete_is_refused_for_topics_that_the_group_subscribes_to() -> None:
    driver = Driver()
    assert delete_offsets(driver, T0) == [ErrorCode.GROUP_ID_NOT_FOUND]
    [member] = driver.stable(protocols=subscription("t"))
    driver.commit({T0: 1, ("other", 0): 1}, member_id=member, generation=1)
    assert delete_offsets(driver, T0, ("other", 0)) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert driver.fetch() == {T0: 1}
    driver.leave(member)
    assert delete_offsets(driver, T0, ("unknown", 3)) == [ErrorCode.NONE, ErrorCode.NONE]
    assert driver.fetch() == {}


def test_offsets_of_a_non_consumer_group_are_deleted_only_when_it_is_empty() -> None:
    driver = Driver()
    [member] = driver.stable(protocol_type="connect")
    assert delete_offsets(driver, T0) == [ErrorCode.NON_EMPTY_GROUP]
    driver.leave(member)
    assert delete_offsets(driver, T0) == [ErrorCode.NONE]


def test_a_commit_inside_a_transaction_takes_effect_when_the_transaction_commits() -> None:
    driver = Driver()
    driver.commit({T0: 1})

    def in_transaction(offset: int) -> None:
        def decide(turn: Turn) -> None:
            turn.producer = (9, 0)
            turn.record(OffsetCommitKey(group="g", topic="t", partition=0), OffsetCommitValue(offset=offset))

        driver.run(decide)

    in_transaction(5)
    assert driver.fetch(T0) == {T0: 1}
    assert driver.fetch(T0, require_stable=True) == {T0: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    driver.shard.apply_marker(9, commit=False)
    assert driver.fetch(T0, require_stable=True) == {T0: 1}
    in_transaction(6)
    driver.shard.apply_marker(9, commit=True)
    assert driver.fetch(T0, require_stable=True) == {T0: 6}
    in_transaction(7)
    driver.commit({T0: 8})
    driver.shard.apply_marker(9, commit=True)
    assert driver.fetch(T0) == {T0: 8}, "the later commit in the log wins"


def test_offset_delete_erases_the_offsets_of_every_partition_in_the_request() -> None:
    driver = Driver()
    driver.commit({T0: 1, T1: 2, ("u", 0): 3})
    both = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1)]
    request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=both)])
    driver.run(lambda turn: offset_requests.delete_offsets(driver.shard, turn, request))
    assert driver.fetch() == {("u", 0): 3}


@pytest.mark.parametrize("reloaded", [False, True])
def test_offsets_of_subscribed_topics_are_not_deleted(reloaded: bool) -> None:
    driver = Driver()
    [member] = driver.stable(protocols=subscription("t"))
    driver.commit({T0: 1, ("u", 0): 3}, member_id=member, generation=1)
    if reloaded:
        driver = driver.reload()
    assert delete_offsets(driver, T0, ("u", 0)) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert driver.fetch() == {T0: 1}


def test_subscription_of_a_newer_version_is_read() -> None:
    driver = Driver()
    newest = encode(ConsumerProtocolSubscription(topics=["t"]), ConsumerProtocolSubscription.MAX_VERSION)
    [member] = driver.stable(protocols=(("range", b"\x00\x09" + newest + b"more"),))
    driver.commit({T0: 1, ("u", 0): 3}, member_id=member, generation=1)
    assert delete_offsets(driver, T0, ("u", 0)) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]


def test_all_topics_count_as_subscribed_if_a_subscription_is_unreadable() -> None:
    driver = Driver()
    [member] = driver.stable(protocols=(("range", b"\x00\x00\xff"),))
    driver.commit({T0: 1}, member_id=member, generation=1)
    assert delete_offsets(driver, T0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


@pytest.mark.parametrize(("instance", "generation"), [(None, 0), ("i", -1)])
def test_transactional_commit_with_an_instance_id_or_generation_but_no_known_member_is_refused(
    instance: str | None, generation: int
) -> None:
    driver = Driver()
    driver.stable(1)
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    driver.run(lambda turn: check_commit(turn, group, "", None, -1, transactional=True))
    with pytest.raises(KafkaError) as refused:
        driver.run(lambda turn: check_commit(turn, group, "", instance, generation, transactional=True))
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_offset_committed_in_a_transaction_of_producer_id_0_is_pending_until_the_marker() -> None:
    driver = Driver()
    driver.commit({T0: 1})
    record = decode_record(*driver.journal[-1])
    assert record is not None
    other = Driver()
    other.shard.apply(record, 0, 0)
    assert other.fetch(T0) != {T0: 1}
    other.shard.apply_marker(0, True)
    assert other.fetch(T0) == {T0: 1}
