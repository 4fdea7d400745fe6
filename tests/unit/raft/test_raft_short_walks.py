"""Tests that short random schedules of a quorum violate no invariant, and that it recovers from each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from raft_cluster import Message, voter
from raft_walk import CONFIG, Walk, run_seeds

from penstock.raft.describe import describe
from penstock.raft.events import Received, StepDown
from penstock.raft.messages import AddVoter, Fetch, FetchSnapshot, RemoveVoter, Vote
from penstock.raft.states import Leader
from penstock.raft.voters import ReplicaKey, Voter, VoterSet


class ManagedWalk(Walk):
    """Adds what operators and strangers do: step-downs, new endpoints, other directories, and questions."""

    def __init__(self, seed: int, *, dynamic: bool) -> None:
        super().__init__(seed)
        limits = {"observer_session_ms": 300, "max_observers": 2, "max_uncommitted_records": 6}
        self.cluster.config = replace(CONFIG, dynamic_voters=dynamic, **limits)
        if not dynamic:
            self.cluster.initial = VoterSet.of(map(Voter, self.cluster.initial.ids))
            self.actions = [(action, weight) for action, weight in self.actions if action != self.change]
        for node_id in list(self.cluster.members):
            self.cluster.crash(node_id)
            self.cluster.start(node_id)
        more: list[tuple[Callable[[], None], int]] = [(self.step_down, 1), (self.move, 2), (self.stray, 6)]
        more += [(self.describe, 6), (self.misplaced_change, 1)]
        self.actions += more

    def step_down(self) -> None:
        for member in self._leaders():
            self.cluster.step(member.id, StepDown())

    def move(self) -> None:
        """Gives a node other endpoints, as a restart with other properties does."""
        for member in self._up()[:1]:
            core = member.running.core
            core.voter = replace(core.voter, endpoints=(("C", "host", self.random.randrange(3)),))

    def stray(self) -> None:
        """Sends a request of a node id with another directory, with any offset and any epoch."""
        up = self._up()
        if not up:
            return
        target = self.random.choice(up)
        core = target.running.core
        # A static voter is known by its id alone.
        ids = [2, 3, 4, 5] if core.config.dynamic_voters else [7, 8]
        key = ReplicaKey(self.random.choice(ids), bytes([self.random.randrange(3)]) * 16)
        epoch = self.random.choice([core.epoch, core.epoch, core.epoch - 1, core.epoch + 1])
        offset, last_epoch = self.random.randrange(9), self.random.randrange(max(1, core.epoch + 1))
        wait_ms = self.random.choice([0, 50])
        requests: list[Fetch | FetchSnapshot | Vote] = [
            Fetch(key, max(0, epoch), offset, last_epoch, 0, wait_ms),
            Fetch(key, max(0, epoch), offset, last_epoch, 0, wait_ms),
            FetchSnapshot(key, epoch, core.log.snapshot or (0, 0), 0, 5),  # type: ignore[arg-type]
            Vote(core.me, key, epoch, last_epoch, 0, True),
        ]
        self.send(target.id, self.random.choice(requests))

    def send(self, target: int, request: Fetch | FetchSnapshot | Vote) -> None:
        self.cluster.next_ticket += 1
        ticket = self.cluster.next_ticket
        self.cluster.tickets[ticket] = Message(target, target, request, 0, life=-1)  # nobody gets the answer
        self.cluster.step(target, Received(ticket, request))

    def describe(self) -> None:
        for member in self._up():
            view = describe(member.running.core)
            leads = isinstance(member.running.core.state, Leader)
            assert bool(view.voters or view.observers) is leads
            if leads:
                listed = [each.key.node_id for each in view.voters]
                assert listed == sorted(view.voter_set.ids)

    def misplaced_change(self) -> None:
        for member in self._up():
            for request in (AddVoter(voter(9)), RemoveVoter(voter(9).key)):
                before = member.running.core.voters.latest.ids
                self.cluster.ask(member.id, request)
                assert member.running.core.voters.latest.ids == before


@pytest.mark.parametrize("first", range(50_000, 50_040, 8))
def test_quorum_keeps_its_promises_and_recovers_on_short_random_schedules(first: int) -> None:
    run_seeds(first, 8)


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
@pytest.mark.parametrize("first", range(60_000, 60_018, 6))
def test_quorum_keeps_its_promises_while_operators_and_strangers_disturb_it(first: int, dynamic: bool) -> None:
    for seed in range(first, first + 6):
        walk = ManagedWalk(seed, dynamic=dynamic)
        try:
            walk.run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
