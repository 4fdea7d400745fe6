"""Tests how a coordinator's log is applied to its state machine: which records, in which order."""

from typing import Any, cast

import pytest

from penstock.broker.coordinators.replay import replay
from penstock.log.log import Log
from penstock.records.build import build_batch
from penstock.records.control import EndTxn, build_end_txn

END = 100


class Machine:
    """Notes what is applied to it: (key, value, offset, producer id) of a record, or (producer id, commit) of a
    marker."""

    def __init__(self, incremental: bool) -> None:
        self.incremental = incremental
        self.applied: list[tuple[Any, ...]] = []

    def decode(self, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None] | None:
        return None if key == b"unknown" else (key, value)

    def apply(self, record: tuple[bytes | None, bytes | None], offset: int, producer_id: int = -1) -> None:
        self.applied.append((*record, offset, producer_id))

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        self.applied.append((producer_id, commit))


class EndOfLog:
    log_end_offset = END


def batch(offset: int, *records: tuple[bytes, bytes | None], producer: int = -1) -> bytes:
    return build_batch(
        [(0, key, value, ()) for key, value in records],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        transactional=producer >= 0,
    )


def marker(offset: int, producer: int, commit: bool) -> bytes:
    ended = build_end_txn(EndTxn(commit, 0), producer_id=producer, producer_epoch=0, timestamp=0)
    return offset.to_bytes(8, "big") + bytes(ended)[8:]


def replayed(data: bytes, *, incremental: bool = False, offset: int = 0) -> tuple[int, list[tuple[Any, ...]]]:
    machine = Machine(incremental)
    following = replay(machine, cast("Log", EndOfLog()), offset, data)  # type: ignore[arg-type]
    return following, machine.applied


TWICE = batch(0, (b"k", b"1"), (b"x", b"2")) + batch(2, (b"k", b"3"), (b"unknown", b""))


def test_coordinator_replay_applies_only_the_last_record_of_each_key() -> None:
    assert replayed(TWICE) == (4, [(b"x", b"2", 1, -1), (b"k", b"3", 2, -1)])


def test_coordinator_replay_of_incremental_records_applies_every_record_in_order() -> None:
    assert replayed(TWICE, incremental=True) == (
        4,
        [(b"k", b"1", 0, -1), (b"x", b"2", 1, -1), (b"k", b"3", 2, -1)],
    )


@pytest.mark.parametrize("commit", [True, False])
def test_coordinator_replay_applies_transactional_records_and_other_records_in_log_order(commit: bool) -> None:
    data = b"".join(
        [
            batch(0, (b"k", b"1")),
            batch(1, (b"k", b"2"), producer=7),
            batch(2, (b"k", b"3")),
            marker(3, 7, commit),
            batch(4, (b"k", b"4")),
        ]
    )
    assert replayed(data) == (
        5,
        [(b"k", b"1", 0, -1), (b"k", b"2", 1, 7), (b"k", b"3", 2, -1), (7, commit), (b"k", b"4", 4, -1)],
    )


def test_coordinator_replay_of_a_chunk_without_batches_returns_the_end_offset_of_the_log() -> None:
    assert replayed(b"") == (END, [])


@pytest.mark.parametrize(("offset", "following"), [(0, 3), (1, 3), (2, 3), (3, 4), (9, 10)])
def test_coordinator_replay_always_moves_forward_even_if_a_read_returns_an_earlier_batch(
    offset: int, following: int
) -> None:
    records = [(b"k", b"1"), (b"l", b"2"), (b"m", b"3")]
    assert replayed(batch(0, *records), offset=offset)[0] == following
