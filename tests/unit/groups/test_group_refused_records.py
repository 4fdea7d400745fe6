"""Tests that a heartbeat whose records the log refuses changes nothing in the coordinator's memory."""

from __future__ import annotations

from streams_driver import StreamsDriver, listed

from penstock.groups.classic.group import ClassicGroup


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
