"""Tests what a coordinator does with requests to every kind of group, with tombstones and with deleted topics."""

from __future__ import annotations

from copy import deepcopy
from itertools import combinations

import pytest
from consumer_driver import topic_id
from group_driver import Driver
from share_driver import ShareDriver
from streams_driver import StreamsDriver
from test_classic_static import static_group
from test_group_shard import all_protocols

from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.config import GroupConfig
from penstock.groups.share.group import ShareGroup
from penstock.protocol.errors import ErrorCode

NAMES = [f"{kind}{number}" for kind in ("classic", "consumer", "share", "streams") for number in (1, 2)]


@pytest.mark.parametrize("group", ["", "missing", "share1", "share2", "streams1", "streams2"])
def test_classic_requests_to_a_group_of_another_protocol_are_refused_and_change_nothing(group: str) -> None:
    driver = all_protocols()
    before = deepcopy(driver.shard.remembered())
    unknown = ErrorCode.INVALID_GROUP_ID if not group else ErrorCode.UNKNOWN_MEMBER_ID
    is_other = group not in ("", "missing")
    joins = ErrorCode.INCONSISTENT_GROUP_PROTOCOL if is_other else unknown
    assert driver.join("a", group=group).error is joins
    assert driver.join("a", group=group, version=9).error is joins
    assert driver.sync("a", 1, group=group).error is unknown
    assert driver.heartbeat("a", 1, group=group) is unknown
    answer = driver.leave("a", ("b", "i"), group=group)
    assert answer.error_code == (0 if group else unknown)
    assert [each.error_code for each in answer.members] == [unknown] * (2 if group else 0)
    assert driver.shard.remembered() == before
    if is_other:
        assert driver.join(group=group).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert len(driver.shard.groups[group].members) == 2


def test_tombstones_create_no_group_and_delete_only_their_own_group() -> None:
    driver = all_protocols()
    for name in NAMES[:6]:
        driver.commit({("t", 0): 1}, group=name)
    driver.commit({("t", 0): 1}, group="offsets only")
    keys = dict(driver.journal)
    empty = Driver(driver.config)
    empty.replay([(key, None) for key in keys])
    assert empty.shard.groups == {}
    assert empty.shard.remembered() == Driver(driver.config).shard.remembered()
    for name in NAMES:
        own = [key for key in keys if name.encode() in key]
        assert own
        other = driver.reload()
        other.replay([*driver.journal, *((key, None) for key in own)])
        assert set(other.shard.groups) == {*NAMES, "offsets only"} - {name}


def test_offsets_of_a_topic_that_was_created_again_stay_when_another_topic_is_deleted() -> None:
    driver = ShareDriver(topics={"t": 1, "u": 1})
    driver.commit({("t", 0): 1, ("u", 0): 1})
    driver.see({"u": 1})
    driver.advance(0)
    driver.see({"t": 1, "u": 1})
    driver.commit({("t", 0): 2})
    driver.see({"t": 1})
    driver.advance(0)
    assert driver.fetch() == {("t", 0): 2}


def test_deleted_topics_are_removed_from_the_states_of_every_share_group() -> None:
    driver = ShareDriver(topics={"t": 2, "u": 1, "v": 1})
    driver.join(group="classic")
    reads = {"g1": ["t", "u"], "g2": ["v", "u"], "g3": ["t"]}
    for group, topics in reads.items():
        driver.share_beat("a", 0, group_id=group, subscribed_topic_names=topics)
    driver.see({"t": 2})
    driver.advance(0)
    for group, topics in reads.items():
        found = driver.shard.groups[group]
        assert isinstance(found, ShareGroup)
        assert found.states.names == {topic_id(name): name for name in topics if name == "t"}
        assert set(found.states.initializing) == set(found.states.names)


# --- timeouts of classic groups


def end_of_delay(delay_ms: int, timeout_ms: int, joins: list[int]) -> int:
    """Returns when the first join phase ends: a delay in which a member joined is repeated, up to the timeout."""
    start, end = 0, delay_ms
    while end < timeout_ms and any(start < join <= end for join in joins):
        start, end = end, min(end + delay_ms, timeout_ms)
    return end


