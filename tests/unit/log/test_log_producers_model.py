"""Compares the producer state of a partition with a plain model, in random walks of appends, markers and restarts.

After every step the walk asks for every small batch whether it may follow, for several producers and epochs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from random import Random

import pytest

from penstock.log.producers import AppendOrigin, BatchMetadata, CompletedTxn, ProducerStateManager, Verification
from penstock.log.snapshots import parse_snapshot, render_snapshot
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import MAX_PRODUCER_EPOCH, MAX_SEQUENCE
from penstock.records.build import build_batch
from penstock.records.control import EndTxn
from penstock.records.header import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader, parse_header

CLIENT, COORDINATOR = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR
NONE, OLD_EPOCH = ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH
GAP, NO_TXN, FENCED = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
)
PRODUCERS = (7, 8, 9)
EPOCHS = (0, 1, MAX_PRODUCER_EPOCH)
SEQUENCES = (MAX_SEQUENCE - 1, MAX_SEQUENCE, 0, 1, 2, 3)
EXPIRATION = 40
PLAIN = parse_header(build_batch([(0, b"k", b"v", ())]))


def header_of(
    offset: int, producer: int, epoch: int, sequence: int, records: int = 1, *, flags: int = 0, time: int = 0
) -> BatchHeader:
    return PLAIN._replace(
        base_offset=offset,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        last_offset_delta=records - 1,
        records_count=records,
        attributes=flags,
        max_timestamp=time,
    )


def marker_of(offset: int, producer: int, epoch: int, *, time: int = 0) -> BatchHeader:
    return header_of(offset, producer, epoch, -1, flags=CONTROL_FLAG | TRANSACTIONAL_FLAG, time=time)


def code_of(call: Callable[[], object]) -> ErrorCode:
    try:
        call()
    except KafkaError as error:
        return error.code
    return NONE


@dataclass
class Producer:
    """Holds what the rules say about one producer. `batches` has first and last sequence, and first and last offset."""

    epoch: int = -1
    coordinator: int = -1
    time: int = -1
    opened: int | None = None
    batches: list[tuple[int, int, int, int]] = field(default_factory=list)

    def move(self, epoch: int) -> None:
        self.batches = self.batches if epoch == self.epoch else []
        self.epoch = epoch


@dataclass
class Model:
    known: dict[int, Producer] = field(default_factory=dict)
    #: First offset and marker's offset of ended transactions that are not replicated.
    ended: list[tuple[int, int]] = field(default_factory=list)
    #: Epoch, lowest sequence and kind of each producer's verification.
    pending: dict[int, tuple[int, int, bool]] = field(default_factory=dict)

    @property
    def open_at(self) -> list[int]:
        return sorted(each.opened for each in self.known.values() if each.opened is not None)

    def duplicate(self, header: BatchHeader) -> tuple[int, int] | None:
        producer = self.known.get(header.producer_id)
        for first, last, start, end in producer.batches if producer is not None else []:
            same = (first, last) == (header.base_sequence, header.last_sequence)
            if producer is not None and producer.epoch == header.producer_epoch and same:
                return start, end
        return None

    def refusal(self, header: BatchHeader, origin: AppendOrigin) -> ErrorCode:
        producer = self.known.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            return OLD_EPOCH
        if origin is CLIENT and not self._follows(producer, header):
            return GAP
        outside = producer is not None and producer.opened is not None and not header.is_transactional
        return NO_TXN if outside else NONE

    def _follows(self, producer: Producer | None, header: BatchHeader) -> bool:
        sequence = header.base_sequence
        fresh = producer is None or not producer.batches
        if header.producer_id in self.pending:
            _, lowest, bump = self.pending[header.producer_id]
            if sequence > lowest or (bump and fresh and sequence != 0):
                return False
        if producer is None or producer.epoch == -1:
            return True
        if fresh or header.producer_epoch != producer.epoch:
            return sequence == 0
        last = producer.batches[-1][1]
        return sequence == (0 if last == MAX_SEQUENCE else last + 1)

    def marker_refusal(self, header: BatchHeader, origin: AppendOrigin, marker: EndTxn, version: int) -> ErrorCode:
        producer = self.known.get(header.producer_id)
        if producer is None:
            return NONE
        epoch = header.producer_epoch
        own = epoch == producer.epoch and (version < 2 or producer.opened is None or epoch == MAX_PRODUCER_EPOCH)
        if not own and epoch <= producer.epoch:
            return OLD_EPOCH
        return FENCED if origin is COORDINATOR and marker.coordinator_epoch < producer.coordinator else NONE

    def append(self, header: BatchHeader) -> None:
        producer = self.known.setdefault(header.producer_id, Producer())
        producer.move(header.producer_epoch)
        batch = (header.base_sequence, header.last_sequence, header.base_offset, header.last_offset)
        producer.batches = [*producer.batches, batch][-5:]
        producer.time = header.max_timestamp
        if header.is_transactional and producer.opened is None:
            producer.opened = header.base_offset
        self.pending.pop(header.producer_id, None)

    def end(self, header: BatchHeader, marker: EndTxn) -> CompletedTxn | None:
        producer = self.known.setdefault(header.producer_id, Producer())
        first, producer.opened = producer.opened, None
        producer.move(header.producer_epoch)
        producer.coordinator, producer.time = marker.coordinator_epoch, header.max_timestamp
        self.pending.pop(header.producer_id, None)
        if first is None:
            return None
        self.ended.append((first, header.base_offset))
        return CompletedTxn(header.producer_id, first, header.base_offset, not marker.committed)

    def expire(self, now: int) -> int:
        gone = [each for each, it in self.known.items() if it.opened is None and now - it.time >= EXPIRATION]
        self.known = {each: it for each, it in self.known.items() if each not in gone}
        return len(gone)

    def replicate(self, watermark: int) -> None:
        self.ended = [each for each in self.ended if each[1] >= watermark]

    def restart(self, now: int) -> None:
        self.ended, self.pending = [], {}
        self.expire(now)
        for producer in self.known.values():
            producer.batches = producer.batches[-1:]


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.state, self.model = ProducerStateManager(), Model()
        self.end = self.now = 0
        self.tokens: list[tuple[int, Verification]] = []
        self.current: dict[int, Verification] = {}

    def step(self) -> None:
        choices = [self.write] * 12 + [self.mark] * 5 + [self.verify] * 3 + [self.replicate] * 2
        self.now += self.random.randrange(6)
        self.random.choice([*choices, self.unverify, self.expire, self.restart, self.foreign_control])()

    def write(self) -> None:
        """Appends a batch: often the next of its producer, sometimes any other that a leader could have accepted."""
        producer, epoch = self.random.choice(PRODUCERS), self.random.choice(EPOCHS)
        known = self.model.known.get(producer)
        sequence = self.random.choice(SEQUENCES)
        if known is not None and known.batches and self.random.random() < 0.8:
            epoch, sequence = max(known.epoch, 0), (known.batches[-1][1] + 1) & MAX_SEQUENCE
        flags = TRANSACTIONAL_FLAG if self.random.random() < 0.6 else 0
        header = header_of(self.end, producer, epoch, sequence, self.random.randrange(1, 4), flags=flags, time=self.now)
        if self.model.duplicate(header) is None and self.model.refusal(header, CLIENT) is NONE:
            assert self.state.update(header) is None
            self.model.append(header)
            self.end = header.next_offset

    def mark(self) -> None:
        producer, epoch = self.random.choice(PRODUCERS), self.random.choice(EPOCHS)
        known = self.model.known.get(producer)
        if known is not None and self.random.random() < 0.7:
            epoch = max(known.epoch, 0)
        header = marker_of(self.end, producer, epoch, time=self.now)
        marker = EndTxn(self.random.random() < 0.5, self.random.randrange(3))
        if self.model.marker_refusal(header, COORDINATOR, marker, 1) is not NONE:
            return
        done = self.model.end(header, marker)
        assert self.state.update(header, marker) == done
        if done is not None:
            expected = self.model.open_at[0] if self.model.open_at else header.next_offset
            assert self.state.last_stable_offset_after(done) == expected
        self.end = header.next_offset

    def foreign_control(self) -> None:
        """Appends a control batch that is no transaction marker: it tells only that the producer exists."""
        header = marker_of(self.end, self.random.choice(PRODUCERS), 1)
        assert self.state.update(header) is None
        self.model.known.setdefault(header.producer_id, Producer())
        self.end += 1

    def verify(self) -> None:
        producer, epoch = self.random.choice(PRODUCERS), self.random.choice(EPOCHS)
        sequence, bump = self.random.choice((0, 1, 2, 3)), self.random.random() < 0.5
        token = self.state.start_verification(producer, epoch, sequence, supports_epoch_bump=bump)
        known = self.model.known.get(producer)
        if known is not None and known.opened is not None and known.epoch == epoch:
            assert token is None
            return
        assert token is not None
        before = self.model.pending.get(producer)
        if before is not None and before[0] == epoch:
            self.model.pending[producer] = (epoch, min(before[1], sequence), before[2])
            assert (producer, token) in self.tokens
        else:
            self.model.pending[producer] = (epoch, sequence, bump)
            assert (producer, token) not in self.tokens
            self.tokens.append((producer, token))
        self.current[producer] = token

    def unverify(self) -> None:
        """Ends a verification, which may have been replaced or used up before."""
        if self.tokens:
            producer, token = self.random.choice(self.tokens)
            self.state.end_verification(producer, token)
            if self.is_pending(producer, token):
                del self.model.pending[producer]

    def is_pending(self, producer: int, token: Verification | None) -> bool:
        return token is not None and producer in self.model.pending and self.current.get(producer) is token

    def replicate(self) -> None:
        watermark = self.random.randrange(self.end + 1)
        if self.random.random() < 0.5:
            self.state.on_high_watermark(watermark)
        else:
            before = self.state.map_end_offset
            self.state.on_log_start(watermark)
            assert self.state.map_end_offset == max(before, watermark)
        self.model.replicate(watermark)

    def expire(self) -> None:
        assert self.state.remove_expired(self.now, EXPIRATION) == self.model.expire(self.now)

    def restart(self) -> None:
        saved = parse_snapshot(render_snapshot(self.state.snapshot()))
        if self.random.random() < 0.5:
            self.state = ProducerStateManager()
        self.state.load(saved, self.end, self.now, EXPIRATION)
        assert self.state.map_end_offset == self.end
        self.model.restart(self.now)

    # What must be true after every step.

    def check_entries(self) -> None:
        assert sorted(each.producer_id for each in self.state) == sorted(self.model.known)
        assert len(self.state) == len(self.model.known)
        for producer in PRODUCERS:
            entry, known = self.state.get(producer), self.model.known.get(producer)
            assert (entry is None) == (known is None)
            if entry is None or known is None:
                continue
            assert (entry.producer_id, entry.producer_epoch, entry.coordinator_epoch) == (
                producer,
                known.epoch,
                known.coordinator,
            )
            assert (entry.last_timestamp, entry.txn_first_offset) == (known.time, known.opened)
            found = [(it.first_sequence, it.last_sequence, it.first_offset, it.last_offset) for it in entry.batches]
            assert found == known.batches
            last = known.batches[-1] if known.batches else (-1, -1, -1, -1)
            assert (entry.last_sequence, entry.last_offset) == (last[1], last[3])
        opened = self.model.open_at
        assert self.state.first_undecided_offset == (opened[0] if opened else None)
        unstable = [*opened, *(first for first, _ in self.model.ended)]
        assert self.state.first_unstable_offset == min(unstable, default=None)

    def check_batches(self) -> None:
        for producer, epoch, sequence, records, flags in product(
            PRODUCERS, EPOCHS, SEQUENCES, (1, 2), (0, TRANSACTIONAL_FLAG)
        ):
            header = header_of(self.end, producer, epoch, sequence, records, flags=flags)
            twin = self.model.duplicate(header)
            assert _offsets(self.state.find_duplicate(header)) == twin
            if twin is not None:
                assert _offsets(self.state.admit(header)) == twin
            else:
                assert code_of(partial(self.state.admit, header)) is self.model.refusal(header, CLIENT)
            for origin in (CLIENT, COORDINATOR, AppendOrigin.RAFT_LEADER):
                assert code_of(partial(self.state.validate, header, origin)) is self.model.refusal(header, origin)

    def check_markers(self) -> None:
        origins = (CLIENT, COORDINATOR)
        for producer, epoch, coordinator, version, origin in product(PRODUCERS, EPOCHS, range(3), (0, 1, 2), origins):
            header, marker = marker_of(self.end, producer, epoch), EndTxn(True, coordinator)
            call = partial(self.state.validate, header, origin, marker=marker, transaction_version=version)
            assert code_of(call) is self.model.marker_refusal(header, origin, marker, version)

    def check_verifications(self) -> None:
        asked: list[tuple[int, Verification | None]] = [
            *self.tokens[-6:],
            *((producer, None) for producer in PRODUCERS),
        ]
        for (producer, token), epoch in product(asked, EPOCHS):
            known = self.model.known.get(producer)
            is_open = known is not None and known.opened is not None and known.epoch == epoch
            assert self.state.has_ongoing_transaction(producer, epoch) is is_open
            admitted = is_open or self.is_pending(producer, token)
            assert self.state.is_admitted(producer, epoch, token) is admitted
            assert self.state.is_verified(header_of(0, producer, epoch, 0), token) is admitted
            old = known is not None and epoch < known.epoch
            expected = OLD_EPOCH if old else NONE if admitted else NO_TXN
            assert code_of(partial(self.state.check_open, producer, epoch, token)) is expected


def _offsets(batch: BatchMetadata | None) -> tuple[int, int] | None:
    return None if batch is None else (batch.first_offset, batch.last_offset)


@pytest.mark.parametrize("seed", range(12))
def test_producer_state_answers_as_its_rules_say_after_each_batch_marker_expiry_and_restart(seed: int) -> None:
    walk = Walk(seed)
    for number in range(90):
        walk.step()
        walk.check_entries()
        walk.check_verifications()
        if number % 8 == 0:
            walk.check_batches()
            walk.check_markers()


def test_last_stable_offset_stays_at_an_open_transaction_below_an_ended_one() -> None:
    state = ProducerStateManager()
    state.update(header_of(0, 7, 0, 0, flags=TRANSACTIONAL_FLAG))
    state.update(header_of(1, 8, 0, 0, flags=TRANSACTIONAL_FLAG))
    state.update(marker_of(2, 8, 0), EndTxn(True, 0))
    assert state.first_unstable_offset == 0


def test_batch_of_an_older_producer_epoch_is_no_duplicate_of_a_batch_with_its_sequence() -> None:
    state = ProducerStateManager()
    state.update(header_of(0, 7, 1, 0))
    assert state.find_duplicate(header_of(1, 7, 0, 0)) is None
    assert code_of(partial(state.admit, header_of(1, 7, 0, 0))) is OLD_EPOCH


def test_producer_whose_only_batch_is_at_offset_0_is_known_with_its_sequence_after_a_restart() -> None:
    state, loaded = ProducerStateManager(), ProducerStateManager()
    state.update(header_of(0, 7, 0, 4))
    loaded.load(state.snapshot(), 1, 0, EXPIRATION)
    assert _offsets(loaded.admit(header_of(1, 7, 0, 4))) == (0, 0)
    assert code_of(partial(loaded.admit, header_of(1, 7, 0, 6))) is GAP


def test_batch_of_a_producer_without_sequences_has_no_last_sequence() -> None:
    state = ProducerStateManager()
    state.update(header_of(0, 7, 0, -1, 3))
    entry = state.get(7)
    assert entry is not None
    assert (entry.last_sequence, entry.last_offset) == (-1, 2)


def test_coordinator_and_marker_do_not_wait_for_the_verification_of_an_unknown_producer() -> None:
    state = ProducerStateManager()
    state.start_verification(7, 0, 0, supports_epoch_bump=True)
    header = header_of(0, 7, 0, 3, flags=TRANSACTIONAL_FLAG)
    assert code_of(partial(state.validate, header, CLIENT)) is GAP
    assert code_of(partial(state.validate, header, COORDINATOR)) is NONE
    assert code_of(partial(state.validate, marker_of(0, 7, 0), CLIENT, marker=EndTxn(True, 0))) is NONE
