"""Tests the excerpts of records for REST: limits, offsets within the range of their batch, and text search."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.records.build import build_batch, encode_record, seal
from penstock.records.compression import Codec, compress
from penstock.records.excerpts import DECODE_WORK, SEARCH_BYTES, STEP_WORK, Excerpt, Wanted, excerpt_steps
from penstock.records.header import parse_header
from penstock.records.record import Record
from penstock.records.varint import varint
from tools.examples import examples

MAX_BYTES = 16 * 1024 * 1024
HEADER = parse_header(build_batch([(5, None, b"", ())], base_offset=100))


def forged(payload: bytes, count: int, codec: Codec = Codec.NONE, **fields: int) -> bytes:
    """Returns a batch with a valid header and CRC around any payload."""
    packed = compress(codec, payload)
    header = HEADER._replace(records_count=count, last_offset_delta=count - 1, attributes=codec)
    return seal(header._replace(**fields), packed) + packed


def read(batch: bytes, wanted: Wanted | None = None) -> list[Excerpt]:
    steps = excerpt_steps(batch, wanted or Wanted(), MAX_BYTES)
    return [each for matches, _ in steps for each in matches]


@given(deltas=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20), spare=st.integers(0, 30))
@settings(max_examples=examples(200), deadline=None)
def test_record_previews_have_increasing_offsets_even_if_the_producer_wrote_wrong_offsets(
    deltas: list[int], spare: int
) -> None:
    payload = b"".join(encode_record(0, delta, None, b"v") for delta in deltas)
    last_delta = len(deltas) - 1 + spare
    batch = forged(payload, len(deltas), last_offset_delta=last_delta)
    found = [each.offset for each in read(batch)]
    assert len(found) == len(deltas)
    assert found == sorted(set(found))
    assert found[0] >= 100
    assert found[-1] <= 100 + last_delta


@given(gaps=st.lists(st.integers(1, 9), min_size=1, max_size=20), spare=st.integers(0, 9))
@settings(max_examples=examples(100), deadline=None)
def test_record_previews_of_a_compacted_batch_keep_the_gaps_between_offsets(gaps: list[int], spare: int) -> None:
    offsets = [99 + sum(gaps[: number + 1]) for number in range(len(gaps))]
    batch = build_batch([Record(offset, 5, b"k", b"v") for offset in offsets], base_offset=100)
    header = parse_header(batch)
    payload = batch[-(len(batch) - 61) :]
    longer = seal(header._replace(last_offset_delta=header.last_offset_delta + spare), payload) + payload
    assert [each.offset for each in read(longer)] == offsets


def test_record_preview_of_a_batch_with_more_records_than_offsets_is_refused() -> None:
    batch = forged(encode_record(0, 0, None, b"v") * 2, 2, last_offset_delta=0)
    with pytest.raises(KafkaError, match="claims 2 records for 1 offsets") as refused:
        read(batch)
    assert refused.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", list(Codec))
def test_record_preview_counts_headers_beyond_the_limit_without_decoding_these_headers(codec: Codec) -> None:
    body = b"\0\0\0" + varint(-1) + varint(1) + b"v" + varint(1_000_000) + b"\0\1" * 10 + b"\xff" * 1_999_980
    batch = forged(varint(len(body)) + body, 1, codec)
    (found,) = read(batch, Wanted(record_bytes=MAX_BYTES, headers=10))
    assert (found.value, found.headers) == (b"v", (("", None),) * 10)
    assert found.headers_left_out == 999_990
    assert found.size == 1 + 1_999_980


def test_record_preview_of_a_too_long_record_has_its_size_but_no_key_and_value() -> None:
    batch = build_batch([(0, b"key", bytes(2000), (("h", bytes(500)),)), (0, b"key", b"short", ())])
    long, short = read(batch, Wanted(record_bytes=1000))
    assert (long.left_out, long.key, long.value, long.headers, long.headers_left_out) == (True, None, None, (), 1)
    assert 2503 < long.size < 2520
    assert (short.left_out, short.value) == (False, b"short")


def test_one_step_of_the_record_preview_reads_a_limited_number_of_records_and_bytes() -> None:
    headers = (("h", b"x"),) * 100
    cases = {
        build_batch([(0, None, b"v", ())] * STEP_WORK): STEP_WORK // (1 + DECODE_WORK),
        build_batch([(0, None, b"v", headers)] * 100): STEP_WORK // (100 * DECODE_WORK),
        build_batch([(0, None, bytes(50 * 1024), ())] * 100): STEP_WORK // (4 * 50),
    }
    for batch, at_most in cases.items():
        sizes = [len(matches) for matches, _ in excerpt_steps(batch, Wanted(), MAX_BYTES)]
        assert max(sizes) <= at_most + 1
        assert min(sizes[:-1]) > at_most // 2


def test_one_step_of_the_record_search_skips_many_records_that_do_not_match() -> None:
    batch = build_batch([(0, None, b"v", ())] * (2 * STEP_WORK))
    for wanted in (Wanted(first=2 * STEP_WORK), Wanted(contains=b"nothing")):
        assert list(excerpt_steps(batch, wanted, MAX_BYTES)) == [([], STEP_WORK), ([], 2 * STEP_WORK)]


def test_text_search_finds_only_text_within_a_key_or_within_a_value() -> None:
    batch = build_batch([(0, b"key", b"value", (("name", b"content"),))])
    for text in (b"name", b"content", b"y\x0av", b"keyvalue"):
        assert text in batch or text == b"keyvalue"
        assert read(batch, Wanted(contains=text)) == []


def test_record_previews_before_a_malformed_record_are_returned_before_the_error() -> None:
    payload = b"".join(encode_record(0, delta, None, b"v%d" % delta) for delta in range(3))
    for wrong in (varint(-5) + bytes(20), varint(300) + bytes(20), varint(7) + b"\0\0\6\1\1\2\1"):
        steps = excerpt_steps(forged(payload + wrong, 4), Wanted(), MAX_BYTES)
        matches, reached = next(steps)
        assert [each.value for each in matches] == [b"v0", b"v1", b"v2"]
        assert reached == 103
        with pytest.raises(KafkaError):
            next(steps)


def test_record_previews_of_a_batch_with_trailing_bytes_are_returned_before_the_error() -> None:
    steps = excerpt_steps(forged(encode_record(0, 0, None, b"v") + b"rest", 1), Wanted(), MAX_BYTES)
    assert len(next(steps)[0]) == 1
    with pytest.raises(KafkaError, match="4 bytes follow"):
        next(steps)


def test_text_search_finds_text_anywhere_in_a_long_value() -> None:
    text = b"needle in a haystack"
    size = 3 * SEARCH_BYTES
    for at in (0, SEARCH_BYTES - 3, SEARCH_BYTES + len(text) - 1, 2 * SEARCH_BYTES + 5, size - len(text)):
        value = bytearray(size)
        value[at : at + len(text)] = text
        batch = build_batch([(0, None, bytes(value), ()), (0, text[:-1], bytes(size), ())])
        assert [each.offset for each in read(batch, Wanted(contains=text))] == [0]


def test_text_search_does_not_find_text_in_null_or_empty_keys_and_values() -> None:
    batch = build_batch([(0, None, None, ()), (0, b"", b"", ()), (0, b"a", None, ())])
    assert [(each.key, each.value) for each in read(batch)] == [(None, None), (b"", b""), (b"a", None)]
    assert [each.offset for each in read(batch, Wanted(contains=b"a"))] == [2]
    assert [each.offset for each in read(batch, Wanted(first=1))] == [1, 2]


def test_record_preview_limits_a_too_large_timestamp_to_int64() -> None:
    batch = forged(encode_record(2**62, 0, None, b"v"), 1, base_timestamp=2**63 - 1)
    assert [each.timestamp for each in read(batch)] == [2**63 - 1]
