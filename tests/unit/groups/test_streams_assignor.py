"""Tests the sticky assignor of streams groups: it assigns every task once, evenly, and with few moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.streams.assignor import MemberSpec, SubtopologySpec, assign
from penstock.groups.streams.group import Role, Tasks


def tasks_of(tasks: Tasks, role: Role) -> set[tuple[str, int]]:
    return {(key.subtopology, index) for key, indexes in tasks.items() if key.role is role for index in indexes}


Assignment = dict[str, Tasks]


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, str], dict[str, SubtopologySpec], int]:
    processes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=8))
    members = {f"m{number}": f"p{process}" for number, process in enumerate(processes)}
    counts = draw(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=4))
    topology = {f"{number}": SubtopologySpec(count, kept) for number, (count, kept) in enumerate(counts)}
    return members, topology, draw(st.integers(0, 3))


def assigned(
    members: dict[str, str], topology: dict[str, SubtopologySpec], standbys: int, before: Assignment | None = None
) -> Assignment:
    specs = {name: MemberSpec(process, (before or {}).get(name, {})) for name, process in members.items()}
    return assign(specs, topology, standbys)


def check(members: dict[str, str], topology: dict[str, SubtopologySpec], standbys: int, found: Assignment) -> None:
    every = {(name, index) for name, spec in topology.items() for index in range(spec.tasks)}
    active = Counter(task for tasks in found.values() for task in tasks_of(tasks, Role.ACTIVE))
    assert active == Counter(every), "every active task is on exactly one member"
    sizes = [len(tasks_of(tasks, Role.ACTIVE)) for tasks in found.values()]
    assert max(sizes) - min(sizes) <= 1, "active tasks are spread evenly"
    places: dict[tuple[str, int], Counter[str]] = {task: Counter() for task in every}
    for name, tasks in found.items():
        for task in (*tasks_of(tasks, Role.ACTIVE), *tasks_of(tasks, Role.STANDBY)):
            places[task][members[name]] += 1
    for (name, _), processes in places.items():
        assert set(processes.values()) == {1}, "a process has a task once"
        wanted = standbys if topology[name].is_stateful else 0
        assert len(processes) == min(1 + wanted, len(set(members.values())))


@given(groups())
def test_streams_assignor_assigns_every_task_once_and_evenly(
    group: tuple[dict[str, str], dict[str, SubtopologySpec], int],
) -> None:
    members, topology, standbys = group
    check(members, topology, standbys, assigned(members, topology, standbys))


@given(groups())
def test_streams_assignor_keeps_active_tasks_if_the_group_is_unchanged(
    group: tuple[dict[str, str], dict[str, SubtopologySpec], int],
) -> None:
    members, topology, standbys = group
    before = assigned(members, topology, standbys)
    after = assigned(members, topology, standbys, before)
    for name in members:
        assert tasks_of(after[name], Role.ACTIVE) == tasks_of(before[name], Role.ACTIVE)


@given(groups(), st.data())
def test_streams_assignor_moves_only_the_active_tasks_of_a_lost_member(
    group: tuple[dict[str, str], dict[str, SubtopologySpec], int], data: st.DataObject
) -> None:
    members, topology, standbys = group
    before = assigned(members, topology, standbys)
    gone = data.draw(st.sampled_from(sorted(members)))
    left = {name: process for name, process in members.items() if name != gone}
    after = assigned(left, topology, standbys, before)
    if not left:
        assert after == {}
        return
    check(left, topology, standbys, after)
    for name in left:
        assert tasks_of(before[name], Role.ACTIVE) <= tasks_of(after[name], Role.ACTIVE)


@given(groups())
def test_streams_assignor_gives_a_new_member_no_more_than_an_equal_share_of_tasks(
    group: tuple[dict[str, str], dict[str, SubtopologySpec], int],
) -> None:
    members, topology, standbys = group
    before = assigned(members, topology, standbys)
    more = {**members, "new": "another process"}
    after = assigned(more, topology, standbys, before)
    check(more, topology, standbys, after)
    for name in members:
        assert tasks_of(after[name], Role.ACTIVE) <= tasks_of(before[name], Role.ACTIVE), "tasks only move to `new`"


@pytest.mark.parametrize("gone", ["a", "b", "c", "d"])
def test_member_with_a_standby_gets_the_active_task_when_its_old_owner_leaves(gone: str) -> None:
    topology = {"0": SubtopologySpec(4, True)}
    members = {name: f"p{name}" for name in "abcd"}
    before = assigned(members, topology, 1)
    left = {name: process for name, process in members.items() if name != gone}
    heirs = {
        task: name
        for task in tasks_of(before[gone], Role.ACTIVE)
        for name in left
        if task in tasks_of(before[name], Role.STANDBY)
    }
    after = assigned(left, topology, 1, before)
    assert heirs
    assert all(task in tasks_of(after[name], Role.ACTIVE) for task, name in heirs.items())
