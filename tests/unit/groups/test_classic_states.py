"""Drives a classic group with random events through every transition of Kafka's state diagram, and through no other."""

from __future__ import annotations

import random

import pytest
from group_driver import SESSION_MS, Driver

from penstock.groups.classic.group import ClassicGroup, State

DRAWN = {
    (State.EMPTY, State.PREPARING_REBALANCE),
    (State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE),
    (State.PREPARING_REBALANCE, State.EMPTY),
    (State.COMPLETING_REBALANCE, State.STABLE),
    (State.COMPLETING_REBALANCE, State.PREPARING_REBALANCE),
    (State.STABLE, State.PREPARING_REBALANCE),
}


class Walk:
    """Holds one group, and methods for every event that its members can cause."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._driver = Driver()
        self.deleted = 0

    @property
    def _group(self) -> ClassicGroup | None:
        found = self._driver.shard.groups.get("g")
        assert found is None or isinstance(found, ClassicGroup)
        return found

    def step(self) -> None:
        self._source.choice((self._join, self._rejoin, self._rejoin, self._sync, self._sync, self._leave, self._wait))()
        group = self._group
        if group is not None and group.state is State.EMPTY and self._source.random() < 0.3:
            self._driver.delete()
            assert self._group is None
            self.deleted += 1
        self._look()

    def _anybody(self) -> str | None:
        group = self._group
        return self._source.choice(sorted(group.members)) if group is not None and group.members else None

    def _join(self) -> None:
        if self._group is None or len(self._group.members) < 5:
            self._driver.join()

    def _rejoin(self) -> None:
        member_id = self._anybody()
        if member_id is not None:
            self._driver.join(member_id, protocols=(("range", b"%d" % self._source.randrange(2)),))

    def _sync(self) -> None:
        group = self._group
        member_id = group.leader if group is not None and self._source.random() < 0.5 else self._anybody()
        if group is not None and member_id is not None:
            self._driver.sync(member_id, group.generation, {each: each.encode() for each in group.members})

    def _leave(self) -> None:
        member_id = self._anybody()
        if member_id is not None:
            self._driver.leave(member_id)

    def _wait(self) -> None:
        self._driver.advance(self._source.choice((10, SESSION_MS // 2, SESSION_MS + 1)))

    def _look(self) -> None:
        group = self._group
        if group is None:
            return
        if group.state is State.EMPTY:
            assert not group.members
        else:
            assert group.members or group.pending_members
        if group.state is State.STABLE:
            assert group.leader in group.members
            assert group.waiting_joins == 0
        if group.state in (State.STABLE, State.EMPTY):
            assert not any(member.awaiting_sync for member in group.members.values())


def test_classic_group_makes_all_transitions_of_kafkas_state_diagram_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: set[tuple[State, State]] = set()
    transition = ClassicGroup.transition

    def watch(group: ClassicGroup, state: State, wall_ms: int) -> None:
        taken.add((group.state, state))
        transition(group, state, wall_ms)

    monkeypatch.setattr(ClassicGroup, "transition", watch)
    deleted = 0
    for seed in range(20):
        walk = Walk(random.Random(seed))
        for _ in range(200):
            walk.step()
        deleted += walk.deleted
    assert taken == DRAWN
    assert deleted > 0
