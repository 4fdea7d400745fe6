"""Models a quorum of Raft nodes: elections, late requests, crashes, proposals and changes of voters.

The model runs the node's own code (`penstock.raft`) on the disks and the network of `raft_cluster` in the unit tests.
The `Checker` of `raft_cluster` has the invariants: one leader per epoch, log matching, leader completeness, commits
only by a majority.

The model has no clock. A timeout may happen at any moment, a limited number of times (`Budget`). Requests arrive in any
order, even long after their sender has stopped waiting. A response arrives at once, or it is lost and the connection
breaks.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "unit" / "raft"))

from raft_cluster import CLIENT, Cluster, Member, Message, ViolationError, voter

from penstock.raft.config import RaftConfig
from penstock.raft.events import Tick
from penstock.raft.messages import AddVoter, RemoveVoter, Request
from penstock.raft.states import Candidate, Follower, Leader, Prospective, Resigned, Unattached


class Steady(Random):
    """Returns zero as every random number, so that two states differ only by their events."""

    def random(self) -> float:
        return 0.0

    def randrange(self, *_: Any, **__: Any) -> int:
        return 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Steady, ()


class Budget(NamedTuple):
    """Holds how many times each event may still happen."""

    timeouts: int = 1
    proposals: int = 0
    crashes: int = 0
    lost_answers: int = 0
    removals: int = 0
    additions: int = 0


class State:
    """Holds a cluster as bytes. Two states are equal if they differ only in the numbers of messages and tickets."""

    __slots__ = ("budget", "data", "key", "problem")

    def __init__(self, cluster: Cluster, budget: Budget, problem: str = "") -> None:
        self.data = pickle.dumps(cluster)
        self.budget = budget
        self.problem = problem
        self.key = (_fingerprint(cluster), budget, problem)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.key == other.key

    def cluster(self) -> Cluster:
        loaded: Cluster = pickle.loads(self.data)
        return loaded


def _ignore(line: str) -> None:
    """Does nothing. This function replaces a listener, because a lambda could not be pickled."""


class RaftModel:
    """Models the quorum. In the first state no node has voted; with `led`, node 1 leads and all logs are equal."""

    def __init__(
        self,
        budget: Budget,
        voters: tuple[int, ...] = (1, 2, 3),
        observers: tuple[int, ...] = (),
        *,
        led: bool = True,
        keep_votes: bool = True,
    ) -> None:
        self._budget = budget
        self._voters = voters
        self._observers = observers
        self._led = led
        self._keep_votes = keep_votes

    def first(self) -> State:
        cluster = Cluster(list(self._voters), config=RaftConfig())
        cluster.on_event = _ignore
        cluster.random = Steady()
        cluster.keep_votes = self._keep_votes
        _steady(cluster)
        if self._led:
            _time_out(cluster, 1)
            _settle(cluster)
        for observer in self._observers:  # now, because an observer that finds no leader pauses
            cluster.add_member(observer)
            _steady(cluster)
            _settle(cluster)
        return State(cluster, self._budget)

    def broken(self, state: State) -> str:
        return state.problem

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.problem:
            return
        seen = state.cluster()
        budget = state.budget
        for place, message in enumerate(seen.network):
            text = _shown(message)
            yield self._step(state, f"{text} arrives", budget, partial(_arrive, place=place))
            if budget.lost_answers:
                less = budget._replace(lost_answers=budget.lost_answers - 1)
                yield self._step(
                    state, f"{text} arrives, the answer is lost", less, partial(_arrive, place=place, lost=True)
                )
        for member in seen.members.values():
            yield from self._steps_of(state, member)

    def _steps_of(self, state: State, member: Member) -> Iterator[tuple[str, State]]:
        budget, each = state.budget, member.id
        role = member.running.core.state
        if budget.timeouts and isinstance(role, Unattached | Prospective | Candidate | Follower | Resigned):
            less = budget._replace(timeouts=budget.timeouts - 1)
            yield self._step(state, f"n{each}, {role.name}, times out", less, lambda c: _time_out(c, each))
        if budget.crashes:
            less = budget._replace(crashes=budget.crashes - 1)
            yield self._step(state, f"n{each} crashes and starts again", less, lambda c: _restart(c, each))
        if not isinstance(role, Leader):
            return
        if budget.proposals:
            less = budget._replace(proposals=budget.proposals - 1)
            yield self._step(state, f"n{each} appends a record", less, lambda c: c.propose(each, f"p{less.proposals}"))
        voters = member.running.core.voters.latest
        if budget.removals:
            less = budget._replace(removals=budget.removals - 1)
            for one in voters.ids:
                removal = RemoveVoter(voter(one).key)
                yield self._step(
                    state, f"n{each} is asked to remove voter {one}", less, partial(_ask, each=each, request=removal)
                )
        if budget.additions:
            less = budget._replace(additions=budget.additions - 1)
            for one in self._observers:
                addition = AddVoter(voter(one))
                yield self._step(
                    state, f"n{each} is asked to add voter {one}", less, partial(_ask, each=each, request=addition)
                )

    @staticmethod
    def _step(state: State, text: str, budget: Budget, do: Callable[[Cluster], None]) -> tuple[str, State]:
        cluster = state.cluster()
        try:
            do(cluster)
        except ViolationError as error:
            return text, State(cluster, budget, str(error))
        return text, State(cluster, budget)


def _steady(cluster: Cluster) -> None:
    for member in cluster.members.values():
        member.running.core.random = Steady()


def _arrive(cluster: Cluster, place: int, *, lost: bool = False) -> None:
    """Delivers a request and all responses that it causes.

    With `lost`, the response to this request is lost and its connection breaks.
    """
    message = cluster.network.pop(place)
    cluster.deliver(message)
    if lost:
        cluster.network = [one for one in cluster.network if _is_request(one) or one.send_id != message.send_id]
        cluster.fail(message)
    _answers(cluster)


def _answers(cluster: Cluster) -> None:
    while answer := next((one for one in cluster.network if not _is_request(one)), None):
        cluster.network.remove(answer)
        cluster.deliver(answer)


def _ask(cluster: Cluster, each: int, request: Request) -> None:
    cluster.ask(each, request)
    _answers(cluster)


def _time_out(cluster: Cluster, each: int) -> None:
    role = cluster.members[each].running.core.state
    assert not isinstance(role, Leader)
    role.deadline_ms = cluster.now
    cluster.step(each, Tick())
    _answers(cluster)


def _restart(cluster: Cluster, each: int) -> None:
    cluster.crash(each)
    cluster.start(each)
    _steady(cluster)
    _answers(cluster)


def _settle(cluster: Cluster) -> None:
    """Delivers all requests in order until no request is left."""
    for _ in range(1_000):
        if not cluster.network:
            return
        _arrive(cluster, 0)
    raise AssertionError("after 1,000 deliveries there are still requests in flight")


def _is_request(message: Message) -> bool:
    return isinstance(message.body, Request)


# What makes two states equal.


def _fingerprint(cluster: Cluster) -> str:
    members = [_member_text(cluster, member) for member in cluster.members.values()]
    waiting = sorted(_message_text(cluster, message) for message in cluster.network)
    committed = [(batch.base_offset, batch.epoch, str(batch.content)) for batch in cluster.checker.history]
    leaders = sorted(cluster.checker.leaders.items())
    return repr((members, waiting, committed, leaders))


def _message_text(cluster: Cluster, message: Message) -> str:
    sender = cluster.members.get(message.source)
    waits = (
        sender is not None
        and sender.life == message.life
        and sender.raft is not None
        and message.send_id in sender.raft.core.peers._flights
    )
    return repr((message.source, message.target, message.body, waits))


def _member_text(cluster: Cluster, member: Member) -> str:
    core = member.running.core
    flights = sorted(repr((flight.to, flight.request)) for flight in core.peers._flights.values())
    paused = sorted(repr(kind) for kind in core.peers._not_before)
    log = [(batch.base_offset, batch.last_offset, batch.epoch, str(batch.content)) for batch in member.log.written]
    facts = (core.high_watermark, core.log.end_offset, core.voters._changes, core.epochs_by_request, member.state)
    return repr((member.id, _role_text(cluster, core.state), flights, paused, log, facts))


def _role_text(cluster: Cluster, role: Any) -> str:
    if not isinstance(role, Leader):
        return repr(role)
    parked = sorted(
        f"{cluster.tickets[ticket].source} {_message_text(cluster, cluster.tickets[ticket])}" for ticket in role.parked
    )
    table = sorted((key, replica.end_offset) for key, replica in role.replicas.table.items())
    change = role.change.offset if role.change is not None else None
    return repr((role.epoch, role.start_offset, sorted(role.granted_by), table, parked, change, role.begin_due_ms))


def _shown(message: Message) -> str:
    body = message.body
    details = {name: getattr(body, name) for name in ("epoch", "offset", "pre_vote") if hasattr(body, name)}
    source = "client" if message.source == CLIENT else f"n{message.source}"
    named = " ".join(f"{name}={value}" for name, value in details.items())
    return f"{type(body).__name__}({named}) of {source} to n{message.target}"
