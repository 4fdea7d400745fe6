"""Compares the state and the lookups of a streams group with plain models, for all small cases."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from streams_driver import EAGER, StreamsDriver, plain, topology

from penstock.groups.reconciliation import MemberState
from penstock.groups.streams.group import Role, StreamsGroup, StreamsGroupState, StreamsMember, TaskKey, Tasks
from penstock.groups.streams.topology import from_request
from penstock.protocol.errors import ErrorCode

TOPOLOGIES = [None, *(from_request(topology(epoch=epoch)) for epoch in (0, 1))]


def test_state_of_a_streams_group_follows_from_its_members_topology_and_epochs() -> None:
    seen = set()
    members = [[], *([each] for each in product(MemberState, (2, 3, 4)))]
    members += [[(MemberState.STABLE, 3), each[0]] for each in members if each]
    for given, known, validated, epoch in product(members, TOPOLOGIES, (-1, 0, 1), (2, 3, 4)):
        group = StreamsGroup("g", epoch=epoch, validated_epoch=validated, assignment_epoch=3, topology=known)
        for number, (state, member_epoch) in enumerate(given):
            group.put(StreamsMember(f"m{number}", state=state, epoch=member_epoch))
        if not given:
            expected = StreamsGroupState.EMPTY
        elif known is None or known.epoch != validated:
            expected = StreamsGroupState.NOT_READY
        elif epoch > 3:
            expected = StreamsGroupState.ASSIGNING
        elif any(each != (MemberState.STABLE, 3) for each in given):
            expected = StreamsGroupState.RECONCILING
        else:
            expected = StreamsGroupState.STABLE
        assert group.state is expected, (given, known, validated, epoch)
        seen.add(expected)
    assert len(seen) == 5


@pytest.mark.parametrize("pending", [False, True])
def test_task_must_wait_for_its_active_holder_and_for_every_holder_of_the_same_process(pending: bool) -> None:
    """Two members of processes p and q hold one task each. A third member may also be of process p."""
    slots = [(TaskKey(role, name), index) for role in Role for name in "01" for index in (0, 1)]
    other = TaskKey(Role.STANDBY, "9")  # a task before the one that counts
    for first, second in product(slots, slots):
        group = StreamsGroup("g")
        held = {"p": first, "q": second}
        for process, (key, index) in held.items():
            tasks = {other: {0: 0}, key: {7: 0, index: 0}}
            member = StreamsMember(f"of {process}", process_id=process)
            group.put(replace(member, pending_revocation=tasks) if pending else replace(member, assigned=tasks))
        for process, (key, index) in product(("p", "q", "r"), slots):
            expected = any(
                (holder.subtopology, at) == (key.subtopology, index)
                and (owner == process or (key.role is Role.ACTIVE and holder.role is Role.ACTIVE))
                for owner, (holder, at) in held.items()
            )
            assert group.is_held(process, key, index) is expected, (held, process, key, index)
        group.drop("of p")
        group.put(StreamsMember("of q", process_id="q"))
        assert group.holders == {}


def test_number_of_assigned_tasks_is_the_largest_active_task_of_each_subtopology_plus_one() -> None:
    sets = [frozenset[int](), frozenset({0}), frozenset({1, 4}), frozenset({2})]
    for first, second, third in product(sets, sets, sets):
        targets: list[Tasks] = [
            {TaskKey(Role.STANDBY, "0"): frozenset({9}), TaskKey(Role.ACTIVE, "0"): first},
            {TaskKey(Role.ACTIVE, "1"): second, TaskKey(Role.ACTIVE, "0"): third, TaskKey(Role.WARMUP, "1"): sets[2]},
            {},
        ]
        group = StreamsGroup("g", target={f"m{number}": tasks for number, tasks in enumerate(targets)})
        found = {"0": first | third, "1": second}
        assert group.assigned_tasks() == {name: max(some) + 1 for name, some in found.items() if some}


def test_topics_of_a_streams_group_are_configured_again_only_after_a_change() -> None:
    driver = StreamsDriver(EAGER, {"t": 2, "u": 2})
    driver.come("a", topology(plain("0", "t"), plain("1", "u")))
    driver.come("b", topology(plain("0", "t"), plain("1", "u")))
    driver.settle()
    assert not driver.group.metadata_changed
    configured, epoch = driver.group.configured, driver.group.epoch
    driver.settle()
    assert driver.group.configured is configured
    for topics in ({"t": 2, "u": 2, "v": 1}, {"t": 2, "u": 2}):
        driver.see(topics)
        driver.settle(1)
        assert driver.group.configured is configured, "no topic of the topology changed"
        assert not driver.group.metadata_changed
    assert driver.group.epoch == epoch
    driver.see({"t": 2, "u": 3})
    driver.settle()
    assert driver.group.configured is not configured
    assert driver.group.epoch == epoch + 1
    loaded = driver.reload()
    assert loaded.group.configured is None
    loaded.settle()
    assert loaded.group.configured == driver.group.configured
    assert loaded.group.epoch == epoch + 1, "a load changes no topic"


@pytest.mark.parametrize("given", [-1, 0, 7])
def test_heartbeat_of_a_streams_member_replaces_its_rebalance_timeout_unless_it_is_left_out(given: int) -> None:
    driver = StreamsDriver()
    driver.come("a", rebalance_timeout_ms=5)
    driver.come("b", rebalance_timeout_ms=6)
    assert driver.stay("a", rebalance_timeout_ms=given).error_code == ErrorCode.NONE
    assert driver.group.members["a"].rebalance_timeout_ms == (5 if given == -1 else given)
    assert driver.group.members["b"].rebalance_timeout_ms == 6
