"""Runs a random walk: picks random events, then ends all faults and checks that the quorum recovers.

The cluster's `Checker` runs at every step: one leader per epoch, log matching, leader completeness, commits only by a
majority, no committed record lost, high watermarks that never decrease. The same seed gives the same walk.
"""

from __future__ import annotations

import random

from raft_cluster import Cluster, Member, require, voter

from penstock.raft.config import RaftConfig
from penstock.raft.messages import AddVoter, Fetch, RemoveVoter, Request
from penstock.raft.states import Follower, Leader

MAX_MESSAGES = 60
HEAL_STEPS = 4000
LONG_STEPS = 2000

#: Short timeouts, so that a short walk has many elections.
CONFIG = RaftConfig(
    election_timeout_ms=200,
    election_backoff_max_ms=200,
    fetch_timeout_ms=400,
    request_timeout_ms=400,
    fetch_max_wait_ms=100,
    suspect_ms=50,
)


class Walk:
    def __init__(self, seed: int, *, steps: int = 250, mix: dict[str, int] | None = None) -> None:
        """Creates a walk. `mix` fixes the weights of the events, in a quorum of three with fast disks; default: random
        weights.
        """
        self.random = random.Random(seed)
        self.steps = steps if mix is None else LONG_STEPS
        size = 3 if mix else self.random.choice([1, 2, 3, 3, 3, 3, 3, 4, 5])
        self.cluster = Cluster(list(range(1, size + 1)), seed=seed, config=CONFIG)
        self.cluster.max_fetch_batches = self.random.choice([1, 1, 2, 100])
        self.proposals = 0
        if mix:
            self.actions = [(getattr(self, name), weight) for name, weight in mix.items()]
            return
        if self.random.random() < 0.5:
            self.cluster.add_member(size + 1)
        self.cluster.manual_saves.update(self.cluster.members)
        self.cluster.manual_flushes.update(self.cluster.members)
        self.actions = [
            (self.deliver, 50),
            (self.write, 30),
            (self.pass_time, self.random.choice([10, 20])),
            (self.propose, self.random.choice([2, 10])),
            (self.restart, 4),
            (self.heal, 2),
            # Each walk has its own mix of faults: some bugs only show where other faults are absent.
            (self.drop, self.random.choice([0, 2])),
            (self.repeat, self.random.choice([0, 2])),
            (self.break_connection, self.random.choice([0, 1])),
            (self.crash, self.random.choice([0, 1, 3])),
            (self.crash_leader, self.random.choice([0, 1, 4])),
            (self.cut, self.random.choice([0, 1, 2])),
            (self.cut_leader_off, self.random.choice([0, 1, 4])),
            (self.snapshot, self.random.choice([0, 0, 2])),
            (self.resign, self.random.choice([0, 0, 1])),
            (self.change, self.random.choice([0, 2, 6])),
        ]

    def run(self) -> None:
        doers = [action for action, _ in self.actions]
        weights = [weight for _, weight in self.actions]
        for action in self.random.choices(doers, weights, k=self.steps):
            action()
        self.come_together()

    # --- events -----------------------------------------------------------------------------------------

    def _up(self) -> list[Member]:
        return [member for member in self.cluster.members.values() if member.raft is not None]

    def _leaders(self) -> list[Member]:
        return [member for member in self._up() if isinstance(member.running.core.state, Leader)]

    def deliver(self) -> None:
        network = self.cluster.network
        for _ in range(min(len(network), self.random.choice([1, 1, 4, 8]))):
            # Mostly in order, sometimes from anywhere in the list.
            place = 0 if self.random.random() < 0.5 else self.random.randrange(len(network))
            self.cluster.deliver(network.pop(place))

    def drop(self) -> None:
        if self.cluster.network:
            self.cluster.network.pop(self.random.randrange(len(self.cluster.network)))

    def repeat(self) -> None:
        """Delivers a request twice."""
        requests = [message for message in self.cluster.network if isinstance(message.body, Request)]
        if requests and len(self.cluster.network) < MAX_MESSAGES:
            self.cluster.deliver(self.random.choice(requests))

    def break_connection(self) -> None:
        fetches = [message for message in self.cluster.network if isinstance(message.body, Fetch)]
        if fetches:
            self.cluster.fail(self.random.choice(fetches))

    def write(self) -> None:
        for _ in range(self.random.choice([1, 1, 2, 4])):
            waiting = [member for member in self.cluster.members.values() if member.todo]
            if waiting:
                _, do = self.random.choice(waiting).todo.pop(0)
                do()

    def pass_time(self) -> None:
        self.cluster.now += self.random.choice([5, 20, 50, 100, 300])
        for node_id in self.random.sample(sorted(self.cluster.members), len(self.cluster.members)):
            self.cluster.tick(node_id)

    def propose(self) -> None:
        leaders = self._leaders()
        if leaders:
            self.proposals += 1
            self.cluster.propose(self.random.choice(leaders).id, f"p{self.proposals}")

    def crash(self) -> None:
        up = self._up()
        if up:
            self.cluster.crash(self.random.choice(up).id, self.random.choice([0, 0, 1, 2]))

    def crash_leader(self) -> None:
        for member in self._leaders():
            self.cluster.crash(member.id)

    def restart(self) -> None:
        down = [member for member in self.cluster.members.values() if member.raft is None]
        if down:
            self.cluster.start(self.random.choice(down).id)

    def cut(self) -> None:
        ids = sorted(self.cluster.members)
        if self.random.random() < 0.7:
            side = set(self.random.sample(ids, self.random.randrange(len(ids) + 1)))
            self.cluster.cuts = {(a, b) for a in ids for b in ids if (a in side) != (b in side)}
        else:
            self.cluster.cuts.add((self.random.choice(ids), self.random.choice(ids)))

    def cut_leader_off(self) -> None:
        for member in self._leaders():
            self.cluster.cuts |= {(member.id, one) for one in self.cluster.members}
            self.cluster.cuts |= {(one, member.id) for one in self.cluster.members}

    def heal(self) -> None:
        self.cluster.cuts.clear()

    def snapshot(self) -> None:
        idle = [member for member in self._up() if member.running.core.installing is None]
        if idle:
            member = self.random.choice(idle)
            if member.high_watermark <= member.log.flushed:
                self.cluster.take_snapshot(member.id)

    def resign(self) -> None:
        for member in self._leaders()[:1]:
            self.cluster.resign(member.id)

    def change(self) -> None:
        for member in self._leaders():
            core = member.running.core
            outside = [one for one in self.cluster.members if core.voters.latest.find(one) is None]
            if outside and self.random.random() < 0.6:
                self.cluster.ask(member.id, AddVoter(voter(self.random.choice(outside))))
            else:
                self.cluster.ask(member.id, RemoveVoter(voter(self.random.choice(core.voters.latest.ids)).key))

    # --- the end ----------------------------------------------------------------------------------------

    def come_together(self) -> None:
        """Runs all nodes without faults until one node leads, all other nodes have its log, and the whole log is
        committed."""
        cluster = self.cluster
        cluster.cuts.clear()
        cluster.manual_saves.clear()
        cluster.manual_flushes.clear()
        for member in cluster.members.values():
            while member.todo:
                member.todo.pop(0)[1]()
            if member.raft is not None and member.raft.core.stopping:
                cluster.crash(member.id)
            if member.raft is None:
                cluster.start(member.id)
        for _ in range(HEAL_STEPS):
            for _ in range(HEAL_STEPS):
                if not cluster.network:
                    break
                cluster.deliver(cluster.network.pop(0))
            require(not cluster.network, "the network runs out of messages")
            if self._together():
                return
            cluster.now += 20
            for node_id in cluster.members:
                cluster.tick(node_id)
        require(False, "the quorum does not recover")

    def _together(self) -> bool:
        members = list(self.cluster.members.values())
        leaders = [one for one in members if isinstance(one.running.core.state, Leader)]
        if len(leaders) != 1:
            return False
        leader = leaders[0]
        for member in members:
            core = member.running.core
            if core.epoch != leader.running.core.epoch or member.high_watermark != leader.log.end_offset:
                return False
            if member is not leader and not isinstance(core.state, Follower):
                return False
        require(leader.log.end_offset == self.cluster.checker.high_watermark, "the leader has all committed records")
        return True


def run_seeds(first: int, count: int, mix: dict[str, int] | None = None) -> None:
    for seed in range(first, first + count):
        try:
            Walk(seed, mix=mix).run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
