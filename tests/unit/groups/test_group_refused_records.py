"""Tests that a heartbeat or join whose records the log refuses changes nothing in the coordinator's memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from group_driver import SESSION_MS
from streams_driver import EAGER, StreamsDriver, listed

from penstock.groups.classic.group import ClassicGroup
from penstock.protocol.errors import ErrorCode


def test_streams_join_whose_records_are_refused_leaves_no_group() -> None:
    driver = StreamsDriver()
    driver.refuse_records = True
    driver.come("a")
    assert not driver.shard.groups
    driver.refuse_records = False
    assert listed(driver.come("b").active_tasks) == {"0": [0, 1, 2, 3]}


def test_streams_join_whose_records_are_refused_leaves_the_empty_classic_group_unchanged() -> None:
    driver = StreamsDriver()
    driver.commit({("t", 0): 7})
    driver.refuse_records = True
    driver.come("a")
    assert isinstance(driver.shard.groups["g"], ClassicGroup)


def test_streams_join_whose_records_are_refused_leaves_no_timer_in_a_group_with_members() -> None:
    driver = StreamsDriver()
    driver.come("a")
    driver.refuse_records = True
    driver.come("b", shutdown_application=True)
    assert list(driver.group.sessions) == ["a"]
    assert driver.group.shutdown_by is None


def test_topic_change_is_noticed_after_the_records_of_an_earlier_heartbeat_were_refused() -> None:
    driver = StreamsDriver()
    driver.come("a")
    driver.see({"t": 6})
    driver.refuse_records = True
    driver.stay("a")
    driver.refuse_records = False
    assert listed(driver.stay("a").active_tasks) == {"0": [0, 1, 2, 3, 4, 5]}


def test_consumer_join_whose_records_are_refused_leaves_no_group() -> None:
    driver = StreamsDriver()
    driver.refuse_records = True
    driver.enter("c")
    assert not driver.shard.groups


def test_refused_heartbeat_of_a_streams_member_keeps_its_session_timeout() -> None:
    driver = StreamsDriver()
    driver.come("a")
    driver.refuse_records = True
    driver.stay("a", rack_id="other")
    driver.refuse_records = False
    driver.advance(driver.config.streams_session_timeout_ms)
    assert "g" not in driver.shard.groups or not driver.group.members


def emptied(kind: str) -> StreamsDriver:
    """Returns a coordinator of a group without members; classic groups begin their first generation after a delay."""
    driver = StreamsDriver(replace(EAGER, initial_rebalance_delay_ms=3_000))
    if kind == "consumer":
        driver.enter("a")
        driver.beat("a", -1)
    elif kind == "streams":
        driver.come("a")
        driver.stream_beat("a", -1)
    return driver


@pytest.mark.parametrize("kind", ["consumer", "streams", "none"])
@pytest.mark.parametrize("options", [{}, {"instance": "i", "version": 5}, {"version": 4}], ids=str)
def test_classic_join_whose_records_are_refused_changes_no_group(kind: str, options: dict[str, Any]) -> None:
    driver = emptied(kind)
    groups, state = dict(driver.shard.groups), driver.shard.remembered()
    driver.refuse_records = True
    refused = driver.join(**options)
    driver.refuse_records = False
    assert refused.answer is not None, "no later answer can come from a group that does not exist"
    assert driver.shard.groups == groups
    assert all(driver.shard.groups[name] is group for name, group in groups.items())
    assert driver.reload().shard.remembered() == state
    driver.advance(SESSION_MS)
    assert driver.shard.remembered() == state, "no timer of the refused join is left"


@pytest.mark.parametrize("kind", ["consumer", "streams"])
def test_group_is_replaced_by_a_later_classic_join_and_leaves_no_record_when_it_is_deleted(kind: str) -> None:
    driver = emptied(kind)
    driver.refuse_records = True
    driver.join()
    driver.refuse_records = False
    accepted = driver.join()
    driver.advance(3_000)
    member = accepted.joined.member_id
    assert [each.member_id for each in accepted.joined.members] == [member]
    driver.leave(member)
    assert driver.delete() is ErrorCode.NONE
    assert {key for key, value in dict(driver.journal).items() if value is not None} == set()
