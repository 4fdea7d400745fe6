"""Sends random requests to a classic group and checks after each of them that the group's fields agree.

Each check compares a counter, an index or a timer with what the members themselves say.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from group_driver import Driver, Waiting
from test_group_offsets import subscription

from penstock.groups.classic.group import ClassicGroup, State
from penstock.groups.config import GroupConfig
from penstock.groups.offset_requests import expire
from penstock.protocol.errors import ErrorCode

pytestmark = pytest.mark.exhaustive

OTHER = ("other", b"metadata")
PROTOCOLS = [
    subscription("t"),
    (*subscription("t", "u"), OTHER),
    (OTHER, *subscription("u")),
    (OTHER,),
]
TIMEOUTS_MS = [6_000, 10_000, 30_000]


def assigned(generation: int, name: str) -> bytes:
    """Returns the assignment that a leader gives to a member, by its instance id or else its member id.

    Some members get nothing.
    """
    return b"" if name[-1] in "048cj" else f"{generation} {name}".encode()


class Walk:
    """Sends requests like several clients, some of which are slow, restart, or repeat themselves."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        delay_ms = self.random.choice([0, 3_000])
        self.driver = Driver(GroupConfig(initial_rebalance_delay_ms=delay_ms, max_size=self.random.choice([3, 100])))
        self.joins: list[Waiting] = []
        self.syncs: list[tuple[Waiting, str, int]] = []
        self.ids: list[str] = ["ghost"]

    @property
    def group(self) -> ClassicGroup | None:
        group = self.driver.shard.groups.get("g")
        assert group is None or isinstance(group, ClassicGroup)
        return group

    def instance_of(self, member: str) -> str | None:
        known = self.group.members.get(member) if self.group is not None else None
        return known.instance_id if known is not None else None

    def step(self) -> None:
        acts = [self.join, self.rejoin, self.rejoin, self.sync, self.sync, self.sync, self.heartbeat, self.leave]
        acts += [self.commit, self.wait, self.wait, self.hold]
        self.random.choice(acts)()
        for waiting in self.joins:
            if waiting.answer is not None:
                self.read_join(waiting)
        self.joins = [each for each in self.joins if each.answer is None]
        for waiting, name, generation in self.syncs:
            if waiting.answer is not None and waiting.error is ErrorCode.NONE:
                assert waiting.synced.assignment == assigned(generation, name)
        self.syncs = [each for each in self.syncs if each[0].answer is None]

    def options(self) -> dict[str, Any]:
        return {
            "protocols": self.random.choice(PROTOCOLS),
            "session_ms": self.random.choice(TIMEOUTS_MS),
            "rebalance_ms": self.random.choice(TIMEOUTS_MS),
        }

    def join(self) -> None:
        instance = self.random.choice([None, None, "i", "j"])
        version = self.random.choice([5, 9]) if instance is not None else self.random.choice([3, 9])
        self.joins.append(self.driver.join(instance=instance, version=version, **self.options()))

    def rejoin(self) -> None:
        member = self.random.choice(self.ids[-6:])
        self.joins.append(self.driver.join(member, instance=self.instance_of(member), version=5, **self.options()))

    def sync(self) -> None:
        group = self.group
        if group is None or not group.members:
            return
        member = self.random.choice([*group.members, group.leader or ""])
        assignments = {}
        if member == group.leader and group.state is State.COMPLETING_REBALANCE:
            given = {each: assigned(group.generation, self.instance_of(each) or each) for each in group.members}
            assignments = {each: assignment for each, assignment in given.items() if assignment}
        instance = self.instance_of(member)
        waiting = self.driver.sync(member, group.generation, assignments, instance=instance)
        self.syncs.append((waiting, instance or member, group.generation))

    def heartbeat(self) -> None:
        member = self.random.choice(self.ids)
        generation = self.group.generation if self.group is not None else 0
        self.driver.heartbeat(member, generation, instance=self.instance_of(member))

    def leave(self) -> None:
        members: list[tuple[str, str | None]] = [(member, None) for member in self.random.sample(self.ids, 1)]
        if self.random.random() < 0.3:
            members.append(("", "i"))
        self.driver.leave(*members)

    def commit(self) -> None:
        generation = self.group.generation if self.group is not None else 0
        self.driver.commit({("t", 0): 1}, member_id=self.random.choice(self.ids), generation=generation)

    def wait(self) -> None:
        self.driver.advance(self.random.choice([1, 500, 3_000, 8_000]))

    def hold(self) -> None:
        if self.driver.hold_commits:
            self.driver.release_commits(self.random.choice([ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]))
        else:
            self.driver.hold_commits = self.random.random() < 0.3

    def read_join(self, waiting: Waiting) -> None:
        """Checks a response to JoinGroup against the group that it describes."""
        response = waiting.joined
        if waiting.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.ids.append(response.member_id)
        if waiting.error is not ErrorCode.NONE:
            assert (response.generation_id, response.members, response.leader) == (-1, [], "")
            return
        if response.member_id not in self.ids:
            self.ids.append(response.member_id)
        group = self.group
        if group is None or (group.state, group.generation) != (State.COMPLETING_REBALANCE, response.generation_id):
            return  # the response had to wait until records were committed
        assert response.member_id in group.members
        assert response.protocol_name == group.protocol
        if response.leader == response.member_id:
            listed = {each.member_id: (each.group_instance_id, each.metadata) for each in response.members}
            assert listed == {
                each.member_id: (each.instance_id, each.metadata(response.protocol_name or ""))
                for each in group.members.values()
            }
        else:
            assert not response.members


