"""Tests that the records of consumer, share and streams groups restore every field, and that tombstones reset it."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from random import Random
from typing import Any

import pytest
from streams_driver import counting

from penstock.groups.config import GroupConfig
from penstock.groups.consumer import journal as consumer_journal
from penstock.groups.consumer.group import ClassicMembership, ConsumerGroup, ConsumerMember, ResolvedRegex
from penstock.groups.journal import decode_record, encode_record
from penstock.groups.reconciliation import MemberState
from penstock.groups.shard import GroupShard
from penstock.groups.share import journal as share_journal
from penstock.groups.share.group import ShareGroup, ShareMember, StatePartitions
from penstock.groups.streams import journal as streams_journal
from penstock.groups.streams.group import Role, StreamsGroup, StreamsMember, TaskKey
from penstock.groups.streams.topology import from_request
from penstock.groups.timers import Timer, TimerKind
from penstock.groups.turn import JournalRecord, Turn

T, U = b"t" * 16, b"u" * 16
A0, A1, S0 = TaskKey(Role.ACTIVE, "0"), TaskKey(Role.ACTIVE, "1"), TaskKey(Role.STANDBY, "0")
WALL_MS = 5_000

JOURNALS: dict[str, Any] = {"consumer": consumer_journal, "share": share_journal, "streams": streams_journal}
GROUPS: dict[str, Any] = {"consumer": ConsumerGroup, "share": ShareGroup, "streams": StreamsGroup}
#: The fields of a member that its record of the current assignment holds; the other fields are in its own record.
CURRENT = ("epoch", "previous_epoch", "state", "assigned", "pending_revocation")

FULL: dict[str, Any] = {
    "consumer": ConsumerMember(
        "m",
        instance_id="i",
        rack_id="r",
        client_id="c",
        client_host="h",
        topics=("t", "u"),
        regex="x.*",
        rebalance_timeout_ms=7,
        server_assignor="range",
        classic=ClassicMembership(9, (("range", b"1"), ("other", b"2"))),
        epoch=5,
        previous_epoch=4,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned={T: {0: 3, 1: 5}, U: {2: 4}},
        pending_revocation={T: {2: 3, 3: 1}, U: {0: 1}},
    ),
    "share": ShareMember(
        "m",
        rack_id="r",
        client_id="c",
        client_host="h",
        topics=("t", "u"),
        epoch=5,
        previous_epoch=4,
        assigned={T: frozenset({0, 1}), U: frozenset({2})},
    ),
    "streams": StreamsMember(
        "m",
        rack_id="r",
        client_id="c",
        client_host="h",
        rebalance_timeout_ms=7,
        topology_epoch=3,
        process_id="p",
        endpoint=("host", 80),
        tags={"zone": "1", "cluster": "2"},
        instance_id="i",
        epoch=5,
        previous_epoch=4,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned={A0: {0: 3, 1: 5}, A1: {2: 4}, S0: {3: 0}},  # epochs of standby tasks are not recorded
        pending_revocation={A0: {2: 3, 3: 1}, A1: {0: 1}},
    ),
}
KINDS = sorted(FULL)


def new_turn() -> Turn:
    return GroupShard(GroupConfig(), Random(1)).turn(0, WALL_MS)


def apply(kind: str, group: Any, turn: Turn) -> None:
    """Applies the turn's records as they are read from the log."""
    for record in turn.records:
        read = decode_record(*encode_record(record))
        assert read is not None
        JOURNALS[kind].apply(group, read)


def put(kind: str, group: Any, *members: Any) -> None:
    turn = new_turn()
    for member in members:
        JOURNALS[kind].record_member(turn, "g", member)
        JOURNALS[kind].record_current(turn, "g", member)
    apply(kind, group, turn)


def check_indexes(kind: str, group: Any) -> None:
    """Checks what the group keeps about its members: who holds which partition, static members and memory."""
    members = group.members.values()
    assert group.members.bytes == sum(member.held_bytes for member in members)
    if kind == "consumer":
        assert group.static_members == {each.instance_id: each.member_id for each in members if each.instance_id}
        assert group.owners == {
            (topic, index): each.member_id
            for each in members
            for held in (each.assigned, each.pending_revocation)
            for topic, indexes in held.items()
            for index in indexes
        }
    if kind == "streams":
        tasks = {
            (key, index)
            for each in members
            for held in (each.assigned, each.pending_revocation)
            for key, indexes in held.items()
            for index in indexes
        }
        assert group.holders == {
            task: {
                each.member_id
                for each in members
                for held in (each.assigned, each.pending_revocation)
                if task[1] in held.get(task[0], ())
            }
            for task in tasks
        }


