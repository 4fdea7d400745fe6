from dataclasses import replace
from time import thread_time
from typing import Any

import pytest
from consumer_driver import REVOKE_MS, SESSION_MS, ConsumerDriver, error, image_of, shares

from penstock.groups import offset_requests
from penstock.groups.config import GroupConfig
from penstock.groups.consumer import advance
from penstock.groups.consumer.subscribe import MAX_PATTERNS, metadata_hash
from penstock.groups.txn_offsets import commit_in_transaction
from penstock.metadata.image import MetadataImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_09_offset_fetch import OffsetFetchRequestGroup
from penstock.protocol.messages.api_28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)


def settled_pair(driver: ConsumerDriver) -> int:
    """Lets members a and b join until each has two partitions. Returns the epoch of member a."""
    first = driver.enter("a")
    second = driver.enter("b")
    driver.beat("a", first.member_epoch)
    epoch = driver.beat("a", first.member_epoch, owned={"t": [0, 1]}).member_epoch
    assert shares(driver.beat("b", second.member_epoch)) == {"t": [2, 3]}
    assert driver.describe().group_state == "Stable"
    return epoch


def test_first_member_of_a_consumer_group_gets_all_partitions() -> None:
    driver = ConsumerDriver()
    response = driver.enter("a")
    assert shares(response) == {"t": [0, 1, 2, 3]}
    assert (response.member_id, response.heartbeat_interval_ms) == ("a", 5000)
    assert driver.describe().group_state == "Stable"


def test_heartbeat_without_changes_writes_no_record_and_returns_no_assignment() -> None:
    driver = ConsumerDriver()
    epoch = driver.enter("a").member_epoch
    written = len(driver.journal)
    response = driver.beat("a", epoch)
    assert (shares(response), response.member_epoch, len(driver.journal)) == (None, epoch, written)


def test_heartbeat_checks_subscribed_topics_again_only_after_a_metadata_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = ConsumerDriver()
    epoch = driver.enter("a").member_epoch
    compared: list[frozenset[str]] = []

    def compare(image: MetadataImage, topics: frozenset[str]) -> int:
        compared.append(topics)
        return metadata_hash(image, topics)

    monkeypatch.setattr(advance, "metadata_hash", compare)
    driver.beat("a", epoch)
    assert compared == []
    driver.see({"t": 4, "other": 1})
    driver.see({"t": 5, "other": 1})
    assert driver.beat("a", epoch).member_epoch == epoch + 1
    assert compared == [frozenset({"t"})]
    driver.beat("a", epoch + 1)
    assert len(compared) == 1


def test_a_partition_goes_to_its_new_owner_only_after_the_old_owner_released_it() -> None:
    driver = ConsumerDriver()
    first = driver.enter("a")
    second = driver.enter("b")
    assert shares(second) == {}
    assert driver.describe().group_state == "Reconciling"
    asked = driver.beat("a", first.member_epoch)
    assert shares(asked) == {"t": [0, 1]}
    assert asked.member_epoch == first.member_epoch, "it stays in its epoch until it has let go"
    assert shares(driver.beat("a", first.member_epoch, owned={"t": [0, 1, 2, 3]})) is None
    assert shares(driver.beat("b", second.member_epoch)) is None
    released = driver.beat("a", first.member_epoch, owned={"t": [0, 1]})
    assert released.member_epoch == second.member_epoch
    assert shares(driver.beat("b", second.member_epoch)) == {"t": [2, 3]}
    assert driver.describe().group_state == "Stable"


