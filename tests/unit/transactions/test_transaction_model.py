"""Compares the transaction coordinator with a plain model: random requests of two transactional ids, with every answer,
every field, every marker and every timeout, and reloads in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest
from transaction_driver import T0, T1, WALL_START_MS, Driver

from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import TopicPartition
from penstock.transactions import initialize, partitions
from penstock.transactions.config import TransactionConfig
from penstock.transactions.states import State
from penstock.transactions.transaction import ID_BYTES, PARTITION_BYTES, Transaction
from penstock.transactions.turn import Answer, Markers

Who = tuple[int, int]
NAMES = ("a", "bb")
NOBODY = -1
LARGEST = 32_767  # the epoch that only fences
LAST = LARGEST - 1  # the last epoch of a producer
FOREVER = 2**31 - 1
RETRY_MS, EXPIRATION_MS, SHORT_MS, LONG_MS = 300, 5_000, 1_000, 2_000
STEPS = (*["init"] * 4, *["add"] * 6, *["end"] * 5, *["mark"] * 5, *["time"] * 2, "expire", "load", "ids")
PREPARED = {State.PREPARE_COMMIT: True, State.PREPARE_ABORT: False}
COMPLETE = {State.COMPLETE_COMMIT: True, State.COMPLETE_ABORT: False}


class NoIdLeft(Exception):
    pass


@dataclass
class Txn:
    id: int
    epoch: int
    timeout: int
    state: State = State.EMPTY
    parts: frozenset[TopicPartition] = frozenset()
    start: int = -1
    update: int = -1
    previous: int = NOBODY
    next_id: int = NOBODY
    client: int = 0
    next_epoch: int = -1
    last: int = -1

    @property
    def owner(self) -> Who:
        return (self.id, self.epoch) if self.next_id == NOBODY else (self.next_id, max(self.next_epoch, 0))

    @property
    def taken(self) -> bool:
        return self.state is State.ONGOING and self.next_id != NOBODY

    @property
    def rests(self) -> bool:
        return self.state is State.EMPTY or self.state in COMPLETE


@dataclass
class Model:
    server: int
    first_epoch: int
    next_id: int | None = 1000
    now: int = 0
    txns: dict[str, Txn] = field(default_factory=dict)
    deadlines: dict[str, tuple[int, Who, int]] = field(default_factory=dict)
    markers: list[Markers] = field(default_factory=list)

    @property
    def wall(self) -> int:
        return WALL_START_MS + self.now

    def new_id(self) -> int:
        if self.next_id is None:
            raise NoIdLeft
        self.next_id += 1
        return self.next_id - 1

    def bumped(self, who: Who) -> Who:
        return (who[0], who[1] + 1) if who[1] < LAST else (self.new_id(), 0)

    def watch(self, name: str, at: int) -> None:
        txn = self.txns[name]
        self.deadlines[name] = (at, (txn.id, txn.epoch), txn.start)

    def mark(self, name: str) -> None:
        txn = self.txns[name]
        self.markers.append(Markers(name, txn.id, txn.epoch, PREPARED[txn.state], txn.client, txn.parts))

    # --- requests

    def answered(self, decide: Callable[[], Answer]) -> Answer:
        try:
            return decide()
        except NoIdLeft:
            return Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def init(self, name: str, timeout: int, expected: Who | None, keep: bool) -> Answer:
        txn = self.txns.get(name)
        if txn is None:
            self.txns[name] = Txn(
                self.new_id(), self.first_epoch, timeout, update=self.wall, previous=(self.next_id or 0) - 1
            )
            return Answer(ErrorCode.NONE, *self.txns[name].owner)
        late = expected is not None and expected[0] == txn.previous and expected[1] >= LAST
        if expected is not None and expected[0] != txn.owner[0] and not late:
            return Answer(ErrorCode.PRODUCER_FENCED)
        if txn.state in PREPARED:
            return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        if txn.state is State.ONGOING and not keep:
            self.fence(name)
            return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        if txn.state is State.ONGOING:
            if expected is not None and expected != txn.owner:
                return Answer(ErrorCode.PRODUCER_FENCED)
            next_id, next_epoch = self.bumped(txn.owner)
            if txn.timeout != FOREVER:
                txn.timeout = timeout
            txn.next_id, txn.next_epoch, txn.previous, txn.update = next_id, next_epoch, txn.id, self.wall
            return Answer(ErrorCode.NONE, next_id, next_epoch, txn.id, txn.epoch)
        before = (txn.id, txn.epoch)
        if expected is None or expected[1] == txn.epoch:
            txn_id, epoch = self.bumped(before)
            last = -1 if expected is None else before[1]
        elif expected[1] == txn.last:
            txn_id, epoch, last = *before, txn.last
        else:
            return Answer(ErrorCode.PRODUCER_FENCED)
        self.txns[name] = Txn(
            txn_id, epoch, timeout, update=self.wall, previous=before[0], last=last, client=txn.client
        )
        return Answer(ErrorCode.NONE, txn_id, epoch)

    def add(self, name: str, who: Who, parts: frozenset[TopicPartition], client: int) -> ErrorCode:
        code = self.usable(name, who)
        if code is not ErrorCode.NONE:
            return code
        txn = self.txns[name]
        begins = txn.rests
        if not begins and parts <= txn.parts:
            return code
        txn.state, txn.parts, txn.client = State.ONGOING, txn.parts | parts, client
        txn.update, txn.previous = self.wall, txn.id
        if begins:
            txn.start = self.wall
            if txn.timeout != FOREVER:
                self.watch(name, self.now + txn.timeout)
        return code

    def usable(self, name: str, who: Who) -> ErrorCode:
        txn = self.txns.get(name)
        if txn is None or who[0] not in (txn.id, txn.owner[0]):
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if who != txn.owner:
            return ErrorCode.PRODUCER_FENCED
        if txn.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return ErrorCode.INVALID_TXN_STATE if txn.taken else ErrorCode.NONE

    def end(self, name: str, who: Who, commit: bool, client: int) -> Answer:
        txn = self.txns.get(name)
        if txn is None:
            return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        owner = txn.owner
        before = {(owner[0], owner[1] - 1)}
        if owner[1] == 0 and txn.previous != owner[0]:
            before.add((txn.previous, LAST))
        retry = client == 2 and who in before and not txn.taken
        if not retry and who != owner:
            known = who[0] in (txn.id, owner[0])
            return Answer(ErrorCode.PRODUCER_FENCED if known else ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if retry and txn.state not in PREPARED and txn.state not in COMPLETE:
            return Answer(ErrorCode.PRODUCER_FENCED)
        if retry or (client < 2 and txn.state is not State.ONGOING):
            if (PREPARED | COMPLETE).get(txn.state) is not commit:
                return Answer(ErrorCode.INVALID_TXN_STATE)
            waits = txn.state in PREPARED
            return Answer(ErrorCode.CONCURRENT_TRANSACTIONS) if waits else Answer(ErrorCode.NONE, *owner)
        if txn.state in PREPARED:
            return Answer(ErrorCode.PRODUCER_FENCED)
        if txn.rests and commit:
            return Answer(ErrorCode.INVALID_TXN_STATE)
        following = self.bumped(owner) if client == 2 else owner
        if txn.rests:
            txn.start = self.wall
        if client == 2:
            txn.last, txn.epoch = txn.epoch, min(txn.epoch + 1, LARGEST)
        self.prepare(name, State.PREPARE_COMMIT if commit else State.PREPARE_ABORT, following, owner[0], client)
        return Answer(ErrorCode.NONE, *following)

    def prepare(self, name: str, state: State, following: Who, previous: int, client: int) -> None:
        txn = self.txns[name]
        txn.state, txn.update, txn.previous, txn.client = state, self.wall, previous, client
        if following != (txn.id, txn.epoch):
            txn.next_id, txn.next_epoch = following[0], following[1] or -1
        self.mark(name)

    def fence(self, name: str) -> None:
        txn = self.txns[name]
        bumps, owner = self.server >= 2, txn.owner
        following = self.bumped(owner) if txn.taken or (bumps and txn.epoch >= LAST) else None
        txn.last, txn.epoch = txn.epoch if bumps else -1, min(txn.epoch + 1, LARGEST)
        self.prepare(name, State.PREPARE_ABORT, following or (txn.id, txn.epoch), owner[0], 2 if bumps else 0)

    def complete(self, markers: Markers) -> None:
        txn = self.txns.get(markers.transactional_id)
        if txn is None or txn.state not in PREPARED or (txn.id, txn.epoch) != markers[1:3]:
            return
        txn.state = State.COMPLETE_COMMIT if PREPARED[txn.state] else State.COMPLETE_ABORT
        (txn.id, txn.epoch), txn.next_id, txn.next_epoch = txn.owner, NOBODY, -1
        txn.parts, txn.update = frozenset(), self.wall

    # --- time

    def advance(self, milliseconds: int) -> None:
        end = self.now + milliseconds
        while due := sorted((at, name) for name, (at, _, _) in self.deadlines.items() if at <= end):
            at, name = due[0]
            self.now = max(self.now, at)
            _, who, start = self.deadlines.pop(name)
            txn = self.txns.get(name)
            if txn is None or txn.state is not State.ONGOING or txn.timeout == FOREVER:
                continue
            if (txn.id, txn.epoch) == who and txn.start == start:
                try:
                    self.fence(name)
                except NoIdLeft:
                    self.watch(name, self.now + RETRY_MS)
        self.now = end

    def expire(self, name: str) -> None:
        txn = self.txns.get(name)
        if txn is not None and txn.rests and self.wall - txn.update >= EXPIRATION_MS:
            del self.txns[name]

    def reload(self) -> None:
        self.deadlines, self.markers = {}, []
        for name, txn in self.txns.items():
            txn.last = -1
            if self.server == 0:
                txn.previous, txn.next_id, txn.client, txn.next_epoch = NOBODY, NOBODY, 0, -1
            if txn.state in PREPARED:
                self.mark(name)
            elif txn.state is State.ONGOING and txn.timeout != FOREVER:
                self.watch(name, max(self.now, self.now + txn.start + txn.timeout - self.wall))


def stored(model: Model) -> dict[str, Transaction]:
    return {
        name: Transaction(
            name,
            txn.id,
            txn.epoch,
            txn.timeout,
            txn.state,
            txn.parts,
            txn.start,
            txn.update,
            txn.previous,
            txn.next_id,
            txn.client,
            txn.next_epoch,
        )
        for name, txn in model.txns.items()
    }


class Walk:
    def __init__(self, seed: int, server: int, first_epoch: int) -> None:
        self.random = Random(f"{seed}/{server}/{first_epoch}")
        config = TransactionConfig(
            max_timeout_ms=LONG_MS, id_expiration_ms=EXPIRATION_MS, abort_retry_ms=RETRY_MS, two_phase_commit=True
        )
        self.driver = Driver(server_version=server, config=config)
        self.model = Model(server, first_epoch)
        self.old_markers: list[Markers] = []

    def producer(self, name: str) -> Who:
        """Returns the owner of the transactional id, or another producer whose id or epoch is near it."""
        txn = self.model.txns.get(name)
        if txn is None:
            return (1000, 0)
        if self.random.random() < 0.7:
            return txn.owner
        ids = (txn.id, txn.owner[0], txn.previous, 999)
        epochs = (txn.epoch, txn.owner[1], txn.last, LAST, LARGEST, 0)
        return (self.random.choice(ids), max(self.random.choice(epochs) + self.random.choice((-2, -1, 0, 0, 1)), 0))

    def step(self) -> tuple[object, object]:
        """Takes one random step. Returns what the coordinator answers, and what the model answers."""
        random, driver, model = self.random, self.driver, self.model
        name = random.choice(NAMES)
        who, client = self.producer(name), random.choice((0, 2, 2))
        match random.choice(
            ("init", "add", "add", "add", "end", "end", "end", "mark", "time", "expire", "load", "ids")
        ):
            case "init":
                expected = random.choice((None, who))
                two_phase, keep = random.random() < 0.3, random.random() < 0.4
                timeout = random.choice((SHORT_MS, LONG_MS))
                asked = None if expected is None else Answer(ErrorCode.NONE, *expected)
                given = driver.init(name, timeout_ms=timeout, expected=asked, two_phase=two_phase, keep=keep)
                kept = FOREVER if two_phase else timeout
                return given, model.answered(lambda: model.init(name, kept, expected, keep))
            case "add":
                parts = random.choice(((T0,), (T1,), (T0, T1)))
                verified = partitions.verify(driver.shard, name, *who, parts)
                code = model.usable(name, who)
                held = model.txns[name].parts if code is ErrorCode.NONE else frozenset()
                wanted = {each: ErrorCode.TRANSACTION_ABORTABLE if each not in held else code for each in parts}
                expected_codes = wanted if code is ErrorCode.NONE else dict.fromkeys(parts, code)
                added = driver.add(Answer(ErrorCode.NONE, *who), *parts, name=name, version=client)
                return (verified, added), (expected_codes, model.add(name, who, frozenset(parts), client))
            case "end":
                commit = random.random() < 0.5
                given = driver.end(Answer(ErrorCode.NONE, *who), commit, name=name, version=client)
                return given, model.answered(lambda: model.end(name, who, commit, client))
            case "mark":
                self.old_markers += [each for each in driver.markers if each not in self.old_markers]
                if self.old_markers:
                    one = random.choice(self.old_markers[-3:])
                    one = replace_at_random(random, one)
                    driver.markers, model.markers = [one], []
                    driver.write_markers()
                    model.complete(one)
            case "time":
                spent = random.choice((1, RETRY_MS, SHORT_MS - 1, SHORT_MS, LONG_MS - 1, LONG_MS, EXPIRATION_MS - 1))
                driver.advance(spent)
                model.advance(spent)
            case "expire":
                driver.expire(name)
                model.expire(name)
            case "load":
                self.driver = driver.reload()
                model.reload()
            case "ids":
                free = None if random.random() < 0.3 else random.randrange(2000, 9000)
                driver.next_producer_id = model.next_id = free
        return None, None

    def compare(self) -> None:
        shard = self.driver.shard
        assert shard.transactions == stored(self.model)
        assert {name: txn.last_epoch for name, txn in shard.transactions.items()} == {
            name: txn.last for name, txn in self.model.txns.items()
        }
        assert self.driver.markers == self.model.markers
        assert self.driver.next_producer_id == self.model.next_id
        txns = self.model.txns.items()
        assert shard.held_bytes == sum(ID_BYTES + len(name) + PARTITION_BYTES * len(txn.parts) for name, txn in txns)


def replace_at_random(random: Random, markers: Markers) -> Markers:
    """Returns the markers, sometimes with the epoch or the id of another transaction."""
    return random.choice(
        (
            markers,
            markers,
            markers,
            markers._replace(producer_epoch=markers.producer_epoch - 1),
            markers._replace(producer_epoch=markers.producer_epoch + 1),
            markers._replace(producer_id=markers.producer_id + 1),
        )
    )


@pytest.mark.parametrize("server", [0, 1, 2])
@pytest.mark.parametrize("first_epoch", [0, LAST - 2, LAST])
def test_transaction_coordinator_answers_and_remembers_like_a_plain_model(
    server: int, first_epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initialize, "FIRST_EPOCH", first_epoch)
    for seed in range(20):
        walk = Walk(seed, server, first_epoch)
        for _ in range(80):
            given, expected = walk.step()
            assert given == expected
            walk.compare()