def second(kind: str) -> Any:
    """Returns another member, which holds other partitions."""
    given = FULL[kind]
    changes: dict[str, Any] = {"member_id": "n"}
    if kind == "consumer":
        changes |= {"instance_id": "j", "assigned": {T: {9: 1}}, "pending_revocation": {U: {9: 1, 8: 1}}}
    elif kind == "streams":
        changes |= {"assigned": {A0: {0: 1, 9: 1}}, "pending_revocation": {}}
    return replace(given, **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_records_of_a_member_restore_all_its_fields(kind: str) -> None:
    assert all(getattr(FULL[kind], each.name) != each.default for each in fields(FULL[kind])), "no field is a default"
    group = GROUPS[kind]("g")
    put(kind, group, FULL[kind], second(kind))
    assert dict(group.members) == {"m": FULL[kind], "n": second(kind)}
    check_indexes(kind, group)


@pytest.mark.parametrize("kind", KINDS)
def test_later_records_of_a_member_replace_each_of_its_fields(kind: str) -> None:
    plain = type(FULL[kind])("m")
    for name, (first, last) in product([each.name for each in fields(plain)][1:], [(0, 1), (1, 0)]):
        both = (plain, FULL[kind])
        group = GROUPS[kind]("g")
        put(kind, group, both[first], second(kind))
        changed = replace(both[first], **{name: getattr(both[last], name)})
        put(kind, group, changed)
        assert group.members["m"] == changed, name
        check_indexes(kind, group)


@pytest.mark.parametrize("kind", KINDS)
def test_current_assignment_that_is_read_before_its_member_is_kept(kind: str) -> None:
    group = GROUPS[kind]("g")
    turn = new_turn()
    JOURNALS[kind].record_current(turn, "g", FULL[kind])
    JOURNALS[kind].record_member(turn, "g", FULL[kind])
    apply(kind, group, turn)
    assert group.members["m"] == FULL[kind]
    check_indexes(kind, group)


@pytest.mark.parametrize("kind", KINDS)
def test_tombstone_of_the_current_assignment_resets_only_the_assignment(kind: str) -> None:
    group = GROUPS[kind]("g")
    given = replace(FULL[kind], state=MemberState.STABLE) if kind == "streams" else FULL[kind]
    put(kind, group, given, second(kind))
    turn = new_turn()
    JOURNALS[kind].record_current(turn, "g", given)
    turn.records[0] = JournalRecord(turn.records[0].key, None)
    apply(kind, group, turn)
    plain = type(given)("m")
    names = [name for name in CURRENT if hasattr(plain, name)]
    assert group.members["m"] == replace(given, **{name: getattr(plain, name) for name in names})
    assert group.members["n"] == second(kind)
    check_indexes(kind, group)


def timers_of(kind: str, group: Any) -> list[dict[str, Timer]]:
    named = {"consumer": ("sessions", "revocations", "rejoins", "syncs"), "streams": ("sessions", "revocations")}
    return [getattr(group, name) for name in named.get(kind, ("sessions",))]


@pytest.mark.parametrize("kind", KINDS)
def test_erased_member_leaves_nothing_but_the_other_member(kind: str) -> None:
    group = GROUPS[kind]("g")
    put(kind, group, FULL[kind], second(kind))
    turn = new_turn()
    target = {T: frozenset({0})} if kind != "streams" else {A0: frozenset({0})}
    for member in ("m", "n"):
        JOURNALS[kind].record_target(turn, "g", member, target)
    apply(kind, group, turn)
    armed = new_turn()
    gone = []
    for timers, member in product(timers_of(kind, group), ("m", "n")):
        timers[member] = Timer(TimerKind.SESSION, "g", member)
        armed.arm(timers[member], 10)
        if member == "m":
            gone.append(timers[member])
    turn = new_turn()
    JOURNALS[kind].erase_member(turn, "g", "m")
    assert len({type(record.key) for record in turn.records}) == 3
    apply(kind, group, turn)
    assert dict(group.members) == {"n": second(kind)}
    assert group.target == {"n": target}
    assert not any(timer.armed for timer in gone)
    assert all(list(timers) == ["n"] and timers["n"].armed for timers in timers_of(kind, group))
    check_indexes(kind, group)


@pytest.mark.parametrize("kind", KINDS)
def test_target_assignments_and_their_epoch_are_restored_and_erased(kind: str) -> None:
    group = GROUPS[kind]("g")
    targets: dict[str, Any] = {
        "m": {T: frozenset({0, 2}), U: frozenset({1})},
        "n": {T: frozenset({1})},
    }
    if kind == "streams":
        targets = {"m": {A0: frozenset({0, 2}), A1: frozenset({1}), S0: frozenset({3})}, "n": {S0: frozenset({0})}}
    turn = new_turn()
    for member, target in targets.items():
        JOURNALS[kind].record_target(turn, "g", member, target)
    JOURNALS[kind].record_target_epoch(turn, "g", 8)
    apply(kind, group, turn)
    assert group.target == targets
    assert (group.assignment_epoch, group.assignment_ms) == (8, WALL_MS)
    initial = GROUPS[kind]("g")
    erased = new_turn()
    erased.records += [JournalRecord(record.key, None) for record in turn.records]
    apply(kind, group, erased)
    assert group.target == {}
    assert (group.assignment_epoch, group.assignment_ms) == (initial.assignment_epoch, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_group_epoch_is_restored(kind: str) -> None:
    group = GROUPS[kind]("g")
    turn = new_turn()
    more = (6, {"num.standby.replicas": "2", "other": "3"}) if kind == "streams" else ()
    JOURNALS[kind].record_epoch(turn, "g", 7, 123_456, *more)
    apply(kind, group, turn)
    assert (group.epoch, group.metadata_hash) == (7, 123_456)
    if kind == "streams":
        assert (group.validated_epoch, group.assignment_configs) == more


def test_patterns_of_a_consumer_group_are_restored_and_erased() -> None:
    group = ConsumerGroup("g")
    turn = new_turn()
    patterns = {"a.*": ResolvedRegex(frozenset({"a1", "a2"}), 3, 4), "b.*": ResolvedRegex(frozenset(), 5, 6)}
    for pattern, resolved in patterns.items():
        consumer_journal.record_regex(turn, "g", pattern, resolved)
    apply("consumer", group, turn)
    assert group.regexes == patterns
    turn = new_turn()
    consumer_journal.record_regex(turn, "g", "a.*", None)
    apply("consumer", group, turn)
    assert list(group.regexes) == ["b.*"]


def test_states_of_a_share_group_are_restored_and_erased() -> None:
    group = ShareGroup("g")
    states = StatePartitions(
        {T: frozenset({0, 1})},
        {U: frozenset({2, 3}), T: frozenset({4})},
        frozenset({b"v" * 16}),
        {T: "t", U: "u", b"v" * 16: "v"},
    )
    turn = new_turn()
    share_journal.record_states(turn, "g", states)
    apply("share", group, turn)
    assert group.states == states
    erased = new_turn()
    erased.records += [JournalRecord(turn.records[0].key, None)]
    apply("share", group, erased)
    assert group.states == StatePartitions()


def test_topology_of_a_streams_group_is_restored_and_erased() -> None:
    group = StreamsGroup("g")
    topology = from_request(counting())
    turn = new_turn()
    streams_journal.record_topology(turn, "g", topology)
    apply("streams", group, turn)
    assert group.topology == topology
    assert group.topology is not None
    assert (group.topology.readers, group.topology.required) == (
        {"t": "0", "g-repartition": "1"},
        frozenset({"t", "g-repartition", "g-changelog"}),
    )
    assert group.topology.held_bytes == topology.held_bytes > 0
    erased = new_turn()
    erased.records += [JournalRecord(turn.records[0].key, None)]
    apply("streams", group, erased)
    assert group.topology is None


@pytest.mark.parametrize("kind", KINDS)
def test_erasing_a_group_erases_every_key_that_it_wrote(kind: str) -> None:
    journal = JOURNALS[kind]
    group = GROUPS[kind]("g")
    turn = new_turn()
    target = {T: frozenset({0})} if kind != "streams" else {A0: frozenset({0})}
    for member in (FULL[kind], second(kind)):
        journal.record_member(turn, "g", member)
        journal.record_current(turn, "g", member)
        journal.record_target(turn, "g", member.member_id, target)
    journal.record_target_epoch(turn, "g", 8)
    if kind == "consumer":
        for pattern in ("a.*", "b.*"):
            consumer_journal.record_regex(turn, "g", pattern, ResolvedRegex(frozenset(), 1, 2))
    elif kind == "share":
        share_journal.record_states(turn, "g", StatePartitions({T: frozenset({0})}, names={T: "t"}))
    else:
        streams_journal.record_topology(turn, "g", from_request(counting()))
    journal.record_epoch(turn, "g", 7, 1, *((6, {}) if kind == "streams" else ()))
    apply(kind, group, turn)
    erased = new_turn()
    journal.erase_group(erased, group)
    assert all(record.value is None for record in erased.records)
    written = [encode_record(record)[0] for record in turn.records]
    assert sorted(encode_record(record)[0] for record in erased.records) == sorted(written)
    assert type(erased.records[-1].key) is type(turn.records[-1].key), "the group's own record is the last"