def test_a_member_that_does_not_revoke_partitions_in_time_is_removed() -> None:
    driver = ConsumerDriver()
    first = driver.enter("a")
    second = driver.enter("b")
    driver.beat("a", first.member_epoch)
    driver.advance(REVOKE_MS)
    assert error(driver.beat("a", first.member_epoch)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert shares(driver.beat("b", second.member_epoch)) == {"t": [0, 1, 2, 3]}


def test_member_without_heartbeats_is_removed_and_its_partitions_are_reassigned() -> None:
    driver = ConsumerDriver()
    epoch = settled_pair(driver)
    driver.advance(SESSION_MS - 1)
    driver.beat("b", epoch)
    driver.advance(1)
    assert shares(driver.beat("b", epoch)) == {"t": [0, 1, 2, 3]}
    assert error(driver.beat("a", epoch)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_partitions_of_a_leaving_member_are_reassigned() -> None:
    driver = ConsumerDriver()
    epoch = settled_pair(driver)
    assert driver.beat("a", -1).member_epoch == -1
    assert shares(driver.beat("b", epoch)) == {"t": [0, 1, 2, 3]}
    driver.beat("b", -1)
    assert driver.describe().group_state == "Empty"
    assert error(driver.beat("b", -1)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeat_with_a_wrong_member_epoch_is_fenced_except_after_a_lost_response() -> None:
    driver = ConsumerDriver()
    first = driver.enter("a")
    epoch = settled_pair(driver)
    assert error(driver.beat("a", epoch + 1)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert error(driver.beat("a", first.member_epoch)) is ErrorCode.FENCED_MEMBER_EPOCH
    assert error(driver.beat("a", first.member_epoch, owned={"t": [0, 3]})) is ErrorCode.FENCED_MEMBER_EPOCH
    assert driver.beat("a", first.member_epoch, owned={"t": [0]}).member_epoch == epoch
    assert shares(driver.enter("a")) == {"t": [0, 1]}, "joining anew under the same id is always possible"


def test_member_that_changes_its_subscription_gets_a_new_assignment() -> None:
    driver = ConsumerDriver(topics={"t": 2, "u": 2})
    epoch = driver.enter("a").member_epoch
    changed = driver.beat("a", epoch, subscribed_topic_names=["u"])
    assert shares(changed) == {}
    assert shares(driver.beat("a", epoch, owned={})) == {"u": [0, 1]}


def test_new_partitions_and_deleted_topics_cause_a_new_assignment() -> None:
    driver = ConsumerDriver()
    epoch = driver.enter("a").member_epoch
    driver.see({"t": 6})
    grown = driver.beat("a", epoch)
    assert shares(grown) == {"t": [0, 1, 2, 3, 4, 5]}
    driver.see({})
    assert shares(driver.beat("a", grown.member_epoch)) == {}
    driver.see({"other": 1})
    assert shares(driver.beat("a", grown.member_epoch, owned={})) is None


def test_subscribed_pattern_also_matches_topics_created_later() -> None:
    driver = ConsumerDriver(topics={"t-1": 1, "x": 1})
    first = driver.enter("a", subscribed_topic_names=None, subscribed_topic_regex="t-[0-9]+")
    assert shares(first) == {"t-1": [0]}
    driver.see({"t-1": 1, "x": 1, "t-22": 1, "t-x": 1, "__t-1": 1})
    assert shares(driver.beat("a", first.member_epoch)) == {"t-1": [0], "t-22": [0]}
    assert driver.describe().members[0].subscribed_topic_regex == "t-[0-9]+"


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        ("__offsets", {"__offsets"}),
        ("__.*", {"__offsets", "__own"}),
        (".*", {"t", "__offsets", "__own"}),
        ("[a-z].*", {"t"}),
    ],
)
def test_subscribed_pattern_also_matches_internal_topics(pattern: str, matched: set[str]) -> None:
    driver = ConsumerDriver(topics={"t": 1, "__offsets": 1, "__own": 1})
    entered = driver.enter("a", subscribed_topic_names=None, subscribed_topic_regex=pattern)
    assert set(shares(entered) or ()) == matched


def test_subscription_with_an_invalid_pattern_is_refused_and_writes_no_record() -> None:
    driver = ConsumerDriver()
    refused = driver.enter("a", subscribed_topic_names=None, subscribed_topic_regex="(t")
    assert error(refused) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert refused.error_message
    assert driver.journal == []
    assert error(driver.beat("a", 1)) is ErrorCode.GROUP_ID_NOT_FOUND


def test_subscription_changes_within_one_assignment_interval_cause_one_new_assignment() -> None:
    driver = ConsumerDriver(GroupConfig(consumer_assignment_interval_ms=1000))
    first = driver.enter("a")
    second = driver.enter("b")
    assert (shares(second), driver.describe().group_state) == ({}, "Assigning")
    driver.advance(1000)
    assert shares(driver.beat("a", first.member_epoch)) == {"t": [0, 1]}


def test_group_uses_the_assignor_that_most_members_prefer() -> None:
    driver = ConsumerDriver(topics={"t": 2, "u": 2})
    driver.enter("a", "t", "u", server_assignor="range")
    assert driver.describe().assignor_name == "range"
    driver.beat("a", -1)
    assert driver.describe().assignor_name == "uniform"


def test_full_consumer_group_refuses_new_members() -> None:
    driver = ConsumerDriver(GroupConfig(consumer_max_size=1))
    driver.enter("a")
    assert error(driver.enter("b")) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_coordinator_generates_the_member_id_of_an_old_client() -> None:
    driver = ConsumerDriver()
    response = driver.enter("", version=0)
    assert response.member_id
    assert driver.beat(response.member_id, response.member_epoch).error_code == ErrorCode.NONE


VALID: dict[str, Any] = {"rebalance_timeout_ms": 5, "subscribed_topic_names": ["t"], "topic_partitions": []}


@pytest.mark.parametrize(
    ("member_id", "epoch", "fields"),
    [
        ("a", 0, {**VALID, "group_id": ""}),
        ("", 0, VALID),
        ("", 3, {}),
        ("a", 0, {**VALID, "instance_id": ""}),
        ("a", 0, {**VALID, "rack_id": ""}),
        ("a", 0, {**VALID, "rebalance_timeout_ms": -1}),
        ("a", 0, {**VALID, "topic_partitions": None}),
        ("a", 0, {**VALID, "subscribed_topic_names": None}),
        ("a", -2, {}),
        ("a", -3, {}),
    ],
)
def test_invalid_heartbeats_are_refused(member_id: str, epoch: int, fields: dict[str, Any]) -> None:
    assert error(ConsumerDriver().beat(member_id, epoch, **fields)) is ErrorCode.INVALID_REQUEST


def test_unknown_assignor_is_refused_with_the_list_of_known_assignors() -> None:
    refused = ConsumerDriver().enter("a", server_assignor="sticky")
    assert error(refused) is ErrorCode.UNSUPPORTED_ASSIGNOR
    assert "uniform, range" in (refused.error_message or "")


# --- static members


def test_static_member_that_returns_after_a_temporary_leave_gets_its_partitions_back() -> None:
    driver = ConsumerDriver()
    first = driver.enter("a", instance_id="i")
    assert driver.beat("a", -2, instance_id="i").member_epoch == -2
    back = driver.enter("b", instance_id="i")
    assert (shares(back), back.member_epoch) == ({"t": [0, 1, 2, 3]}, first.member_epoch)
    assert error(driver.beat("a", first.member_epoch, instance_id="i")) is ErrorCode.FENCED_INSTANCE_ID
    assert list(driver.consumers.members) == ["b"]


def test_a_static_member_that_does_not_return_is_removed_when_its_session_ends() -> None:
    driver = ConsumerDriver()
    driver.enter("a", instance_id="i")
    driver.beat("a", -2, instance_id="i")
    driver.advance(SESSION_MS)
    assert driver.describe().group_state == "Empty"


def test_join_with_the_instance_id_of_another_active_member_is_refused() -> None:
    driver = ConsumerDriver()
    driver.enter("a", instance_id="i")
    assert error(driver.enter("b", instance_id="i")) is ErrorCode.UNRELEASED_INSTANCE_ID
    assert error(driver.beat("b", 1, instance_id="i")) is ErrorCode.FENCED_INSTANCE_ID
    assert error(driver.beat("a", 1, instance_id="other")) is ErrorCode.UNKNOWN_MEMBER_ID


# --- offsets, deletion and reload


def test_only_members_with_the_current_epoch_can_commit_and_fetch_offsets() -> None:
    driver = ConsumerDriver()
    epoch = driver.enter("a").member_epoch
    assert driver.commit({("t", 0): 1}, member_id="a", generation=epoch) == [ErrorCode.NONE]
    assert driver.commit({("t", 0): 1}, member_id="a", generation=epoch + 1) == [ErrorCode.STALE_MEMBER_EPOCH]
    assert driver.commit({("t", 0): 1}, member_id="x", generation=epoch) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.commit({("t", 0): 1}) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.commit({("t", 0): 1}, member_id="a", generation=epoch, version=8) == [ErrorCode.UNSUPPORTED_VERSION]
    driver.beat("a", -1)
    assert driver.commit({("t", 0): 7}) == [ErrorCode.NONE]
    assert driver.fetch() == {("t", 0): 7}


def test_offset_fetch_with_a_member_epoch_is_answered_only_if_a_member_has_this_epoch() -> None:
    driver = ConsumerDriver()
    epoch = driver.enter("a").member_epoch

    def fetched(member_id: str | None, member_epoch: int) -> ErrorCode:
        request = OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=member_epoch)
        try:
            offset_requests.fetch(driver.shard, request, False)
        except KafkaError as refused:
            return refused.code
        return ErrorCode.NONE

    assert fetched("a", epoch) is ErrorCode.NONE
    assert fetched(None, -1) is ErrorCode.NONE, "an administrator"
    assert fetched(None, epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetched("b", epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetched("a", epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH


def test_transactional_commit_with_a_stale_member_epoch_is_refused() -> None:
    driver = ConsumerDriver()
    epoch = driver.enter("a").member_epoch

    def sent(member_id: str, generation: int) -> ErrorCode:
        partition = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        request = TxnOffsetCommitRequest(
            group_id="g",
            producer_id=5,
            member_id=member_id,
            generation_id=generation,
            topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[partition])],
        )
        return driver.run(lambda turn: commit_in_transaction(driver.shard, turn, request))["t", 0]

    assert sent("a", epoch) is ErrorCode.NONE
    assert sent("a", epoch + 1) is ErrorCode.ILLEGAL_GENERATION
    assert sent("a", epoch - 1) is ErrorCode.ILLEGAL_GENERATION
    assert sent("b", epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    assert sent("", -1) is ErrorCode.NONE, "a producer that names no member"


def test_member_with_an_older_epoch_can_commit_offsets_only_for_partitions_that_it_still_owns() -> None:
    driver = ConsumerDriver()
    first = driver.enter("a").member_epoch
    epoch = settled_pair(driver)
    identity = b"t".ljust(16, b".")
    assert epoch > first
    assert driver.commit({("t", 0): 1}, member_id="a", generation=first, topic_id=identity) == [ErrorCode.NONE]
    gone = driver.commit({("t", 3): 1}, member_id="a", generation=first, topic_id=identity)
    assert gone == [ErrorCode.STALE_MEMBER_EPOCH]
    both = {("t", 0): 5, ("t", 3): 5}
    assert driver.commit(both, member_id="a", generation=first) == [ErrorCode.STALE_MEMBER_EPOCH] * 2, "as a whole"
    assert driver.fetch(("t", 0)) == {("t", 0): 1}


def test_commit_with_an_older_epoch_is_accepted_for_a_partition_that_is_being_revoked() -> None:
    driver = ConsumerDriver(topics={"t": 2, "u": 2})
    old = driver.enter("a").member_epoch
    new = driver.beat("a", old, subscribed_topic_names=["t", "u"]).member_epoch
    driver.enter("b", subscribed_topic_names=["t", "u"])
    driver.beat("a", new)
    pending = driver.consumers.members["a"].pending_revocation
    assert new > old
    assert pending
    for index in (0, 1):
        assert driver.commit({("t", index): 1}, member_id="a", generation=old) == [ErrorCode.NONE]
        assert driver.commit({("u", index): 1}, member_id="a", generation=old) == [ErrorCode.STALE_MEMBER_EPOCH]


def test_consumer_group_is_deleted_only_when_it_is_empty() -> None:
    driver = ConsumerDriver()
    driver.enter("a")
    assert driver.delete() is ErrorCode.NON_EMPTY_GROUP
    driver.beat("a", -1)
    assert driver.delete() is ErrorCode.NONE
    assert driver.describe().error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.reload().shard.groups == {}


def test_empty_group_changes_between_the_classic_and_consumer_protocols_and_keeps_its_offsets() -> None:
    driver = ConsumerDriver()
    [member] = driver.stable()
    assert error(driver.enter("a")) is ErrorCode.GROUP_ID_NOT_FOUND
    driver.commit({("t", 0): 5}, member_id=member, generation=1)
    driver.leave(member)
    driver.enter("a")
    assert driver.fetch() == {("t", 0): 5}
    assert driver.join().error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    driver.beat("a", -1)
    assert driver.join().error is ErrorCode.NONE
    assert driver.fetch() == {("t", 0): 5}
    assert driver.reload().shard.remembered() == driver.shard.remembered()


def test_replay_of_the_log_restores_members_and_targets_and_owners_of_a_consumer_group() -> None:
    driver = ConsumerDriver(topics={"t": 4, "t-1": 3})
    settled_pair(driver)
    driver.enter("c", subscribed_topic_names=None, subscribed_topic_regex="t-.*")
    driver.enter("d", instance_id="i")
    driver.beat("d", -2, instance_id="i")
    other = driver.reload()
    assert other.shard.remembered() == driver.shard.remembered()
    assert other.consumers.owners == driver.consumers.owners
    other.replay(driver.journal)
    assert other.shard.remembered() == driver.shard.remembered()


def test_members_of_a_loaded_consumer_group_get_a_full_session_timeout() -> None:
    driver = ConsumerDriver()
    epoch = settled_pair(driver)
    other = driver.reload()
    other.advance(SESSION_MS - 1)
    assert other.beat("a", epoch).error_code == ErrorCode.NONE
    other.advance(1)
    assert error(other.beat("b", epoch)) is ErrorCode.UNKNOWN_MEMBER_ID


COSTLY = "(" + "|".join(f".{{{count}}}" for count in range(1, 130)) + ")*c"


@pytest.mark.usefixtures("no_collections")
def test_subscription_with_a_new_pattern_that_takes_too_long_is_refused() -> None:
    driver = ConsumerDriver(topics={"x" * 249: 1, "t": 2})
    started = thread_time()
    refused = driver.enter("a", subscribed_topic_names=None, subscribed_topic_regex=COSTLY)
    assert error(refused) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert thread_time() - started < 0.5
    assert driver.enter("b", subscribed_topic_names=["t"]).assignment is not None


def test_subscribed_pattern_that_takes_too_long_to_match_keeps_its_previous_topics() -> None:
    driver = ConsumerDriver(topics={"c": 1})
    driver.enter("a", subscribed_topic_names=None, subscribed_topic_regex=COSTLY)
    assert driver.consumers.regexes[COSTLY].topics == {"c"}
    driver.see({"c": 1, "x" * 249: 1})
    driver.enter("b", subscribed_topic_names=["c"])
    assert driver.consumers.regexes[COSTLY].topics == {"c"}
    driver.see({"c": 1, "x" * 249: 1, "xc": 1})
    cheap = driver.enter("d", subscribed_topic_names=None, subscribed_topic_regex="xc?")
    assert shares(cheap) == {"xc": [0]}


def test_group_refuses_a_subscription_beyond_its_maximum_number_of_patterns() -> None:
    driver = ConsumerDriver(topics={"t": 1})
    for number in range(MAX_PATTERNS):
        driver.enter(f"m{number}", subscribed_topic_names=None, subscribed_topic_regex=f"t|{number}")
    refused = driver.enter("late", subscribed_topic_names=None, subscribed_topic_regex="t|late")
    assert error(refused) is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert not driver.enter("late", subscribed_topic_names=None, subscribed_topic_regex="t|0").error_code


def test_group_drops_a_subscribed_pattern_that_no_member_uses() -> None:
    driver = ConsumerDriver()
    epoch = driver.enter("a", subscribed_topic_regex="t.*").member_epoch
    epoch = driver.beat("a", epoch, subscribed_topic_regex="u.*").member_epoch
    assert set(driver.consumers.regexes) == {"u.*"}
    driver.beat("a", epoch, subscribed_topic_regex="")
    assert not driver.consumers.regexes


def test_commit_with_a_stale_epoch_and_too_long_metadata_gets_offset_metadata_too_large() -> None:
    driver = ConsumerDriver()
    epoch = driver.enter("a").member_epoch
    driver.enter("b")
    kept = shares(driver.beat("a", epoch))
    assert driver.beat("a", epoch, owned=kept).member_epoch == epoch + 1
    too_long = "m" * (driver.config.offset_metadata_max_bytes + 1)
    assert kept is not None
    stale = {("t", min({0, 1, 2, 3} - set(kept["t"]))): 5}
    assert driver.commit(stale, member_id="a", generation=epoch) == [ErrorCode.STALE_MEMBER_EPOCH]
    refused = driver.commit(stale, member_id="a", generation=epoch, metadata=too_long)
    assert refused == [ErrorCode.OFFSET_METADATA_TOO_LARGE]


def test_new_topic_is_assigned_even_if_brokers_and_acls_are_unchanged() -> None:
    driver = ConsumerDriver(topics={"t": 2})
    epoch = driver.enter("a", "t", "u").member_epoch
    later = image_of({"t": 2, "u": 2}, version=2)
    before = driver.shard.image
    driver.shard.see(replace(later, brokers=before.brokers, acls=before.acls))
    assert shares(driver.beat("a", epoch)) == {"t": [0, 1], "u": [0, 1]}


def test_revocation_timeout_continues_after_a_coordinator_load() -> None:
    driver = ConsumerDriver()
    epoch = driver.enter("a").member_epoch
    driver.enter("b")
    driver.beat("a", epoch)  # the answer tells the member to revoke partitions
    loaded = driver.reload()
    loaded.advance(REVOKE_MS - 1)
    assert set(loaded.consumers.members) == {"a", "b"}
    loaded.advance(1)
    assert set(loaded.consumers.members) == {"b"}
