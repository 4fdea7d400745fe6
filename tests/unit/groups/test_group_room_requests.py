"""Tests that a request asks the coordinator's allowance for the memory by which it lets a group grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from group_driver import Driver
from share_driver import ShareDriver
from streams_driver import StreamsDriver, plain, topology

from penstock.allowance import Allowance
from penstock.groups.classic.group import ClassicGroup
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_88_streams_group_heartbeat import Endpoint, KeyValue

LONG = "x" * 10_000
SMALL = 400  # bytes of a group's fields that the estimate leaves out


class Asked(Allowance):
    """Grants all memory, and keeps the sizes of which it was asked; refuses everything once `is_full` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.is_full = False

    def grant(self, size: int, now_ms: int) -> bool:
        self.sizes.append(size)
        return size <= 0 or not self.is_full


def observed(driver: Driver, act: Callable[[], Any]) -> tuple[list[int], int]:
    """Returns the sizes of which the action asked, and the growth of the memory in use."""
    allowance = driver.shard.allowance = Asked()
    before = driver.shard.held_bytes()
    act()
    return allowance.sizes, driver.shard.held_bytes() - before


def fill(driver: Driver) -> None:
    allowance = driver.shard.allowance = Asked()
    allowance.is_full = True


JOINS: list[dict[str, Any]] = [
    {},
    {"group": LONG},
    {"instance": LONG, "version": 5},
    {"instance": "i", "version": 5, "protocols": (("range", LONG.encode()),)},
    {"client": LONG},
    {"protocols": ((LONG, b"1"), ("range", b"2"))},
    {"protocols": (("range", b"1"), ("other", LONG.encode()))},
]


@pytest.mark.parametrize("fields", JOINS)
def test_join_of_a_new_member_asks_for_the_memory_by_which_its_group_grows(fields: dict[str, Any]) -> None:
    driver = Driver()
    [size], growth = observed(driver, lambda: driver.join(**fields))
    assert abs(size - growth) < SMALL
    [size], growth = observed(driver, lambda: driver.join(**{**fields, "instance": None, "version": 3}))
    assert abs(size - growth) < SMALL, "the second member of the group"


@pytest.mark.parametrize("fields", JOINS)
def test_join_of_a_known_member_asks_only_for_the_memory_by_which_it_grows(fields: dict[str, Any]) -> None:
    driver = Driver()
    options = {**fields, "protocols": (("range", b""),)}
    member = driver.join(**options).joined.member_id
    [size], growth = observed(driver, lambda: driver.join(member, **fields))
    assert abs(size - growth) < SMALL


@pytest.mark.parametrize(("version", "counts"), [(3, True), (4, False), (9, False)])
def test_protocols_count_in_the_request_that_adds_the_member(version: int, counts: bool) -> None:
    driver = Driver()
    protocols = (("range", LONG.encode()),)
    waiting = []
    [first], growth = observed(driver, lambda: waiting.append(driver.join(protocols=protocols, version=version)))
    assert abs(first - growth) < SMALL
    assert (first > len(LONG)) is counts
    if not counts:
        member = waiting[0].joined.member_id
        [second], growth = observed(driver, lambda: driver.join(member, protocols=protocols, version=version))
        assert second > len(LONG)
        assert abs(second - growth) < SMALL


def test_sync_of_the_leader_asks_for_the_memory_of_all_assignments_but_not_of_those_they_replace() -> None:
    driver = Driver()
    leader, other = driver.stable(2)
    fill(driver)
    driver.join(leader)
    generation = driver.join(other).joined.generation_id
    given = {leader: LONG.encode(), other: b"short", "ghost": LONG.encode()}
    sizes, growth = observed(driver, lambda: driver.sync(leader, generation, given))
    assert sizes == [growth]
    assert growth > len(LONG) - 100


def test_only_the_sync_with_the_assignments_of_a_generation_is_refused_at_the_memory_limit() -> None:
    driver = Driver()
    leader, other = driver.stable(2)
    driver.join(leader)
    generation = driver.join(other).joined.generation_id
    fill(driver)
    given = {leader: LONG.encode(), other: LONG.encode()}
    waiting = driver.sync(other, generation, given)
    assert waiting.answer is None, "a member that is not the leader waits"
    assert driver.sync(leader, generation, given).error is ErrorCode.POLICY_VIOLATION
    driver.shard.allowance = Asked()
    assert driver.sync(leader, generation, {}).error is ErrorCode.NONE
    fill(driver)
    assert driver.sync(leader, generation, given).error is ErrorCode.NONE, "the group is stable"
    assert waiting.error is ErrorCode.NONE


CONSUMER_FIELDS: list[dict[str, Any]] = [
    {"subscribed_topic_names": [LONG, "t"]},
    {"subscribed_topic_regex": "x" * 200},
    {"rack_id": LONG},
    {"server_assignor": "range"},
    {"subscribed_topic_names": []},
]


