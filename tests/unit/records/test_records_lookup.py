"""Tests the search for records by time inside a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.records import lookup
from penstock.records.build import build_batch, encode_record, seal
from penstock.records.compression import Codec
from penstock.records.header import parse_header
from penstock.records.lookup import TimedOffset
from penstock.records.record import records_payload
from penstock.records.scan import finish, record_times


def first_at_or_after(batch: bytes, timestamp: int, start: int = 0) -> TimedOffset | None:
    header = parse_header(batch)
    return finish(lookup.first_at_or_after(header, records_payload(batch, header), timestamp, start))


def latest(batch: bytes) -> TimedOffset | None:
    header = parse_header(batch)
    return finish(lookup.latest(header, records_payload(batch, header)))


TIMES = [50, 20, 70, 70, 10]


def batch_of(times: list[int], codec: int = 0) -> bytes:
    return build_batch([(time, b"k", b"v", ()) for time in times], base_offset=100, compression=codec)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize(
    ("timestamp", "start", "found"),
    [(0, 0, (50, 100)), (50, 0, (50, 100)), (51, 0, (70, 102)), (0, 101, (20, 101)), (60, 103, (70, 103))],
)
def test_the_first_record_at_or_after_a_timestamp_is_found(
    codec: Codec, timestamp: int, start: int, found: tuple[int, int]
) -> None:
    assert first_at_or_after(batch_of(TIMES, codec), timestamp, start) == found


@pytest.mark.parametrize("spare", [0, 3])
def test_offset_found_by_timestamp_is_within_its_batch_even_if_the_producer_wrote_wrong_offsets(spare: int) -> None:
    payload = b"".join(encode_record(time, delta, None, b"v") for time, delta in ((0, 9), (1, -5), (2, 2**31 - 1)))
    header = parse_header(batch_of([50, 51, 52]))._replace(last_offset_delta=2 + spare)
    batch = seal(header, payload) + payload
    found = [first_at_or_after(batch, 50 + number) for number in range(3)]
    offsets = [each.offset for each in found if each is not None]
    assert offsets == [100 + spare, 101 + spare, 102 + spare]
    assert latest(batch) == (52, 102 + spare)


def test_search_after_the_last_timestamp_or_offset_finds_no_record() -> None:
    assert first_at_or_after(batch_of(TIMES), 71) is None
    assert first_at_or_after(batch_of(TIMES), 60, 104) is None


def test_latest_record_is_the_first_record_with_the_largest_timestamp() -> None:
    assert latest(batch_of(TIMES)) == (70, 102)


def test_latest_record_of_a_log_append_time_batch_is_its_last_record() -> None:
    batch = build_batch([(1, None, None, ())] * 3, base_offset=7, log_append_time=99)
    assert latest(batch) == (99, 9)
    assert first_at_or_after(batch, 99) == (99, 7)
    assert first_at_or_after(batch, 100) is None


def test_batch_without_timestamps_has_no_latest_record() -> None:
    assert latest(batch_of([-1, -1])) is None


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=30), st.integers(0, 2**40))
def test_lookup_by_time_has_the_same_result_as_a_scan_of_all_records(times: list[int], timestamp: int) -> None:
    batch = batch_of(times)
    pairs = [(time, 100 + n) for n, time in enumerate(times)]
    header = parse_header(batch)
    slices = record_times(header, records_payload(batch, header))
    assert [(time, offset) for each in slices for offset, time in each] == pairs
    assert first_at_or_after(batch, timestamp) == next((pair for pair in pairs if pair[0] >= timestamp), None)
    assert latest(batch) == max(pairs, key=lambda pair: (pair[0], -pair[1]))
