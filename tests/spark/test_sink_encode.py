"""Batches encoded from columns equal those encoded record by record, and keys get the same partitions as in Kafka."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.client.partitioner import murmur2, partition_for_key
from penstock.records.build import NewRecord, build_batch
from penstock.records.record import Headers
from penstock.spark.sink_encode import Rows, build, cuts
from penstock.spark.sink_partition import murmur2 as murmur2_of_column
from penstock.spark.sink_partition import partitions_of

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def some_bytes(source: random.Random, longest: int) -> bytes | None:
    return None if source.random() < 0.2 else source.randbytes(source.choice([0, 1, 3, 4, 5, longest]))


def as_rows(records: list[NewRecord]) -> Rows:
    headers = None
    if any(record[3] for record in records):
        headers = pa.array([[{"key": k, "value": v} for k, v in record[3]] or None for record in records], HEADERS)
    return Rows(
        pa.array([record[1] for record in records], pa.binary()),
        pa.array([record[2] for record in records], pa.binary()),
        np.array([record[0] for record in records], np.int64),
        headers,
    )


def some_records(seed: int, count: int, *, headers: bool = False) -> list[NewRecord]:
    source = random.Random(seed)
    longest = source.choice([10, 64, 200, 20_000])
    spread = source.choice([0, 5, 10**6, 10**12])

    def some_headers() -> Headers:
        return (("h\u00e9", None), ("k", b"v"))[: source.randrange(3)] if headers else ()

    return [
        (
            1_700_000_000_000 + source.randint(-spread, spread),
            some_bytes(source, longest),
            some_bytes(source, longest),
            some_headers(),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("count", [1, 2, 65, 400])
@pytest.mark.parametrize("headers", [False, True])
def test_batch_encoded_from_columns_equals_the_batch_encoded_from_records(seed: int, count: int, headers: bool) -> None:
    records = some_records(seed, count, headers=headers)
    owner: dict[str, Any] = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 30, "transactional": True}
    assert build(as_rows(records)).seal(7, 2, 30, True) == build_batch(records, **owner)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_batch_from_columns_equals_the_batch_from_records(codec: int) -> None:
    records = some_records(3, 100)
    assert build(as_rows(records), codec).seal(-1, -1, -1, False) == build_batch(records, compression=codec)


def test_batch_encoded_from_a_slice_of_columns_has_only_the_rows_of_the_slice() -> None:
    records = some_records(5, 100)
    rows = as_rows(records).slice(40, 77)
    assert build(rows).seal(-1, -1, -1, False) == build_batch(records[40:77])


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_split_into_batches_that_cover_all_rows_and_keep_the_size_limit(seed: int) -> None:
    rows = as_rows(some_records(seed, 500, headers=seed == 1))
    found = cuts(rows, 5000)
    assert [start for start, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] == len(rows)
    for start, end in found:
        assert end - start == 1 or len(build(rows.slice(start, end)).seal(-1, -1, -1, False)) <= 5000


@pytest.mark.parametrize("seed", range(8))
def test_partition_of_a_key_is_the_same_as_in_kafkas_producer(seed: int) -> None:
    source = random.Random(seed)
    keys = [source.randbytes(source.randrange(40) if source.random() < 0.9 else 300) for _ in range(300)]
    column = pa.array([b"skipped", *keys], pa.binary()).slice(1)
    assert murmur2_of_column(column).tolist() == [murmur2(key) for key in keys]
    assert partitions_of(column, 7, 0).tolist() == [partition_for_key(key, 7) for key in keys]


def test_rows_without_a_key_go_to_the_partition_that_is_chosen_for_the_batch() -> None:
    column = pa.array([None, b"a", None], pa.binary())
    assert partitions_of(column, 9, 4).tolist() == [4, partition_for_key(b"a", 9), 4]
    assert partitions_of(pa.nulls(2, pa.binary()), 9, 4).tolist() == [4, 4]
    assert partitions_of(pa.array([b"", b""], pa.binary()), 9, 4).tolist() == [partition_for_key(b"", 9)] * 2