@pytest.mark.parametrize("timeout_ms", [0, 200, 300, 301, 600, 750, 900, 5_000])
def test_first_join_phase_is_extended_while_members_join_but_not_beyond_the_rebalance_timeout(timeout_ms: int) -> None:
    times = [50, 350, 450, 650, 950]
    for count in range(len(times) + 1):
        for joins in combinations(times, count):
            driver = Driver(GroupConfig(initial_rebalance_delay_ms=300))
            first = driver.join(rebalance_ms=timeout_ms)
            end = max(end_of_delay(300, timeout_ms, list(joins)), 300)
            for time in joins:
                if time < end:
                    driver.advance(time - driver.now_ms)
                    driver.join(rebalance_ms=timeout_ms)
            driver.advance(end - 1 - driver.now_ms)
            assert first.answer is None, (joins, end)
            driver.advance(1)
            assert first.joined.generation_id == 1, (joins, end)
            assert len(first.joined.members) == 1 + sum(time < end for time in joins)


@pytest.mark.parametrize(("given_ms", "expected_ms"), [(-1, 10_000), (0, 0), (5, 5)])
def test_rebalance_timeout_of_a_classic_member_is_its_session_timeout_only_if_it_gives_none(
    given_ms: int, expected_ms: int
) -> None:
    driver = Driver()
    waiting = driver.join(rebalance_ms=given_ms, session_ms=10_000)
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert group.members[waiting.joined.member_id].rebalance_timeout_ms == expected_ms
    driver.join(waiting.joined.member_id, rebalance_ms=given_ms, session_ms=20_000, protocols=(("range", b"x"),))
    assert group.members[waiting.joined.member_id].rebalance_timeout_ms == (20_000 if given_ms < 0 else given_ms)


@pytest.mark.parametrize("instance", ["a", "b"])
def test_restart_of_a_static_member_extends_its_session(instance: str) -> None:
    driver = Driver()
    ids: dict[str, str] = {}
    for name in ("a", "b"):
        waiting = driver.join(instance=name, version=5, session_ms=10_000)
        for other, member in ids.items():
            driver.join(member, instance=other, version=5, session_ms=10_000)
        ids[name] = waiting.joined.member_id
    for name, member in ids.items():
        driver.sync(member, 2, instance=name)
    driver.advance(9_999)
    new = driver.join(instance=instance, version=5, session_ms=10_000).joined.member_id
    other = "b" if instance == "a" else "a"
    assert driver.heartbeat(ids[other], 2, instance=other) is ErrorCode.NONE
    driver.advance(9_999)
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    assert group.state is State.STABLE
    assert set(group.members) == {new, ids[other]}


@pytest.mark.parametrize("version", [5, 9])
@pytest.mark.parametrize("instance", ["a", "b"])
@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_COORDINATOR])
def test_restarted_static_member_gets_the_error_of_a_record_that_was_not_committed(
    code: ErrorCode, instance: str, version: int
) -> None:
    driver = Driver()
    static_group(driver)
    driver.hold_commits = True
    waiting = driver.join(instance=instance, version=version)
    driver.release_commits(code)
    assert waiting.error is code
    assert (waiting.joined.member_id == "") == (code is not ErrorCode.NONE)
    assert waiting.joined.generation_id == (2 if code is ErrorCode.NONE else -1)


def test_member_id_that_expires_unused_does_not_change_a_group_that_has_no_members_left() -> None:
    driver = Driver()
    [member] = driver.stable()
    driver.leave(member)
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    generation, written = group.generation, len(driver.journal)
    for _ in range(2):
        assert driver.join(version=9).error is ErrorCode.MEMBER_ID_REQUIRED
    assert len(group.pending_members) == 2
    driver.advance(60_000)
    assert (group.state, group.generation, group.pending_members) == (State.EMPTY, generation, {})
    assert len(driver.journal) == written


@pytest.mark.parametrize("kind", ["consumer", "streams"])
def test_classic_group_that_replaced_an_empty_group_leaves_no_record_of_either_when_it_is_deleted(kind: str) -> None:
    driver = StreamsDriver()
    for member in ("a", "b"):
        driver.enter(member) if kind == "consumer" else driver.come(member)
    for member in ("a", "b"):
        driver.beat(member, -1) if kind == "consumer" else driver.stream_beat(member, -1)
    [member] = driver.stable()
    driver.leave(member)
    assert driver.delete() is ErrorCode.NONE
    assert {key for key, value in dict(driver.journal).items() if value is not None} == set()