def check_group(group: ClassicGroup, now_ms: int) -> None:
    members = group.members.values()
    assert [each.member_id for each in members] == list(group.members)
    assert dict(group.supporters) == Counter(name for each in members for name, _ in each.protocols)
    assert group.waiting_joins == sum(each.awaiting_join is not None for each in members)
    assert group.members_bytes == sum(each.held_bytes for each in members)
    assert group.static_members == {each.instance_id: each.member_id for each in members if each.instance_id}
    assert (group.leader in group.members) if group.members else group.leader is None
    assert not group.pending_members.keys() & group.members.keys()
    assert all(timer.armed for timer in group.pending_members.values())
    assert group.pending_sync <= group.members.keys()
    for each in members:
        assert each.session.member_id == each.member_id
        if not each.is_waiting:
            longest_ms = max(TIMEOUTS_MS) if each.instance_id else each.session_timeout_ms
            assert now_ms <= each.session.deadline_ms <= now_ms + longest_ms
    check_state(group)


def check_state(group: ClassicGroup) -> None:
    members = group.members.values()
    match group.state:
        case State.EMPTY:
            assert not group.members
            assert not group.join_timer.armed
        case State.PREPARING_REBALANCE:
            assert group.join_timer.armed
            assert not group.sync_timer.armed
            assert not group.pending_sync
        case State.COMPLETING_REBALANCE:
            assert group.sync_timer.armed or not group.pending_sync
            assert all((each.awaiting_sync is None) or each.member_id not in group.pending_sync for each in members)
            assert not any(each.awaiting_join for each in members)
            assert group.subscribed_topics == group.subscriptions()
        case State.STABLE:
            assert not any(each.awaiting_sync for each in members)
            assert group.sync_timer.armed or not group.pending_sync
    if group.state in (State.COMPLETING_REBALANCE, State.STABLE):
        assert group.protocol is not None
        assert not group.join_timer.armed


def check_loaded(driver: Driver, group: ClassicGroup) -> None:
    """Checks that another coordinator restores the same group from the log."""
    other = driver.reload()
    loaded = other.shard.groups["g"]
    assert isinstance(loaded, ClassicGroup)
    check_group(loaded, driver.now_ms)

    def lasting(given: ClassicGroup) -> tuple[Any, ...]:
        members = {
            each.member_id: (
                each.instance_id,
                each.client_id,
                each.client_host,
                each.session_timeout_ms,
                each.rebalance_timeout_ms,
                each.metadata(given.protocol or ""),
                each.assignment,
            )
            for each in given.members.values()
        }
        return (
            given.state,
            given.generation,
            given.protocol_type,
            given.protocol,
            given.leader,
            # a static member may return with other topics, which count from the next generation or the next load on
            given.subscribed_topics if not given.static_members else None,
            members,
        )

    assert lasting(loaded) == lasting(group)
    for each in loaded.members.values():
        assert each.session.deadline_ms == driver.now_ms + each.session_timeout_ms


@pytest.mark.parametrize("seed", range(60))
def test_fields_of_a_classic_group_agree_after_every_request(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(60):
        walk.step()
        group = walk.group
        if group is None:
            continue
        check_group(group, walk.driver.now_ms)
        fits = len(group.members) <= walk.driver.config.max_size
        if group.state is State.STABLE and not walk.driver.hold_commits and not group.waiting_joins and fits:
            check_loaded(walk.driver, group)
    if walk.driver.hold_commits:
        walk.driver.release_commits()
    walk.driver.advance(60 * 60_000)
    waiting = [*walk.joins, *(each for each, _, _ in walk.syncs)]
    assert all(each.answer is not None for each in waiting), "every client gets an answer"
    if walk.group is not None:
        check_group(walk.group, walk.driver.now_ms)
        assert walk.group.state is State.EMPTY
        assert not walk.group.pending_members
        walk.driver.advance(walk.driver.config.offsets_retention_ms)
        walk.driver.run(lambda turn: expire(walk.driver.shard, turn, "g"))
        assert walk.group is None
