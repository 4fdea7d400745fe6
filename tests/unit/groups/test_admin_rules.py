"""Tests which groups can be described and deleted as classic groups, for every kind and state of a group."""

from __future__ import annotations

import pytest
from test_group_offset_permissions import GROUPS, coordinator, turn_of
from test_group_shard import all_protocols

from penstock.groups import admin
from penstock.groups.classic.group import State
from penstock.groups.journal import decode_record
from penstock.protocol.errors import ErrorCode

KINDS = ["classic", "consumer", "share", "streams"]


@pytest.mark.parametrize("version", [0, 5, 6])
@pytest.mark.parametrize("group", GROUPS)
def test_only_a_classic_group_that_is_not_being_deleted_is_described(group: str, version: int) -> None:
    driver, table = coordinator()
    known = table[group]
    described = admin.describe(driver.shard, group, version)
    assert described.group_id == group
    if known.kind == "classic" and known.state is not State.DEAD:
        assert (described.error_code, described.group_state) == (ErrorCode.NONE, known.state)
        members = [] if known.state is State.EMPTY else [known.member]
        assert [each.member_id for each in described.members] == members
        return
    expected = ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE
    assert (described.error_code, described.group_state, described.members) == (expected, "Dead", [])
    assert bool(described.error_message) == (version >= 6)


@pytest.mark.parametrize("group", GROUPS)
def test_group_with_members_or_that_is_being_deleted_is_not_deleted(group: str) -> None:
    driver, table = coordinator()
    known = table[group]
    turn = turn_of(driver.shard)
    found = admin.delete_group(driver.shard, turn, group)
    expected = ErrorCode.NONE
    if known.kind == "missing" or known.state is State.DEAD:
        expected = ErrorCode.GROUP_ID_NOT_FOUND
    elif known.member and known.state is not State.EMPTY:
        expected = ErrorCode.NON_EMPTY_GROUP
    assert found is expected
    assert bool(turn.records) == (expected is ErrorCode.NONE)


@pytest.mark.parametrize("kind", KINDS)
def test_deleted_group_leaves_neither_records_nor_offsets_and_other_groups_stay(kind: str) -> None:
    driver = all_protocols()
    driver.advance(10 * 60_000)
    has_offsets = kind != "share"
    for name in (f"{kind}1", f"{kind}2") if has_offsets else ():
        assert driver.commit({("t", 0): 1, ("t", 1): 2, ("u", 0): 3}, group=name) == [ErrorCode.NONE] * 3
    others = {name: group for name, group in driver.shard.groups.items() if name != f"{kind}1"}
    assert driver.delete(f"{kind}1") is ErrorCode.NONE
    assert driver.shard.groups == others
    assert driver.shard.offsets.count(f"{kind}1") == 0
    assert driver.shard.offsets.count(f"{kind}2") == (3 if has_offsets else 0)
    latest = dict(driver.journal)
    own = {key: value for key, value in latest.items() if f"{kind}1".encode() in key}
    assert own
    assert set(own.values()) == {None}


@pytest.mark.parametrize("key", [b"", b"\x00", b"\x01", b"\x00\x63", b"\x7f\xff", None])
def test_record_whose_key_has_no_known_type_is_not_applied(key: bytes | None) -> None:
    assert decode_record(key, b"\x00\x00") is None
    assert decode_record(key, None) is None
