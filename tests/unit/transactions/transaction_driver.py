"""Runs a transaction coordinator without a broker: it takes requests and returns answers, markers and a journal.

The test moves the coordinator's clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import TopicPartition
from penstock.transactions import ending, initialize, partitions
from penstock.transactions.config import TransactionConfig
from penstock.transactions.journal import decode_record, encode_record
from penstock.transactions.shard import TransactionShard
from penstock.transactions.states import State
from penstock.transactions.transaction import Owner, Transaction
from penstock.transactions.turn import Answer, Markers, Turn

R = TypeVar("R")

WALL_START_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
T0: TopicPartition = ("t", 0)
T1: TopicPartition = ("t", 1)
V1, V2 = 0, 2  # the transaction versions of clients before and since version 2


class Driver:
    def __init__(self, *, server_version: int = 2, config: TransactionConfig | None = None) -> None:
        self.config = config or TransactionConfig()
        self.server_version = server_version
        self.next_producer_id: int | None = 1000
        self.shard = TransactionShard(self.config, self._take_id, lambda: self.server_version)
        self.now_ms = 0
        self.journal: list[tuple[bytes, bytes | None]] = []
        self.markers: list[Markers] = []  # requested, but not written yet

    def _take_id(self) -> int | None:
        if self.next_producer_id is None:
            return None
        self.next_producer_id += 1
        return self.next_producer_id - 1

    # --- the runtime's part

    @property
    def wall_ms(self) -> int:
        return WALL_START_MS + self.now_ms

    def run(self, decide: Callable[[Turn], R]) -> R:
        turn = self.shard.turn(self.now_ms, self.wall_ms)
        result = decide(turn)
        for record in turn.records:
            self.journal.append(encode_record(record, self.server_version))
            self.shard.apply(record, len(self.journal) - 1)
        assert not turn.replies
        for effect in turn.effects:
            assert isinstance(effect, Markers)
            self.markers.append(effect)
        return result

    def write_markers(self) -> list[Markers]:
        """Writes all requested markers to their partitions."""
        written, self.markers = self.markers, []
        for markers in written:
            self.run(lambda turn, markers=markers: ending.complete(self.shard, turn, markers))  # type: ignore[misc]
        return written

    def advance(self, milliseconds: int) -> None:
        end = self.now_ms + milliseconds
        while (deadline := self.shard.next_deadline()) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self.run(self.shard.on_timers)
        self.now_ms = end

    def reload(self, journal: list[tuple[bytes, bytes | None]] | None = None) -> Driver:
        """Replays the journal, as another broker does when it takes the partition over."""
        other = Driver(server_version=self.server_version, config=self.config)
        other.now_ms, other.next_producer_id = self.now_ms, self.next_producer_id
        for offset, (key, value) in enumerate(self.journal if journal is None else journal):
            record = decode_record(key, value)
            assert record is not None
            other.shard.apply(record, offset)
        other.journal = list(self.journal)
        other.run(other.shard.loaded)
        return other

    # --- requests

    def init(
        self,
        name: str = "tx",
        *,
        timeout_ms: int = TIMEOUT_MS,
        expected: Answer | None = None,
        two_phase: bool = False,
        keep: bool = False,
    ) -> Answer:
        owner = Owner(expected.producer_id, expected.producer_epoch) if expected is not None else None
        return self.run(
            lambda turn: initialize.initialize(
                self.shard, turn, name, timeout_ms, owner, two_phase=two_phase, keep=keep
            )
        )

    def add(self, who: Answer, *added: TopicPartition, name: str = "tx", version: int = V2) -> ErrorCode:
        return self.run(
            lambda turn: partitions.add(
                self.shard, turn, name, who.producer_id, who.producer_epoch, added or (T0,), version
            )
        )

    def verify(self, who: Answer, partition: TopicPartition = T0, *, name: str = "tx") -> ErrorCode:
        return partitions.verify(self.shard, name, who.producer_id, who.producer_epoch, [partition])[partition]

    def end(self, who: Answer, commit: bool, *, name: str = "tx", version: int = V2) -> Answer:
        return self.run(
            lambda turn: ending.end(self.shard, turn, name, who.producer_id, who.producer_epoch, commit, version)
        )

    def commit(self, who: Answer, *, version: int = V2) -> Answer:
        return self.end(who, True, version=version)

    def abort(self, who: Answer, *, version: int = V2) -> Answer:
        return self.end(who, False, version=version)

    def expire(self, name: str = "tx") -> None:
        self.run(lambda turn: self.shard.expire(turn, name))

    # --- queries

    def transaction(self, name: str = "tx") -> Transaction:
        return self.shard.transactions[name]

    def state(self, name: str = "tx") -> State:
        return self.transaction(name).state

    def in_state(self, state: State, *, version: int = V2) -> Answer:
        """Brings the transactional id into the state by its usual transitions. Returns the producer as the client knows
        it."""
        who = self.init()
        if state is State.EMPTY:
            return who
        assert self.add(who, version=version) is ErrorCode.NONE
        if state is State.ONGOING:
            return who
        committed = state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
        who = self.end(who, committed, version=version)
        if state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
            self.write_markers()
        assert self.state() is state
        return who

    def set_epoch(self, epoch: int) -> Answer:
        """Sets the producer epoch, as if the id had been used so many times."""
        from dataclasses import replace

        self.shard.transactions["tx"] = replace(self.transaction(), producer_epoch=epoch)
        return Answer(ErrorCode.NONE, self.transaction().producer_id, epoch)
