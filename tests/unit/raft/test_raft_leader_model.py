"""Compares a leader of the quorum with a plain model, over random fetches, proposals, syncs and changes of voters.

The model keeps the log as a list of epochs, and computes each answer from all fetches so far.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from raft_cluster import voter
from raft_node import CONFIG, Replica, leader

from penstock.protocol.errors import ErrorCode
from penstock.raft.describe import ReplicaView, describe
from penstock.raft.events import Append, Committed, LogFlushed, Propose, QuorumState, Received, Reply, Tick
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.messages import AddVoter, Fetch, FetchAnswer, FetchSnapshot, RemoveVoter, VoterAnswer
from penstock.raft.voters import ReplicaKey, VoterSet

EPOCH = 3
LIMITS = replace(CONFIG, max_parked_fetches=3, observer_session_ms=700, max_observers=3, max_uncommitted_records=9)
#: The voters, three observers, a voter and an observer with a second directory, and a client.
KEYS = [
    *(voter(each).key for each in (2, 3, 4, 5, 6)),
    *(ReplicaKey(each, b"another directo.") for each in (2, 4)),
    ReplicaKey(-1),
]


@dataclass
class Fetcher:
    end: int = -1
    fetch_ms: int = -1
    caught_up_ms: int = -1
    leader_end: int = -1


@dataclass
class Model:
    epochs: list[int]
    now_ms: int
    flushed: int
    start: int
    mark: int = 0
    fetchers: dict[ReplicaKey, Fetcher] = field(default_factory=dict)
    newest: dict[int, ReplicaKey] = field(default_factory=dict)
    parked: dict[int, tuple[Fetch, int]] = field(default_factory=dict)
    voters: tuple[int, ...] = (1, 2, 3)
    voters_offset: int = -1
    change: tuple[int, int, int] | None = None
    replies: dict[int, object] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return len(self.epochs)

    def hear(self, key: ReplicaKey) -> Fetcher | None:
        if key.node_id < 0:
            return None
        self.newest[key.node_id] = key
        return self.fetchers.setdefault(key, Fetcher())

    def fetch(self, ticket: int, request: Fetch) -> None:
        offset, epoch = request.offset, request.last_epoch
        known = [each for each in self.epochs if each <= epoch]
        last = known[-1] if known else 0
        if last != epoch or offset > len(known):
            fetcher = self.hear(request.replica)
            if fetcher is not None:
                fetcher.fetch_ms = self.now_ms
            cut = OffsetAndEpoch(len(known), last)
            self.replies[ticket] = FetchAnswer(ErrorCode.NONE, EPOCH, 1, self.mark, diverging=cut)
            return
        fetcher = self.hear(request.replica)
        if fetcher is not None:
            if offset >= self.end:
                fetcher.caught_up_ms = self.now_ms
            elif 0 <= fetcher.leader_end <= offset:
                fetcher.caught_up_ms = max(fetcher.caught_up_ms, fetcher.fetch_ms)
            fetcher.end, fetcher.leader_end, fetcher.fetch_ms = offset, self.end, self.now_ms
        self.commit()
        if request.max_wait_ms and len(self.parked) < LIMITS.max_parked_fetches and not self.news(request):
            self.parked[ticket] = request, self.now_ms + request.max_wait_ms
        else:
            self.answer(ticket, request)

    def news(self, request: Fetch) -> bool:
        return request.offset < self.end or request.high_watermark < self.mark

    def answer(self, ticket: int, request: Fetch) -> None:
        answer = FetchAnswer(ErrorCode.NONE, EPOCH, 1, self.mark, read_from=request.offset, max_bytes=request.max_bytes)
        self.replies[ticket] = answer

    def commit(self) -> None:
        ends = [self.flushed]
        ends += [self.fetchers.get(voter(each).key, Fetcher()).end for each in self.voters if each != 1]
        offset = sorted(ends)[-(len(self.voters) // 2 + 1)]
        if offset > max(self.mark, self.start):
            self.mark = offset
            if self.change is not None and self.change[1] < offset:
                self.replies[self.change[0]] = VoterAnswer(ErrorCode.NONE, EPOCH, 1)
                self.change = None

    def wake(self) -> None:
        for ticket, (request, deadline_ms) in list(self.parked.items()):
            if self.news(request) or deadline_ms <= self.now_ms:
                del self.parked[ticket]
                self.answer(ticket, request)

    def settle(self) -> None:
        """Does what every step ends with: parked fetches are answered, old observers forgotten."""
        if self.change is not None and self.change[2] <= self.now_ms:
            self.replies[self.change[0]] = ErrorCode.REQUEST_TIMED_OUT
            self.change = None
        self.wake()
        counted = [voter(each).key for each in self.voters]
        others = sorted(
            (key for key in self.fetchers if key not in counted), key=lambda key: (self.fetchers[key].fetch_ms, key)
        )
        for place, key in enumerate(others):
            old = self.fetchers[key].fetch_ms < self.now_ms - LIMITS.observer_session_ms
            if old or place < len(others) - LIMITS.max_observers:
                del self.fetchers[key]
                left = [each for each in self.fetchers if each.node_id == key.node_id]
                if self.newest[key.node_id] == key and left:
                    self.newest[key.node_id] = max(left, key=lambda each: self.fetchers[each].fetch_ms)

    def views(self) -> tuple[list[ReplicaView], set[ReplicaView]]:
        keys = [voter(each).key for each in self.voters if each != 1]
        voters = [view(key, self.fetchers.get(key, Fetcher())) for key in keys]
        observers = {
            view(key, fetcher)
            for key, fetcher in self.fetchers.items()
            if key not in keys and (self.newest.get(key.node_id) == key or key.node_id in self.voters)
        }
        me = ReplicaView(voter(1).key, self.end, self.now_ms, self.now_ms)
        return [me, *voters], observers


def view(key: ReplicaKey, fetcher: Fetcher) -> ReplicaView:
    return ReplicaView(key, fetcher.end, fetcher.fetch_ms, fetcher.caught_up_ms)


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.replica: Replica = leader(config=LIMITS, saved=QuorumState(EPOCH - 1), log_end=3)
        self.replica.syncs = False
        core = self.replica.raft.core
        self.model = Model([1, 1, 1, EPOCH], self.replica.now_ms, core.log.flushed_offset, 3)
        self.ticket = 100

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.model.replies = {}
            before = self.model.mark
            self.ticket += 1
            kinds = [self.fetch, self.propose, self.flush, self.pass_time, self.change, self.heard]
            self.random.choices(kinds, [12, 3, 4, 3, 2, 1])[0]()
            self.model.settle()
            self.compare(before)

    def compare(self, before: int) -> None:
        core, model = self.replica.raft.core, self.model
        found: dict[int, object] = {}
        for each in self.replica.effects:
            if isinstance(each, Reply):
                assert each.ticket not in found, "one answer to each request"
                answer = each.answer
                late = isinstance(answer, VoterAnswer) and answer.error
                found[each.ticket] = answer.error if late else answer
        assert found == model.replies
        assert (core.high_watermark, core.log.end_offset) == (model.mark, model.end)
        commits = [each.high_watermark for each in self.replica.effects if isinstance(each, Committed)]
        assert commits == ([model.mark] if model.mark > before else [])
        assert set(self.replica.leading.parked) == set(model.parked)
        seen = describe(core)
        voters, observers = model.views()
        assert list(seen.voters) == voters
        assert (set(seen.observers), len(seen.observers)) == (observers, len(observers))
        assert (seen.leader_id, seen.epoch, seen.high_watermark) == (1, EPOCH, model.mark)
        assert core.voters.latest == VoterSet.of(map(voter, model.voters))
        assert self.replica.raft.deadline() > model.now_ms
        for _, deadline_ms in model.parked.values():
            assert self.replica.raft.deadline() <= deadline_ms

    def do(self, event: object) -> None:
        self.replica.now_ms = self.model.now_ms
        self.replica.do(event)  # type: ignore[arg-type]

    # --- events

    def fetch(self) -> None:
        model, key = self.model, self.random.choice(KEYS)
        offset = self.random.choice([model.end, model.end, self.random.randint(0, model.end)])
        last_epoch = model.epochs[offset - 1] if offset else 0
        if self.random.random() < 0.15:  # a log that diverges
            offset, last_epoch = self.random.randint(1, model.end + 2), self.random.choice([1, 2, EPOCH])
            if offset <= model.end and last_epoch > model.epochs[offset - 1]:
                last_epoch = 2
        mark = self.random.choice([model.mark, model.mark, model.mark - 1])
        wait_ms = self.random.choice([0, 0, 150, 400])
        request = Fetch(key, EPOCH, offset, last_epoch, mark, wait_ms)
        model.fetch(self.ticket, request)
        self.do(Received(self.ticket, request))

    def heard(self) -> None:
        key = self.random.choice(KEYS)
        fetcher = self.model.hear(key)
        if fetcher is not None:
            fetcher.fetch_ms = self.model.now_ms
        self.do(Received(self.ticket, FetchSnapshot(key, EPOCH, OffsetAndEpoch(1, 1), 0, 10)))
        (reply,) = [each for each in self.replica.effects if isinstance(each, Reply) and each.ticket == self.ticket]
        self.model.replies[self.ticket] = reply.answer

    def propose(self) -> None:
        sizes = [self.random.randint(1, 2) for _ in range(self.random.randint(1, 2))]
        model = self.model
        if model.end + sum(sizes) - model.mark <= LIMITS.max_uncommitted_records:
            model.epochs += [EPOCH] * sum(sizes)
        self.do(Propose(1, EPOCH, tuple((size, b"") for size in sizes)))
        appends = [type(each) for each in self.replica.effects if isinstance(each, Append | Reply)]
        assert Append not in appends[1:], "the records are written before fetches are answered with them"

    def flush(self) -> None:
        model = self.model
        model.flushed = self.random.randint(model.flushed, model.end)
        model.commit()
        self.do(LogFlushed(model.flushed))

    def pass_time(self) -> None:
        self.model.now_ms += self.random.choice([1, 50, 150, 300])
        if self.random.random() < 0.9:  # a leader that hears from nobody resigns
            for node_id in (2, 3, 4):
                self.model.hear(voter(node_id).key).fetch_ms = self.model.now_ms  # type: ignore[union-attr]
                self.replica.leading.replicas.heard(voter(node_id).key, self.model.now_ms)
        self.do(Tick())

    def change(self) -> None:
        model, node_id = self.model, self.random.choice([2, 3, 4])
        listed = node_id in model.voters
        asked = RemoveVoter(voter(node_id).key, 350) if listed else AddVoter(voter(node_id), 350)
        fetcher = model.fetchers.get(voter(node_id).key)
        if model.mark <= model.start or model.voters_offset >= model.mark or model.change is not None:
            model.replies[self.ticket] = ErrorCode.REQUEST_TIMED_OUT
        elif listed and len(model.voters) == 1:
            model.replies[self.ticket] = ErrorCode.INVALID_REQUEST
        elif not listed and (fetcher is None or fetcher.caught_up_ms < model.now_ms - LIMITS.fetch_timeout_ms):
            model.replies[self.ticket] = ErrorCode.REQUEST_TIMED_OUT
        else:
            model.voters = tuple(sorted({*model.voters} ^ {node_id}))
            model.voters_offset = model.end
            model.epochs.append(EPOCH)
            model.wake()
            model.change = self.ticket, model.voters_offset, model.now_ms + 350
            model.commit()
        self.do(Received(self.ticket, asked))


@pytest.mark.parametrize("seed", range(30))
def test_leader_answers_and_commits_as_the_plain_model_does(seed: int) -> None:
    Walk(seed).run(150)
