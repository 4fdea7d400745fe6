import pytest
from group_driver import SESSION_MS, Driver

from penstock.groups.config import GroupConfig
from penstock.groups.journal import OffsetKey, decode_record
from penstock.protocol.codec import DecodeError
from penstock.protocol.errors import ErrorCode
from penstock.protocol.persisted.group.group_metadata import GroupMetadataKey, GroupMetadataValue


def busy_driver() -> Driver:
    driver = Driver()
    members = driver.stable(3)
    driver.stable(2, group="other")
    driver.commit({("t", 0): 1, ("t", 1): 2}, member_id=members[0], generation=3)
    driver.commit({("t", 0): 9}, group="simple")
    driver.leave(members[2])
    driver.join(members[0])
    rejoined = driver.join(members[1]).joined
    driver.sync(members[0], rejoined.generation_id, {members[1]: b"all"})
    driver.stable(group="gone")
    driver.leave(*driver.shard.groups["gone"].members, group="gone")
    driver.delete("gone")
    return driver


def test_replaying_the_group_log_restores_the_committed_state() -> None:
    driver = busy_driver()
    assert driver.reload().shard.remembered() == driver.shard.remembered()


def test_replaying_the_group_log_twice_gives_the_same_state_as_replaying_it_once() -> None:
    driver = busy_driver()
    other = Driver()
    other.replay(driver.journal)
    other.replay(driver.journal)
    assert other.shard.remembered() == driver.shard.remembered()


def test_members_of_a_loaded_classic_group_continue_in_the_same_generation() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    other = driver.reload()
    assert other.heartbeat(follower, 2) is ErrorCode.NONE
    assert other.sync(follower, 2).synced.assignment == b"to " + follower.encode()
    assert other.commit({("t", 0): 1}, member_id=leader, generation=2) == [ErrorCode.NONE]
    assert other.join(follower).joined.leader == leader


def test_members_of_a_loaded_classic_group_get_a_full_session_timeout() -> None:
    driver = Driver()
    leader, follower = driver.stable(2)
    other = driver.reload()
    other.advance(SESSION_MS - 1)
    other.heartbeat(leader, 2)
    other.advance(1)
    assert other.heartbeat(leader, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert other.heartbeat(follower, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_loaded_group_with_more_members_than_its_limit_starts_a_rebalance() -> None:
    driver = Driver()
    leader, _ = driver.stable(2)
    smaller = Driver(GroupConfig(initial_rebalance_delay_ms=0, max_size=1))
    smaller.replay(driver.journal)
    smaller.run(smaller.shard.loaded)
    assert smaller.heartbeat(leader, 2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_group_records_have_the_same_versions_as_in_kafka() -> None:
    driver = Driver()
    driver.stable()
    driver.commit({("t", 0): 1}, group="simple")
    driver.commit({("t", 0): 1}, group="simple", retention_ms=5, version=4)
    prefixes = [(key[:2], value[:2]) for key, value in driver.journal if value is not None]
    assert prefixes == [
        (b"\x00\x02", b"\x00\x03"),
        (b"\x00\x02", b"\x00\x03"),
        (b"\x00\x01", b"\x00\x04"),
        (b"\x00\x01", b"\x00\x01"),
    ]
    created, stable, *_ = [decode_record(*each) for each in driver.journal]
    assert created is not None
    assert stable is not None
    assert created.key == GroupMetadataKey(group="g")
    assert isinstance(created.value, GroupMetadataValue)
    assert (created.value.generation, created.value.members) == (0, [])
    assert isinstance(stable.value, GroupMetadataValue)
    assert [member.assignment for member in stable.value.members] != [b""]


def test_group_log_decoder_ignores_unknown_record_types_and_reads_offset_keys_of_version_0() -> None:
    assert decode_record(b"\x00\x63whatever", b"x") is None
    assert decode_record(None, b"x") is None
    legacy = decode_record(b"\x00\x00" + b"\x00\x01g" + b"\x00\x01t" + b"\x00\x00\x00\x05", None)
    assert legacy is not None
    assert legacy.key == OffsetKey("g", "t", 5)


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"\x00\x01g\x00",
        b"\x00\x01g\x00\x05t\x00\x00\x00\x05",
        b"\x00\x01g\x00\x01tt\x00\x00\x00\x05",
        b"\x00\x01\xff\x00\x01t\x00\x00\x00\x05",
    ],
)
def test_decoding_a_damaged_offset_key_raises_an_error(key: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_record(b"\x00\x01" + key, b"x")


def test_parked_group_requests_are_answered_not_coordinator_when_the_broker_loses_the_partition() -> None:
    driver = Driver()
    leader, _ = driver.stable(2)
    joining = driver.join(leader)
    lonely = driver.join(group="h").joined.member_id
    second = driver.join(group="h")
    driver.join(lonely, group="h")
    syncing = driver.sync(second.joined.member_id, 2, group="h")
    driver.abandon()
    assert joining.error is ErrorCode.NOT_COORDINATOR
    assert syncing.error is ErrorCode.NOT_COORDINATOR
