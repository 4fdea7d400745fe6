"""Tests groups that change their protocol, and members that use the classic protocol in a consumer group.

All groups here have at least two classic members with different timeouts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from consumer_driver import ConsumerDriver, error, topic_id
from group_driver import Waiting
from test_group_migration import CONFIG, classic_pair, metadata, read, rejoin, written

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.consumer.group import ClassicMembership, ConsumerGroup
from penstock.protocol.codec import encode
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolSubscription

#: What distinguishes the members of `distinct_members`: the arguments of their joins.
OPTIONS: list[dict[str, Any]] = [
    {"instance": "i", "session_ms": 7_000, "rebalance_ms": 20_000, "client": "x", "version": 5},
    {"instance": "j", "session_ms": 8_000, "rebalance_ms": 30_000, "client": "y", "version": 5},
    {"session_ms": 9_000, "rebalance_ms": 40_000, "client": "z"},
]
ASSIGNED = [written(0), written(1, 2), written(3)]


def joined_members(driver: ConsumerDriver) -> list[str]:
    """Returns three members of a classic group whose leader, the first, has not assigned partitions yet."""
    waiting: list[Waiting] = []
    for options in OPTIONS:
        ids = [each.joined.member_id for each in waiting]
        waiting.append(driver.join(protocols=metadata(), **options))
        again = [driver.join(each, protocols=metadata(), **known) for each, known in zip(ids, OPTIONS)]
        waiting[:-1] = again
    assert {each.joined.generation_id for each in waiting} == {3}
    return [each.joined.member_id for each in waiting]


def distinct_members(driver: ConsumerDriver) -> list[str]:
    """Returns three members of a stable classic group in generation 3, with the partitions of ASSIGNED."""
    ids = joined_members(driver)
    for member in ids:
        assert driver.sync(member, 3, dict(zip(ids, ASSIGNED))).error is ErrorCode.NONE
    return ids


def classic(driver: ConsumerDriver) -> ClassicGroup:
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    return group


def described(group: ClassicGroup) -> list[tuple[Any, ...]]:
    return [
        (
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            each.rebalance_timeout_ms,
            each.session_timeout_ms,
            each.protocols,
            each.assignment,
        )
        for each in group.members.values()
    ]


# --- a group changes its protocol


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("phase", ["join", "sync"])
def test_upgrade_answers_all_parked_requests_unless_its_records_are_refused(phase: str, refused: bool) -> None:
    driver = ConsumerDriver(CONFIG)
    if phase == "sync":
        ids = joined_members(driver)
        parked = [driver.sync(member, 3) for member in ids[1:]]
    else:
        ids = distinct_members(driver)
        parked = [
            driver.join(each, protocols=(("cooperative-sticky", metadata(0)[0][1]),), **options)
            for each, options in list(zip(ids, OPTIONS))[:2]
        ]
    assert [each.answer for each in parked] == [None, None]
    driver.refuse_records = refused
    driver.enter("new")
    driver.refuse_records = False
    if not refused:
        assert [each.error for each in parked] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
        return
    assert [each.answer for each in parked] == [None, None]
    if phase == "sync":
        driver.sync(ids[0], 3, dict(zip(ids, ASSIGNED)))
        assert [each.synced.assignment for each in parked] == ASSIGNED[1:]
    else:
        last = driver.join(ids[2], protocols=metadata(), **OPTIONS[2])
        assert [each.joined.generation_id for each in [*parked, last]] == [4, 4, 4]


def test_members_that_join_an_empty_group_with_another_assignor_are_upgraded_before_their_first_generation() -> None:
    driver = ConsumerDriver(replace(CONFIG, initial_rebalance_delay_ms=3_000))
    former = driver.join(protocols=metadata())
    driver.advance(3_000)
    driver.leave(former.joined.member_id)
    parked = driver.join(protocols=(("range", metadata()[0][1]),))
    assert parked.answer is None
    assert error(driver.enter("new")) is ErrorCode.NONE
    assert parked.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert set(driver.consumers.members) == {"new", parked.joined.member_id}


def test_group_that_was_upgraded_and_downgraded_has_the_same_members_as_before() -> None:
    driver = ConsumerDriver(CONFIG)
    distinct_members(driver)
    before = classic(driver)
    epoch = driver.enter("new", "other").member_epoch  # reads another topic, so no partition has to move
    driver.advance(100)
    driver.beat("new", epoch)
    driver.beat("new", -1)
    after = classic(driver)
    assert after is not before
    assert described(after) == described(before)
    assert after.state == "PreparingRebalance"
    assert after.generation == epoch
    assert (after.protocol_type, after.protocol) == ("consumer", "cooperative-sticky")
    assert after.subscribed_topics == frozenset({"t"})
    assert (after.static_members, after.leader) == (before.static_members, next(iter(after.members)))
    assert after.members_bytes == sum(each.held_bytes for each in after.members.values()) == before.members_bytes
    deadlines = [each.session.deadline_ms for each in after.members.values()]
    assert deadlines == [100 + options["session_ms"] for options in OPTIONS]
    loaded = classic(driver.reload())
    assert described(loaded) == described(after)
    assert loaded.generation == epoch


@pytest.mark.parametrize(
    ("most", "expected"),
    [(1, ErrorCode.GROUP_ID_NOT_FOUND), (2, ErrorCode.GROUP_MAX_SIZE_REACHED), (3, ErrorCode.NONE)],
)
def test_classic_group_is_upgraded_if_a_consumer_group_may_have_as_many_members(most: int, expected: ErrorCode) -> None:
    driver = ConsumerDriver(replace(CONFIG, consumer_max_size=most))
    classic_pair(driver)
    assert error(driver.enter("new")) is expected
    assert isinstance(driver.shard.groups["g"], ConsumerGroup) == (expected is ErrorCode.NONE)


@pytest.mark.parametrize(("protocol_type", "upgrades"), [("consumer", True), ("connect", False)])
def test_only_a_classic_group_of_consumers_is_upgraded(protocol_type: str, upgrades: bool) -> None:
    driver = ConsumerDriver(CONFIG)
    waiting = driver.join(protocol_type=protocol_type, protocols=metadata())
    driver.sync(waiting.joined.member_id, 1)
    assert error(driver.enter("new")) is (ErrorCode.NONE if upgrades else ErrorCode.GROUP_ID_NOT_FOUND)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_consumer_group_is_downgraded_if_a_classic_group_may_have_as_many_members(most: int) -> None:
    driver = ConsumerDriver(CONFIG)
    classic_pair(driver)
    driver.enter("new")
    driver.shard.config = replace(CONFIG, max_size=most)
    driver.beat("new", -1)
    assert isinstance(driver.shard.groups["g"], ClassicGroup) == (most >= 2)


# --- classic members of a consumer group


@pytest.mark.parametrize("rebalance_ms", [-1, 0, 5])
@pytest.mark.parametrize("rack", [None, "s"])
def test_join_with_the_classic_protocol_replaces_all_fields_of_a_member(rebalance_ms: int, rack: str | None) -> None:
    driver = ConsumerDriver(CONFIG, {"t": 4, "u": 1})
    driver.enter("other")
    driver.enter("new", instance_id="i", rack_id="r", subscribed_topic_regex="x.*", server_assignor="range")
    subscription = ConsumerProtocolSubscription(topics=["u", "t", "u"], rack_id=rack)
    protocols = (("cooperative-sticky", b"\x00\x03" + encode(subscription, 3)), ("range", b""))
    options: dict[str, Any] = {"instance": "i", "protocols": protocols, "session_ms": 8_000, "client": "z"}
    waiting = driver.join("new", rebalance_ms=rebalance_ms, version=5, **options)
    member = driver.consumers.members["new"]
    assert waiting.joined.generation_id == member.epoch
    assert waiting.joined.protocol_name == "cooperative-sticky"
    assert (member.instance_id, member.rack_id, member.client_id) == ("i", rack or "r", "z")
    assert (member.topics, member.regex) == (("t", "u"), None)
    assert member.rebalance_timeout_ms == (8_000 if rebalance_ms < 0 else rebalance_ms)
    assert member.classic == ClassicMembership(8_000, protocols)
    assert driver.consumers.sessions["new"].deadline_ms == 8_000
    assert driver.reload().consumers.members["new"] == member


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("instance", [None, "i"])
def test_only_a_dynamic_member_gets_a_member_id_before_it_joins_since_version_4(
    version: int, instance: str | None
) -> None:
    driver = ConsumerDriver(CONFIG)
    driver.enter("new")
    waiting = driver.join(protocols=metadata(), version=version, instance=instance)
    handed = version >= 4 and instance is None
    assert waiting.error is (ErrorCode.MEMBER_ID_REQUIRED if handed else ErrorCode.NONE)
    member = driver.consumers.members.get(waiting.joined.member_id)
    assert (member is None) == handed
    if member is not None:
        assert (member.client_id, member.client_host, member.instance_id) == ("client", "/127.0.0.1", instance)


@pytest.mark.parametrize("rejoins", [False, True])
@pytest.mark.parametrize("syncs", [False, True])
def test_classic_members_stay_in_a_consumer_group_exactly_if_they_rejoin_and_sync_in_time(
    rejoins: bool, syncs: bool
) -> None:
    driver = ConsumerDriver(CONFIG)
    ids = distinct_members(driver)
    epoch = driver.enter("new").member_epoch
    generations = dict.fromkeys(ids, 3)
    held = dict(zip(ids, ([0], [1, 2], [3])))
    joined: set[str] = set()
    for _ in range(20):
        driver.advance(4_000)
        epoch = driver.beat("new", epoch).member_epoch
        for member, options in zip(ids, OPTIONS):
            is_due = driver.heartbeat(member, generations[member]) is ErrorCode.REBALANCE_IN_PROGRESS
            if not is_due or not rejoins or (not syncs and member in joined):
                continue  # each join starts the time to sync again
            joined.add(member)
            waiting = driver.join(member, protocols=metadata(*held[member]), **options)
            generations[member] = waiting.joined.generation_id
            if syncs:
                held[member] = read(driver.sync(member, generations[member]))
    assert list(driver.consumers.members) == ([*ids, "new"] if rejoins and syncs else ["new"])


def test_refused_sync_of_a_classic_member_starts_its_time_to_rejoin() -> None:
    driver = ConsumerDriver(CONFIG)
    first, second, third = distinct_members(driver)
    epoch = driver.enter("new").member_epoch
    assert driver.sync(first, 3).error is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(4):
        driver.advance(4_999)
        epoch = driver.beat("new", epoch).member_epoch
        for member in (first, second, third):
            assert driver.heartbeat(member, 3) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.advance(4)
    assert list(driver.consumers.members) == [second, third, "new"]


def test_sync_of_a_classic_member_extends_its_session() -> None:
    driver = ConsumerDriver(CONFIG)
    first, *_ = distinct_members(driver)
    driver.enter("new")
    generation = driver.join(first, protocols=metadata(0), **OPTIONS[0]).joined.generation_id
    driver.advance(6_999)
    assert driver.sync(first, generation).error is ErrorCode.NONE
    driver.advance(6_999)
    assert first in driver.consumers.members


def test_consumer_that_rejoins_with_the_classic_protocol_after_its_revocation_is_not_removed() -> None:
    driver = ConsumerDriver(CONFIG)
    epoch = driver.enter("a", rebalance_timeout_ms=1_000).member_epoch
    other = driver.enter("b").member_epoch
    driver.beat("a", epoch, owned={"t": [0, 1, 2, 3]})  # has to revoke two partitions
    generation = driver.join("a", protocols=metadata(0, 1)).joined.generation_id
    driver.sync("a", generation)
    driver.advance(2_000)
    assert list(driver.consumers.members) == ["a", "b"]
    assert error(driver.beat("b", other)) is ErrorCode.NONE
    assert driver.consumers.owners[topic_id("t"), 3] == "b"


def test_classic_member_needs_a_protocol_that_every_other_classic_member_supports() -> None:
    driver = ConsumerDriver(CONFIG)
    driver.enter("new")
    data = metadata()[0][1]
    names: dict[str, tuple[str, ...]] = {}
    for given in (("a", "b", "c"), ("a", "b"), ("b", "c"), ("a",), ("c", "b"), ("d",)):
        common = set(given).intersection(*names.values())
        waiting = driver.join(protocols=tuple((name, data) for name in given))
        assert waiting.error is (ErrorCode.NONE if common else ErrorCode.INCONSISTENT_GROUP_PROTOCOL), given
        if common:
            names[waiting.joined.member_id] = given
    assert list(names.values()) == [("a", "b", "c"), ("a", "b"), ("b", "c"), ("c", "b")]
    [last] = [member for member, given in names.items() if given == ("c", "b")]
    assert driver.join(last, protocols=(("a", data),)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.join(last, protocols=(("b", data),)).error is ErrorCode.NONE, "its own protocols don't count"


@pytest.mark.parametrize("protocol_type", [None, "consumer", "connect"])
@pytest.mark.parametrize("name", [None, "cooperative-sticky", "range"])
def test_sync_of_a_classic_member_names_the_protocol_of_its_join_or_none(
    protocol_type: str | None, name: str | None
) -> None:
    driver = ConsumerDriver(CONFIG)
    driver.enter("new")
    joined = driver.join(protocols=metadata()).joined
    waiting = driver.sync(joined.member_id, joined.generation_id, protocol_type=protocol_type, protocol_name=name)
    matches = protocol_type != "connect" and name != "range"
    assert waiting.error is (ErrorCode.NONE if matches else ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if matches:
        assert (waiting.synced.protocol_type, waiting.synced.protocol_name) == (protocol_type, name)


def test_classic_member_is_refused_in_every_generation_but_its_own() -> None:
    driver = ConsumerDriver(CONFIG)
    epoch = driver.enter("new").member_epoch
    member = driver.join(protocols=metadata()).joined.member_id
    driver.beat("new", epoch)
    driver.beat("new", epoch, owned={"t": [0, 1]})
    generation = rejoin(driver, member)[0]
    assert generation == driver.consumers.epoch
    expected = {-1: ErrorCode.ILLEGAL_GENERATION, 0: ErrorCode.NONE, 1: ErrorCode.ILLEGAL_GENERATION}
    for shift, code in expected.items():
        assert driver.heartbeat(member, generation + shift) is code
        assert driver.sync(member, generation + shift).error is code
    driver.enter("third", "u")  # one epoch more
    assert driver.consumers.epoch == generation + 1
    assert driver.heartbeat(member, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.sync(member, generation).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_requests_of_a_replaced_static_member_with_the_classic_protocol_are_fenced() -> None:
    driver = ConsumerDriver(CONFIG)
    driver.enter("new")
    old = driver.join(instance="i", version=5, protocols=metadata()).joined
    current = driver.join(instance="i", version=5, protocols=metadata()).joined
    other = driver.join(instance="j", version=5, protocols=metadata()).joined.member_id
    assert driver.heartbeat(old.member_id, old.generation_id, instance="i") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.sync(old.member_id, old.generation_id, instance="i").error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.heartbeat(other, current.generation_id, instance="i") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.heartbeat(other, current.generation_id, instance="k") is ErrorCode.UNKNOWN_MEMBER_ID
    answers = driver.leave((old.member_id, "i"), (other, "i"), ("", "k"), ("new", None)).members
    assert [each.error_code for each in answers] == [
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert list(driver.consumers.members) == ["new", current.member_id, other]
    answers = driver.leave(("", "i"), (other, "j")).members
    assert [(each.member_id, each.error_code) for each in answers] == [(current.member_id, 0), (other, 0)]
    assert list(driver.consumers.members) == ["new"]


def test_classic_member_that_sends_a_consumer_heartbeat_no_longer_counts_as_classic() -> None:
    driver = ConsumerDriver(CONFIG)
    driver.enter("new")
    member = driver.join(protocols=metadata()).joined.member_id
    assert driver.consumers.members[member].classic is not None
    assert error(driver.enter(member)) is ErrorCode.NONE
    assert driver.consumers.members[member].classic is None
    assert driver.heartbeat(member, driver.consumers.members[member].epoch) is ErrorCode.UNKNOWN_MEMBER_ID
    driver.beat("new", -1)
    assert isinstance(driver.shard.groups["g"], ConsumerGroup), "no classic member is left to downgrade for"


def test_members_of_a_full_consumer_group_can_change_their_subscriptions_and_rejoin() -> None:
    driver = ConsumerDriver(replace(CONFIG, consumer_max_size=2), {"t": 2, "u": 1})
    epoch = driver.enter("a").member_epoch
    driver.enter("b")
    assert error(driver.beat("a", epoch, subscribed_topic_names=["u"])) is ErrorCode.NONE
    assert driver.consumers.members["a"].topics == ("u",)
    assert error(driver.enter("a", "t", "u")) is ErrorCode.NONE
    assert error(driver.enter("c")) is ErrorCode.GROUP_MAX_SIZE_REACHED
