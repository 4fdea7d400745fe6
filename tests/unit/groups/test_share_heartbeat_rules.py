"""Compares each answer to a share group's heartbeats with plain rules, and tests members that leave and come back."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from consumer_driver import topic_id
from share_driver import ShareDriver, parts

from penstock.groups import share_requests
from penstock.groups.config import GroupConfig
from penstock.groups.share.group import ShareMember
from penstock.groups.share.heartbeat import INITIALIZING_HEARTBEAT_MS
from penstock.groups.turn import Caller
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_76_share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

MEMBERS = "abc"
TOPICS = {"t": 2, "u": 3, "v": 1}
SESSION_MS = 10_000
CONFIG = GroupConfig(
    share_assignment_interval_ms=0, share_max_size=3, share_session_timeout_ms=SESSION_MS, share_initialize_retry_ms=500
)


def send(driver: ShareDriver, member: str, epoch: int, caller: Caller, **fields: Any) -> ShareGroupHeartbeatResponse:
    request = ShareGroupHeartbeatRequest(group_id="g", member_id=member, member_epoch=epoch, **fields)
    return driver.run(lambda turn: share_requests.share_heartbeat(driver.shard, turn, request, caller))


def named(driver: ShareDriver, member: ShareMember) -> dict[str, list[int]]:
    """Returns the member's partitions of topics that exist."""
    names = {topic.topic_id: name for name, topic in driver.shard.image.topics.items()}
    return {names[topic]: sorted(some) for topic, some in member.assigned.items() if topic in names}


def beat(driver: ShareDriver, random: Random, member_id: str) -> str:
    """Sends a heartbeat and compares the answer with the member's state. Returns what the answer contains."""
    has_group = "g" in driver.shard.groups
    before = driver.group.members.get(member_id) if has_group else None
    joins = before is None or random.random() < 0.1
    fields: dict[str, Any] = {}
    if joins or random.random() < 0.2:
        fields["subscribed_topic_names"] = random.sample(sorted(TOPICS), random.randint(1, 3)) * random.randint(1, 2)
    if random.random() < 0.2:
        fields["rack_id"] = random.choice("rs")
    caller = Caller(random.choice("xy"), random.choice(("/1", "/2")), 1)
    asked = len(driver.asked)
    known = 0 if before is None else random.choice((before.epoch, before.epoch, before.previous_epoch))
    if known < 0 or joins:
        known = 0
    full = known == 0 or "subscribed_topic_names" in fields
    if known == 0 and "subscribed_topic_names" not in fields:
        fields["subscribed_topic_names"] = ["t"]
    response = send(driver, member_id, known, caller, **fields)
    assert ErrorCode(response.error_code) is ErrorCode.NONE
    member = driver.group.members[member_id]
    former = before or ShareMember(member_id)
    assert member.rack_id == fields.get("rack_id", former.rack_id)
    assert (member.client_id, member.client_host) == (caller.client_id, caller.client_host)
    assert member.topics == tuple(sorted(set(fields.get("subscribed_topic_names", former.topics))))
    assert (response.member_id, response.member_epoch) == (member_id, member.epoch)
    shows = full or member.assigned != former.assigned
    assert parts(response) == (named(driver, member) if shows else None)
    waits = len(driver.asked) > asked or bool(driver.group.states.initializing)
    usual = driver.config.share_heartbeat_interval_ms
    assert response.heartbeat_interval_ms == (min(usual, INITIALIZING_HEARTBEAT_MS) if waits else usual)
    assert driver.group.sessions[member_id].deadline_ms == driver.now_ms + SESSION_MS
    if member.epoch != former.epoch:
        assert member.assigned == driver.group.target[member_id]
    return "full" if full else "changed" if shows else "nothing"


