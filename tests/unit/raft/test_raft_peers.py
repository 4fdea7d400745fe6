"""Compares the requests in flight with a plain list of them, over random steps."""

from __future__ import annotations

import random

import pytest
from raft_cluster import voter

from penstock.raft.config import RaftConfig
from penstock.raft.messages import BeginEpoch, Fetch, Request, Vote
from penstock.raft.peers import InFlight, Peers

CONFIG = RaftConfig(request_timeout_ms=40, retry_backoff_ms=15)
KINDS: dict[type[Request], Request] = {
    Vote: Vote(voter(1).key, voter(2).key, 1, 1, 1, False),
    Fetch: Fetch(voter(1).key, 1, 1, 1, 1, 0),
    BeginEpoch: BeginEpoch(voter(1).key, 2, 1),
}


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.peers = Peers(CONFIG)
        self.now_ms = 0
        self.flights: dict[int, tuple[int, type[Request], int]] = {}
        self.pauses: dict[tuple[int, type[Request]], int] = {}
        self.used: set[int] = {0}

    def run(self) -> None:
        steps = [self.send, self.end, self.end_unknown, self.pause, self.give_up, self.forget, self.pass_time]
        for step in self.random.choices(steps, [8, 4, 1, 1, 2, 0.3, 4], k=200):
            step()
            self.compare()

    def compare(self) -> None:
        for to in (2, 3):
            for kind in KINDS:
                busy = any((flight[0], flight[1]) == (to, kind) for flight in self.flights.values())
                due = max(self.now_ms, self.pauses.get((to, kind), 0))
                assert self.peers.due_ms(to, kind, self.now_ms) == (None if busy else due)
        ends = [flight[2] for flight in self.flights.values()]
        assert self.peers.deadline_ms() == (min(ends) if ends else None)

    def send(self) -> None:
        to, kind = self.random.choice((2, 3)), self.random.choice(list(KINDS))
        if self.peers.due_ms(to, kind, self.now_ms) == self.now_ms:
            send_id = self.peers.sent(to, KINDS[kind], self.now_ms)
            assert send_id not in self.used
            self.used.add(send_id)
            self.flights[send_id] = to, kind, self.now_ms + CONFIG.request_timeout_ms

    def end(self) -> None:
        if self.flights:
            send_id = self.random.choice(list(self.flights))
            to, kind, deadline_ms = self.flights.pop(send_id)
            pause = self.random.random() < 0.5
            found = self.peers.done(send_id, self.now_ms, pause=pause)
            assert found == InFlight(to, KINDS[kind], deadline_ms)
            self.pauses.pop((to, kind), None)
            if pause:
                self.pauses[to, kind] = self.now_ms + CONFIG.retry_backoff_ms

    def end_unknown(self) -> None:
        """Answers a request that was answered or given up before."""
        for send_id in self.used - set(self.flights):
            assert self.peers.done(send_id, self.now_ms, pause=True) is None

    def pause(self) -> None:
        to, kind = self.random.choice((2, 3)), self.random.choice(list(KINDS))
        for_ms = self.random.choice([None, 0, 90])
        self.peers.pause(to, kind, self.now_ms, for_ms)
        self.pauses[to, kind] = self.now_ms + (CONFIG.retry_backoff_ms if for_ms is None else for_ms)

    def give_up(self) -> None:
        self.peers.give_up_late(self.now_ms)
        for send_id, (to, kind, deadline_ms) in list(self.flights.items()):
            if deadline_ms <= self.now_ms:
                del self.flights[send_id]
                self.pauses[to, kind] = self.now_ms + CONFIG.retry_backoff_ms

    def forget(self) -> None:
        self.peers.forget()
        self.flights.clear()
        self.pauses.clear()

    def pass_time(self) -> None:
        self.now_ms += self.random.choice([1, 5, 15, 20])


@pytest.mark.parametrize("seed", range(10))
def test_each_peer_gets_one_request_of_a_kind_at_a_time_and_the_next_after_its_pause(seed: int) -> None:
    Walk(seed).run()
