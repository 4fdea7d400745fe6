"""Runs one replica of a quorum step by step, with a disk that saves and syncs at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import deepcopy

from raft_cluster import voter

from penstock.protocol.errors import ErrorCode
from penstock.raft.config import RaftConfig
from penstock.raft.events import (
    Answered,
    Effect,
    Event,
    LogFlushed,
    QuorumState,
    Received,
    Reply,
    SaveState,
    Send,
    StateSaved,
    Tick,
)
from penstock.raft.log_view import LogView
from penstock.raft.machine import Raft
from penstock.raft.messages import Answer, Fetch, FetchAnswer, Request, Vote, VoteAnswer
from penstock.raft.states import Leader
from penstock.raft.voters import Voter, VoterHistory, VoterSet

CONFIG = RaftConfig()
#: A time at which every voter without a leader stands for election.
STAND_MS = 2 * CONFIG.election_timeout_ms


class Replica:
    def __init__(
        self,
        me: int = 1,
        voters: Sequence[int] = (1, 2, 3),
        *,
        saved: QuorumState | None = None,
        config: RaftConfig = CONFIG,
        as_voter: Voter | None = None,
        log_end: int = 0,
    ) -> None:
        history = VoterHistory(VoterSet.of(map(voter, voters)))
        log = LogView(end_offset=log_end, epochs=[(1, 0)] if log_end else [])
        self.config = config
        self.now_ms = 0
        self.raft = Raft(config, as_voter or voter(me), random=random.Random(1), log=log, voters=history, saved=saved)
        self.effects: list[Effect] = []
        self.syncs = True

    def do(self, event: Event) -> list[Effect]:
        effects = self.raft.step(event, self.now_ms)
        self.effects = list(effects)
        while effects and isinstance(effects[-1], SaveState):
            effects = self.raft.step(StateSaved(), self.now_ms)
            self.effects += effects
        log = self.raft.core.log
        if self.syncs and log.flushed_offset < log.end_offset:
            self.effects += self.raft.step(LogFlushed(log.end_offset), self.now_ms)
        return self.effects

    def at(self, now_ms: int) -> list[Effect]:
        self.now_ms = now_ms
        return self.do(Tick())

    def ask(self, request: Request, ticket: int = 1) -> Answer | None:
        """Passes a request to the replica. Returns its answer, or None if there is none yet."""
        self.do(Received(ticket, request))
        answers = [each.answer for each in self.effects if isinstance(each, Reply) and each.ticket == ticket]
        assert len(answers) <= 1
        return answers[0] if answers else None

    def replies(self) -> dict[int, ErrorCode]:
        return {each.ticket: each.answer.error for each in self.effects if isinstance(each, Reply)}

    def sent(self, kind: type[object]) -> list[Send]:
        return [each for each in self.effects if isinstance(each, Send) and isinstance(each.request, kind)]

    def answer(self, send: Send, answer: Answer, *, known: bool = True) -> list[Effect]:
        return self.do(Answered(send.send_id, answer, known))

    @property
    def role(self) -> str:
        return self.raft.core.state.name

    @property
    def leading(self) -> Leader:
        state = self.raft.core.state
        assert isinstance(state, Leader)
        return state

    def fetch(self, node_id: int, offset: int | None = None, *, wait_ms: int = 0, ticket: int = 9) -> Answer | None:
        core = self.raft.core
        offset = core.log.end_offset if offset is None else offset
        high_watermark = core.high_watermark
        key = voter(node_id).key
        return self.ask(Fetch(key, core.epoch, offset, core.log.last_epoch, high_watermark, wait_ms), ticket)

    def copy(self) -> Replica:
        return deepcopy(self)


def candidate(**options: object) -> Replica:
    replica = prospective(**options)
    for send in replica.sent(Vote):
        if replica.role == "prospective":
            replica.answer(send, VoteAnswer(ErrorCode.NONE, replica.raft.core.epoch, -1, True))
    assert replica.role == "candidate"
    return replica


def prospective(**options: object) -> Replica:
    replica = Replica(**options)  # type: ignore[arg-type]
    replica.at(STAND_MS)
    assert replica.role == "prospective"
    return replica


def leader(**options: object) -> Replica:
    """Returns node 1, which leads the next epoch of the voters 1, 2 and 3; no other voter has fetched yet."""
    replica = candidate(**options)
    send = replica.sent(Vote)[0]
    replica.answer(send, VoteAnswer(ErrorCode.NONE, replica.raft.core.epoch, -1, True))
    assert replica.role == "leader"
    return replica


def committing(**options: object) -> Replica:
    """Returns a leader whose first record both other voters have."""
    replica = leader(**options)
    replica.fetch(2)
    replica.fetch(3)
    assert replica.raft.core.high_watermark == replica.raft.core.log.end_offset
    return replica


def follower(leader_id: int = 2) -> Replica:
    """Returns a follower in epoch 2 that has fetched from its leader, at the time 100."""
    replica = Replica(saved=QuorumState(2, leader_id), log_end=3)
    replica.at(0)
    replica.now_ms = 100
    replica.answer(replica.sent(Fetch)[0], FetchAnswer(ErrorCode.NONE, 2, leader_id, 3))
    return replica
