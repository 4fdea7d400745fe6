"""Tests classic groups that have only handed out member ids, and members that end their streams application."""

from __future__ import annotations

import pytest
from group_driver import SESSION_MS
from streams_driver import StreamsDriver, code, statuses
from test_group_migration import metadata

from penstock.groups.classic.group import ClassicGroup
from penstock.groups.streams.topics import Status
from penstock.protocol.errors import ErrorCode


@pytest.mark.parametrize("protocol", ["consumer", "streams"])
def test_group_stays_classic_until_its_last_handed_out_member_id_ends(protocol: str) -> None:
    driver = StreamsDriver()

    def enter() -> ErrorCode:
        return ErrorCode(driver.enter("a").error_code) if protocol == "consumer" else code(driver.come("a"))

    for _ in range(2):
        assert driver.join(version=4, protocols=metadata()).error is ErrorCode.MEMBER_ID_REQUIRED
        driver.advance(1_000)
    written = list(driver.journal)
    for step in (0, SESSION_MS - 2_000, 999):
        driver.advance(step)
        assert enter() is ErrorCode.GROUP_ID_NOT_FOUND
        assert isinstance(driver.shard.groups["g"], ClassicGroup)
        assert driver.journal == written
    driver.advance(1)
    assert enter() is ErrorCode.NONE
    assert not isinstance(driver.shard.groups["g"], ClassicGroup)


@pytest.mark.parametrize("protocol", ["consumer", "streams"])
def test_client_joins_with_its_member_id_after_a_member_of_another_protocol_was_refused(protocol: str) -> None:
    driver = StreamsDriver()
    member = driver.join(version=4, protocols=metadata()).answer.member_id
    driver.enter("a") if protocol == "consumer" else driver.come("a")
    assert driver.join(member, version=4, protocols=metadata()).joined.generation_id == 1


def test_application_is_shut_down_by_the_first_member_that_requests_it() -> None:
    driver = StreamsDriver()
    for member in "abcd":
        driver.come(member)
    driver.stream_beat("a", -1, shutdown_application=True)
    driver.stay("b", shutdown_application=True)
    driver.stream_beat("c", -1, shutdown_application=True)
    for member in "bd":
        answer = driver.stay(member)
        assert Status.SHUTDOWN_APPLICATION in statuses(answer)
        [detail] = [
            each.status_detail for each in answer.status or () if each.status_code == Status.SHUTDOWN_APPLICATION
        ]
        assert detail.startswith("Streams group member a ")
