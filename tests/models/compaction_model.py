"""Models a compacted log with transactions: appends, markers, compactions and delete horizons in any order.

A compaction runs the node's own code (`penstock.records.compact`) over real batches. Each batch is a segment, and a
compaction cleans segments below the last stable offset, like `log.cleaner`. Committed records are read as KIP-98
defines. The invariants: a reader of committed records sees the same last value of each key as in a log that was never
compacted, and the last sequence number of each producer is still in the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from penstock.records.build import build_batch
from penstock.records.compact import Compactor, LastRecord, OffsetMap, TransactionScan
from penstock.records.control import ControlType, EndTxn, build_end_txn, control_type
from penstock.records.header import parse_header
from penstock.records.record import read_records

T = TypeVar("T")
RETENTION_MS = 10
PRODUCERS = (1, 2)


class Aborted(NamedTuple):
    """Holds an entry of the transaction index."""

    producer_id: int
    first_offset: int
    last_offset: int


class Written(NamedTuple):
    """Holds a record as it was appended. `ended` is None while its transaction is open."""

    offset: int
    producer_id: int
    key: bytes
    value: bytes | None
    ended: bool | None


class State(NamedTuple):
    batches: tuple[bytes, ...]
    aborted: tuple[Aborted, ...]
    written: tuple[Written, ...]
    end: int
    first_dirty: int
    now_ms: int
    appends: int
    rounds: int
    sequences: tuple[int, ...] = (0, 0)
    last_data: tuple[int | None, ...] = (None, None)

    @property
    def stable(self) -> int:
        """Returns the last stable offset."""
        return min((one.offset for one in self.written if one.ended is None), default=self.end)


class CompactionModel:
    def __init__(self, appends: int, rounds: int, max_keys: tuple[int, ...] = (10,)) -> None:
        self._appends = appends
        self._rounds = rounds
        self._max_keys = max_keys

    def first(self) -> State:
        return State((), (), (), 0, 0, 0, self._appends, self._rounds)

    # Invariants.

    def broken(self, state: State) -> str:
        found, expected = read_committed(state), table(state)
        if found != expected:
            return f"a reader of committed records sees {found} instead of {expected}"
        headers = [parse_header(batch) for batch in state.batches]
        for producer_id, last in zip(PRODUCERS, state.last_data):
            if last is not None and not any(
                (one.producer_id, one.last_offset) == (producer_id, last) and not one.is_control for one in headers
            ):
                return f"the last sequence of producer {producer_id} is lost"
        return ""

    # Steps.

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.appends:
            yield from self._appended(state)
        if state.rounds and state.batches:
            for most in self._max_keys:
                cleaned = compact(state, most)
                if cleaned.batches != state.batches or cleaned.first_dirty != state.first_dirty:
                    yield f"a round with {most} keys compacts below offset {cleaned.first_dirty}", cleaned
            horizons = [header.delete_horizon_ms for header in map(parse_header, state.batches)]
            if any(horizon is not None and horizon > state.now_ms for horizon in horizons):
                yield "the delete horizons pass", state._replace(now_ms=state.now_ms + RETENTION_MS)

    def _appended(self, state: State) -> Iterator[tuple[str, State]]:
        value = b"%d" % state.end
        yield f"a={state.end}", append(state, b"a", value)
        yield "a is deleted", append(state, b"a", None)
        yield f"b={state.end}", append(state, b"b", value)
        for producer_id in PRODUCERS:
            yield f"producer {producer_id}: a={state.end}", append(state, b"a", value, producer_id)
            if any(one.producer_id == producer_id and one.ended is None for one in state.written):
                yield f"producer {producer_id} commits", finish(state, producer_id, commit=True)
                yield f"producer {producer_id} aborts", finish(state, producer_id, commit=False)


def append(state: State, key: bytes, value: bytes | None, producer_id: int = -1) -> State:
    slot = PRODUCERS.index(producer_id) if producer_id >= 0 else None
    data = build_batch(
        [(0, key, value, ())],
        producer_id=producer_id,
        producer_epoch=0 if slot is not None else -1,
        base_sequence=state.sequences[slot] if slot is not None else -1,
        transactional=slot is not None,
    )
    written = Written(state.end, producer_id, key, value, None if slot is not None else True)
    grown = _grown(state, data)._replace(written=(*state.written, written))
    if slot is None:
        return grown
    return grown._replace(
        sequences=_with(state.sequences, slot, state.sequences[slot] + 1),
        last_data=_with(state.last_data, slot, state.end),
    )


def finish(state: State, producer_id: int, *, commit: bool) -> State:
    marker = build_end_txn(EndTxn(commit, 0), producer_id=producer_id, producer_epoch=0, timestamp=0)
    mine = [one for one in state.written if one.producer_id == producer_id and one.ended is None]
    ended = tuple(one._replace(ended=commit) if one in mine else one for one in state.written)
    aborted = state.aborted if commit else (*state.aborted, Aborted(producer_id, mine[0].offset, state.end))
    return _grown(state, marker)._replace(written=ended, aborted=aborted)


def _grown(state: State, data: bytes) -> State:
    batch = struct.pack(">q", state.end) + data[8:]  # the checksum does not cover the base offset
    return state._replace(batches=(*state.batches, batch), end=state.end + 1, appends=state.appends - 1)


def _with(values: tuple[T, ...], slot: int, value: T) -> tuple[T, ...]:
    return (*values[:slot], value, *values[slot + 1 :])


def first_uncleanable(state: State) -> int:
    """Returns the first offset that may not be compacted, as `Cleaner.first_uncleanable_offset` does."""
    return state.stable


def compact(state: State, max_keys: int) -> State:
    """Compacts the log once, as `log.compaction.compact` does."""
    bound = first_uncleanable(state)
    headers = [(parse_header(batch), batch) for batch in state.batches]
    offsets = OffsetMap(state.first_dirty, max_keys)
    learning = TransactionScan()
    known = [each for each in state.aborted if each.first_offset < bound]
    learning.add_aborted(known)
    for header, batch in headers:
        if header.base_offset >= bound:
            break
        if header.base_offset >= state.first_dirty and not offsets.add_batch(header, batch, learning):
            break
    if offsets.latest_offset < state.first_dirty:
        return state
    end = offsets.latest_offset + 1
    kept: list[Aborted] = []
    transactions = TransactionScan(on_kept_abort=lambda each: kept.append(Aborted(*_fields(each))))
    transactions.add_aborted(known)
    last = {pid: LastRecord(at, 0) for pid, at in zip(PRODUCERS, state.last_data) if at is not None}
    compactor = Compactor(offsets, transactions, state.now_ms, RETENTION_MS, end, last)
    rewritten = [compactor.clean(header, batch) for header, batch in headers if header.base_offset < end]
    cleaned = [bytes(batch) for batch in rewritten if batch is not None]
    later = [batch for header, batch in headers if header.base_offset >= end]
    aborted = (*kept, *(each for each in state.aborted if each.last_offset >= end))
    return state._replace(batches=(*cleaned, *later), aborted=aborted, first_dirty=end, rounds=state.rounds - 1)


def _fields(each: object) -> tuple[int, int, int]:
    assert isinstance(each, Aborted)
    return each.producer_id, each.first_offset, each.last_offset


def read_committed(state: State) -> dict[bytes, bytes]:
    """Reads the log up to the last stable offset, and skips aborted records as a consumer does."""
    found: dict[bytes, bytes] = {}
    waiting = sorted(state.aborted, key=lambda each: each.first_offset)
    skipped: set[int] = set()
    for batch in state.batches:
        header = parse_header(batch)
        if header.base_offset >= state.stable:
            break
        while waiting and waiting[0].first_offset <= header.last_offset:
            skipped.add(waiting.pop(0).producer_id)
        if header.records_count == 0:
            continue
        if header.is_control:
            if control_type(read_records(batch)[0].key) is ControlType.ABORT:
                skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            for record in read_records(batch):
                _put(found, record.key, record.value)
    return found


def table(state: State) -> dict[bytes, bytes]:
    """Returns the last committed value of each key in a log that was never compacted."""
    found: dict[bytes, bytes] = {}
    for one in state.written:
        if one.offset < state.stable and one.ended:
            _put(found, one.key, one.value)
    return found


def _put(found: dict[bytes, bytes], key: bytes | None, value: bytes | None) -> None:
    assert key is not None
    if value is None:
        found.pop(key, None)
    else:
        found[key] = value
