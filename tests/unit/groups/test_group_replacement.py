"""Tests when a JoinGroup replaces an empty consumer or streams group with a classic group."""

from __future__ import annotations

from typing import Any

import pytest
from streams_driver import StreamsDriver

from penstock.groups.classic.group import ClassicGroup
from penstock.protocol.errors import ErrorCode

KINDS = ("consumer", "streams")
REFUSED: dict[ErrorCode, dict[str, Any]] = {
    ErrorCode.UNKNOWN_MEMBER_ID: {"member_id": "ghost"},
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: {"protocols": ()},
    ErrorCode.INVALID_SESSION_TIMEOUT: {"session_ms": 1},
}
ACCEPTED: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"instance": "i", "version": 5},
    "without a member id": {"version": 4},
}


def emptied(kind: str) -> StreamsDriver:
    """Returns a coordinator with an empty group that has one committed offset."""
    driver = StreamsDriver()
    if kind == "consumer":
        driver.enter("a")
        driver.beat("a", -1)
    else:
        driver.come("a")
        driver.stream_beat("a", -1)
    assert driver.commit({("t", 0): 7}) == [ErrorCode.NONE]
    return driver


def tombstones(driver: StreamsDriver, start: int) -> list[bytes]:
    return [key for key, value in driver.journal[start:] if value is None]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", REFUSED)
def test_refused_join_leaves_the_empty_group_and_its_offsets_unchanged(kind: str, error: ErrorCode) -> None:
    driver = emptied(kind)
    group, written = driver.shard.groups["g"], list(driver.journal)
    assert driver.join(**REFUSED[error]).error is error
    assert driver.shard.groups["g"] is group
    assert driver.journal == written
    assert driver.reload().shard.remembered() == driver.shard.remembered()
    assert driver.delete() is ErrorCode.NONE
    assert driver.fetch(("t", 0)) == {("t", 0): -1}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted_join_replaces_the_empty_group_and_erases_each_of_its_records_once(
    kind: str, options: dict[str, Any]
) -> None:
    driver = emptied(kind)
    living = {key for key, value in dict(driver.journal[:-1]).items() if value is not None}  # all but the offset
    start = len(driver.journal)
    driver.join(**options)
    assert isinstance(driver.shard.groups["g"], ClassicGroup)
    assert sorted(tombstones(driver, start)) == sorted(living)
    assert driver.fetch(("t", 0)) == {("t", 0): 7}
    driver.join(**options)
    assert len(tombstones(driver, start)) == len(living)
