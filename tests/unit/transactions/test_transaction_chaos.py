"""Simulates producers, a coordinator and partitions, with a network that delays, repeats and loses messages.

Every request may arrive late, twice or never, and its answer may be lost. The coordinator is sometimes replaced while
its markers are in flight, and transactions time out. In every run: all records of a transaction have the outcome of the
transaction; records that a producer knows to be committed exist exactly once; no transaction stays open.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from transaction_driver import TIMEOUT_MS, Driver

from penstock.log.producers import AppendOrigin, ProducerStateManager, Verification
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.control import EndTxn
from penstock.records.header import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader
from penstock.transactions.states import AT_REST
from penstock.transactions.turn import Answer, Markers

NONE = ErrorCode.NONE
WAIT = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
V2 = 2


def header(offset: int, producer_id: int, epoch: int, sequence: int, flags: int) -> BatchHeader:
    return BatchHeader(offset, 61, 0, 2, 0, flags, 0, 1000, 1000, producer_id, epoch, sequence, 1)


@dataclass
class ModelPartition:
    """Holds a leader's log: batches with their producers, and the markers after them."""

    producers: ProducerStateManager = field(default_factory=ProducerStateManager)
    data: list[tuple[int, int, int]] = field(default_factory=list)  # offset, producer id, epoch
    markers: list[tuple[int, int, int, bool]] = field(default_factory=list)  # offset, producer id, epoch, committed
    end: int = 0

    def look_up(self, producer_id: int, epoch: int, sequence: int) -> Verification | None:
        return self.producers.start_verification(producer_id, epoch, sequence, supports_epoch_bump=True)

    def append(self, producer_id: int, epoch: int, sequence: int, verification: Verification | None) -> ErrorCode:
        batch = header(self.end, producer_id, epoch, sequence, TRANSACTIONAL_FLAG)
        if self.producers.find_duplicate(batch) is not None:
            return NONE
        try:
            if not self.producers.is_verified(batch, verification):
                return ErrorCode.INVALID_TXN_STATE
            self.producers.validate(batch, AppendOrigin.CLIENT)
        except KafkaError as error:
            return error.code
        self.producers.update(batch)
        self.data.append((self.end, producer_id, epoch))
        self.end += 1
        return NONE

    def mark(self, producer_id: int, epoch: int, committed: bool) -> None:
        marker = EndTxn(committed, 0)
        batch = header(self.end, producer_id, epoch, -1, TRANSACTIONAL_FLAG | CONTROL_FLAG)
        try:
            self.producers.validate(batch, AppendOrigin.COORDINATOR, marker=marker, transaction_version=V2)
        except KafkaError:
            return  # the marker belongs to an earlier transaction
        self.producers.update(batch, marker)
        self.producers.on_high_watermark(self.end + 1)
        self.markers.append((self.end, producer_id, epoch, committed))
        self.end += 1


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.coordinator = Driver()
        self.partitions = [ModelPartition() for _ in range(3)]
        self.on_the_way: list[Callable[[], None]] = []
        self.decided: dict[tuple[int, int], bool] = {}  # producer id and epoch of the markers → committed
        self.told_committed: list[tuple[int, int, dict[int, int]]] = []  # id, epoch, records by partition

    # --- the network

    def send(self, deliver: Callable[[], None]) -> None:
        """Loses the message, or delivers it once or twice, at a random later step."""
        copies = self.random.choice((0, 1, 1, 1, 1, 2))
        self.on_the_way += [deliver] * copies

    def step(self) -> None:
        match self.random.randrange(200):
            case 0 | 1:
                self.replace_coordinator()
            case 2:
                self.coordinator.advance(self.random.choice((10, TIMEOUT_MS // 3, TIMEOUT_MS)))
            case _ if self.on_the_way:
                self.on_the_way.pop(self.random.randrange(len(self.on_the_way)))()
        self.collect_markers()

    def replace_coordinator(self) -> None:
        """Starts a new coordinator, which sends all missing markers again. Some markers of the old coordinator still
        arrive."""
        self.coordinator = self.coordinator.reload()
        self.collect_markers()

    def collect_markers(self) -> None:
        asked, self.coordinator.markers = self.coordinator.markers, []
        for markers in asked:
            key = (markers.producer_id, markers.producer_epoch)
            assert self.decided.setdefault(key, markers.committed) == markers.committed, "an outcome changed"
            self.write_markers(markers, sorted(markers.partitions))

    def write_markers(self, markers: Markers, left: list[tuple[str, int]]) -> None:
        def deliver() -> None:
            if left:
                self.partitions[left[0][1]].mark(markers.producer_id, markers.producer_epoch, markers.committed)
                self.write_markers(markers, left[1:])
            else:
                self.coordinator.markers.append(markers)
                self.coordinator.write_markers()

        self.on_the_way.append(deliver)  # never lost: coordinators retry until it succeeds

    # --- requests, as their receivers see them

    def produce(self, who: Answer, partition: int, sequence: int, answer: Callable[[ErrorCode], None]) -> None:
        """Verifies the transaction, asks the coordinator, and appends: three steps, with other events between them."""
        leader = self.partitions[partition]

        def arrive() -> None:
            verification = leader.look_up(who.producer_id, who.producer_epoch, sequence)
            if verification is None:
                finish(None)
            else:
                self.send(lambda: ask(verification))

        def ask(verification: Verification) -> None:
            code = self.coordinator.add(who, ("t", partition))
            if code is NONE:
                self.on_the_way.append(lambda: finish(verification))
            else:
                self.send(lambda: answer(code))

        def finish(verification: Verification | None) -> None:
            code = leader.append(who.producer_id, who.producer_epoch, sequence, verification)
            self.send(lambda: answer(code))

        self.send(arrive)

    def end(self, who: Answer, commit: bool, answer: Callable[[Answer], None]) -> None:
        def arrive() -> None:
            said = self.coordinator.end(who, commit)
            self.send(lambda: answer(said))

        self.send(arrive)

    def init(self, expected: Answer | None, answer: Callable[[Answer], None]) -> None:
        def arrive() -> None:
            said = self.coordinator.init(expected=expected)
            self.send(lambda: answer(said))

        self.send(arrive)


class Producer:
    """Simulates a client: repeats requests until they are answered, aborts after errors, and initializes again when it
    is fenced."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.who: Answer | None = None
        self.dead = False
        self.commit = True
        self.ending = False
        self.sent: dict[int, int] = {}  # partition → records
        self.acknowledged: dict[int, int] = {}

    def act(self) -> None:
        if self.dead:
            return
        if self.who is None or self.who.code is not NONE:
            self.world.init(self.who, self._initialized)
        elif self.ending:
            who = self.who
            self.world.end(who, self.commit, lambda said: self._ended(who, said))
        elif not self.sent:
            self._begin()
        elif self.acknowledged == self.sent or self.world.random.random() < 0.1:
            self.commit = self.acknowledged == self.sent and self.world.random.random() < 0.7
            self.ending = True
        else:
            self._produce()

    def _begin(self) -> None:
        world = self.world
        chosen = world.random.sample(range(len(world.partitions)), world.random.randint(1, 3))
        self.sent = {partition: world.random.randint(1, 3) for partition in chosen}
        self.acknowledged = dict.fromkeys(chosen, 0)

    def _produce(self) -> None:
        """Sends one batch per partition at a time: the first record that is not acknowledged."""
        who = self.who
        assert who is not None
        for partition, count in self.sent.items():
            done = self.acknowledged[partition]
            if done < count:
                self.world.produce(who, partition, done, self._produced(who, partition, done))

    def _produced(self, who: Answer, partition: int, before: int) -> Callable[[ErrorCode], None]:
        def answered(code: ErrorCode) -> None:
            if who is not self.who or self.ending:
                return  # the answer belongs to an earlier transaction of this producer
            if code is NONE:
                if self.acknowledged[partition] == before:
                    self.acknowledged[partition] += 1
            elif code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
                self._initialize_again(who)
            elif code not in WAIT:
                self.commit, self.ending = False, True

        return answered

    def _ended(self, who: Answer, said: Answer) -> None:
        if who is not self.who or said.code in WAIT:
            return
        if said.code is NONE:
            if self.commit:
                self.world.told_committed.append((who.producer_id, who.producer_epoch, dict(self.sent)))
            self._forget(said)
        else:
            self._initialize_again(who)

    def _initialize_again(self, who: Answer) -> None:
        self._forget(Answer(ErrorCode.INVALID_PRODUCER_EPOCH, who.producer_id, who.producer_epoch))

    def _forget(self, who: Answer) -> None:
        self.who, self.sent, self.acknowledged, self.ending = who, {}, {}, False

    def _initialized(self, said: Answer) -> None:
        if self.who is not None and self.who.code is NONE:
            return
        if said.code is NONE:
            self._forget(said)
        elif said.code is ErrorCode.PRODUCER_FENCED:
            self.dead = True


def settle(world: World) -> None:
    """Delivers all messages without faults or new requests, and lets all timeouts pass."""
    for _ in range(3):
        while world.on_the_way:
            world.on_the_way.pop(0)()
            world.collect_markers()
        world.coordinator.advance(2 * TIMEOUT_MS)
        world.collect_markers()


def judge(world: World) -> None:
    for partition in world.partitions:
        assert partition.producers.first_undecided_offset is None, "a transaction hangs"
        for offset, producer_id, epoch in partition.data:
            following = [mark for mark in partition.markers if mark[0] > offset and mark[1] == producer_id]
            assert following, "records without an outcome"
            assert following[0][3] == world.decided[producer_id, epoch + 1], "records with another's outcome"
    for producer_id, epoch, sent in world.told_committed:
        assert world.decided[producer_id, epoch + 1] is True
        for index, count in sent.items():
            there = [each for each in world.partitions[index].data if each[1:] == (producer_id, epoch)]
            assert len(there) == count, "committed records are missing or twice"
    assert world.coordinator.state() in AT_REST


@pytest.mark.parametrize("seed", range(25))
def test_transactions_are_atomic_on_a_faulty_network(seed: int) -> None:
    world = World(seed)
    producers = [Producer(world)]
    for step in range(3000):
        if world.random.random() < 0.002:
            producers.append(Producer(world))  # a successor; the previous producer is not notified
        if step % 8 == 0:
            world.random.choice(producers[-2:]).act()
        world.step()
    settle(world)
    judge(world)
    assert world.decided, "nothing happened"


def test_transaction_checker_detects_records_in_the_wrong_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that the checker reports violations: without verification, late batches open transactions that never
    end."""
    monkeypatch.setattr(ProducerStateManager, "is_verified", lambda *_: True)
    monkeypatch.setattr(ProducerStateManager, "start_verification", lambda *_, **__: None)
    failures = 0
    for seed in range(8):
        try:
            test_transactions_are_atomic_on_a_faulty_network(seed)
        except (AssertionError, KeyError):
            failures += 1
    assert failures