def test_each_heartbeat_of_a_share_member_is_answered_by_the_rules() -> None:
    seen: set[str] = set()
    for seed in range(20):
        random = Random(seed)
        driver = ShareDriver(CONFIG, TOPICS)
        for _ in range(60):
            members = dict(driver.group.members) if "g" in driver.shard.groups else {}
            match random.randrange(10):
                case 0 | 1:
                    seen.add(beat(driver, random, random.choice(MEMBERS)))
                case 2 | 3 | 4 | 5 if members:
                    seen.add(beat(driver, random, random.choice(sorted(members))))
                case 6 if members:
                    gone = random.choice(sorted(members))
                    response = driver.share_beat(gone, -1)
                    assert (response.member_id, response.member_epoch) == (gone, -1)
                    left = driver.group
                    assert not {gone} & (left.members.keys() | left.target.keys() | left.sessions.keys())
                case 7 if members:
                    driver.create_states()
                case 8:
                    driver.see({name: count for name, count in TOPICS.items() if random.random() < 0.9})
                    driver.advance(0)
                case 9:
                    driver.advance(random.choice((1, 500, 6_000)))
    assert seen == {"full", "changed", "nothing"}


@pytest.mark.parametrize("reloaded", [False, True])
def test_every_silent_share_member_is_removed_exactly_when_its_session_ends(reloaded: bool) -> None:
    driver = ShareDriver(CONFIG, TOPICS)
    for member in MEMBERS:
        driver.come(member)
        driver.advance(10)
    if reloaded:
        driver = driver.reload()
        driver.advance(SESSION_MS - 1)
        assert set(driver.group.members) == set(MEMBERS)
        driver.advance(1)
        assert not driver.group.members
        return
    driver.advance(SESSION_MS - 31)
    for left in ("abc", "bc", "c", ""):
        assert set(driver.group.members) == set(left)
        driver.advance(1)
        assert set(driver.group.members) == set(left[1:])
        driver.advance(9)


def test_full_share_group_accepts_its_own_members_and_another_member_after_one_has_left() -> None:
    driver = ShareDriver(CONFIG, TOPICS)
    for member in MEMBERS:
        assert ErrorCode(driver.come(member).error_code) is ErrorCode.NONE
    assert ErrorCode(driver.come("d").error_code) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert ErrorCode(driver.come("b").error_code) is ErrorCode.NONE
    driver.share_beat("a", -1)
    assert ErrorCode(driver.come("d").error_code) is ErrorCode.NONE
    assert set(driver.group.members) == set("bcd")


def test_refused_share_heartbeat_requests_no_states_and_leaves_no_group() -> None:
    driver = ShareDriver(CONFIG, TOPICS)
    for member in MEMBERS:
        driver.come(member, "t")
    asked, journal = list(driver.asked), list(driver.journal)
    assert ErrorCode(driver.come("d", "u").error_code) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert ErrorCode(driver.share_beat("a", 0, subscribed_topic_names=[]).error_code) is ErrorCode.INVALID_REQUEST
    assert ErrorCode(driver.share_beat("a", 99, subscribed_topic_names=["u"]).error_code) is (
        ErrorCode.FENCED_MEMBER_EPOCH
    )
    assert (driver.asked, driver.journal) == (asked, journal)
    assert list(driver.shard.groups) == ["g"]


def test_share_group_is_described_with_all_members_and_the_existing_topics_of_each() -> None:
    driver = ShareDriver(CONFIG, TOPICS)
    driver.come("a", "t", "u")
    driver.come("b", "u", "v")
    driver.create_states()
    for member in "abab":
        driver.share_beat(member, driver.group.members[member].epoch)
    driver.see({"t": 2, "v": 1})
    group = driver.run(lambda turn: share_requests.describe_share_group(driver.shard, turn, "g"))
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == (
        "Stable",
        driver.group.epoch,
        driver.group.assignment_epoch,
    )
    found = {
        each.member_id: {one.topic_name: one.partitions for one in each.assignment.topic_partitions}
        for each in group.members
    }
    assert found == {each: named(driver, member) for each, member in driver.group.members.items()}
    assert set(found["b"]) <= {"v"}
    assert any(topic_id("u") in member.assigned for member in driver.group.members.values())
    driver.join(group="classic")
    for name in ("classic", "unknown"):
        refused = driver.run(lambda turn, name=name: share_requests.describe_share_group(driver.shard, turn, name))  # type: ignore[misc]
        assert (refused.group_id, ErrorCode(refused.error_code)) == (name, ErrorCode.GROUP_ID_NOT_FOUND)