@pytest.mark.parametrize("fields", [*CONSUMER_FIELDS, {"instance_id": LONG}, {"group_id": LONG}])
def test_first_heartbeat_of_a_consumer_asks_for_the_memory_by_which_its_group_grows(fields: dict[str, Any]) -> None:
    driver = StreamsDriver()
    [size], growth = observed(driver, lambda: driver.enter("m", **fields))
    assert abs(size - growth) < SMALL
    fields.pop("instance_id", None)
    [size], growth = observed(driver, lambda: driver.enter("n", **fields))
    assert size == growth, "the second member of the group"
    assert size > 1_000


@pytest.mark.parametrize("fields", CONSUMER_FIELDS)
def test_later_heartbeat_of_a_consumer_asks_only_for_what_it_changes(fields: dict[str, Any]) -> None:
    driver = StreamsDriver()
    epoch = driver.enter("m", instance_id="i").member_epoch
    [size], growth = observed(driver, lambda: driver.beat("m", epoch, instance_id="i", **fields))
    assert size == growth
    epoch = driver.consumers.members["m"].epoch
    assert observed(driver, lambda: driver.beat("m", epoch, instance_id="i"))[0] == []
    assert observed(driver, lambda: driver.beat("m", -2, instance_id="i"))[0] == []
    [size], growth = observed(driver, lambda: driver.enter("n", instance_id="i", **fields))
    assert size == growth == 0, "it takes the place of the static member"


def test_share_heartbeats_ask_for_the_memory_by_which_the_group_grows() -> None:
    driver = ShareDriver()
    [size], growth = observed(driver, lambda: driver.come(LONG, "t"))
    assert abs(size - growth) < SMALL
    assert growth > len(LONG)
    joining = {"subscribed_topic_names": ["t"], "rack_id": LONG}
    [size], growth = observed(driver, lambda: driver.share_beat("b", 0, **joining))
    assert size == growth > len(LONG)
    [size], growth = observed(driver, lambda: driver.share_beat("b", 0, **joining))
    assert size == growth == 0
    epoch = driver.group.members["b"].epoch
    longer = {"subscribed_topic_names": ["t", LONG], "rack_id": LONG}
    [size], growth = observed(driver, lambda: driver.share_beat("b", epoch, **longer))
    assert size == growth > len(LONG)
    epoch = driver.group.members["b"].epoch
    assert observed(driver, lambda: driver.share_beat("b", epoch))[0] == []
    assert observed(driver, lambda: driver.share_beat("b", -1))[0] == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rack_id": LONG},
        {"process_id": LONG},
        {"user_endpoint": Endpoint(host=LONG, port=1)},
        {"client_tags": [KeyValue(key=LONG, value="1"), KeyValue(key="2", value=LONG)]},
        {"given": topology(plain("0", LONG), plain("1", LONG + "y"))},
    ],
)
def test_first_heartbeat_of_a_streams_member_asks_for_the_memory_by_which_its_group_grows(
    fields: dict[str, Any],
) -> None:
    driver = StreamsDriver()
    [size], growth = observed(driver, lambda: driver.come("a", **fields))
    assert abs(size - growth) < SMALL
    [size], growth = observed(driver, lambda: driver.come("b", **fields))
    assert size == growth
    [size], growth = observed(driver, lambda: driver.come("b", **fields))
    assert size == growth == 0
    assert observed(driver, lambda: driver.stay("b"))[0] == []
    assert observed(driver, lambda: driver.stream_beat("b", -1))[0] == []


def test_offset_commit_asks_for_the_memory_of_each_new_offset_and_of_longer_metadata() -> None:
    driver = Driver()
    [size], growth = observed(driver, lambda: driver.commit({("t", 0): 1}, metadata="12"))
    assert size == growth > 1_000, "with the group"
    sizes, growth = observed(driver, lambda: driver.commit({("t", 1): 1, ("t", 2): 1}, metadata="12"))
    assert sum(sizes) == growth < 1_000
    sizes, growth = observed(driver, lambda: driver.commit({("t", 0): 2}, metadata="12345"))
    assert (sizes, growth) == ([3], 3)
    sizes, growth = observed(driver, lambda: driver.commit({("t", 0): 2}, metadata=""))
    assert (sizes, growth) == ([-5], -5)


def test_memory_of_a_group_is_the_sum_of_its_parts() -> None:
    """Members, pending members, subscribed topics and names count, for every kind of group."""
    driver = StreamsDriver()
    member = driver.stable()[0]
    group = driver.shard.groups["g"]
    assert isinstance(group, ClassicGroup)
    before = driver.shard.held_bytes()
    group.subscribed_topics = frozenset({"a", "b", "c"})
    three = driver.shard.held_bytes()
    group.subscribed_topics = frozenset({"a"})
    assert three - driver.shard.held_bytes() == 2 * (driver.shard.held_bytes() - before) > 0
    group.subscribed_topics = None
    driver.leave(member)
    assert driver.shard.held_bytes() < before - 1_500
