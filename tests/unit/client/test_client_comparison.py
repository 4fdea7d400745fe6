"""Replicas compared piece by piece."""

from __future__ import annotations

from penstock.client.comparison import Difference, Piece, Survivors, _spans, compare_pieces, digest_of
from penstock.records.build import build_batch


def pieces(*spans: tuple[int, int, bytes]) -> list[Piece]:
    return [Piece(first, last, digest) for first, last, digest in spans]


LEADER = pieces((0, 4, b"a"), (5, 9, b"b"), (10, 10, b"c"))


def found(own: list[Piece]) -> tuple[int, str] | None:
    difference = compare_pieces(2, (0, 99), own, LEADER)
    assert difference is None or isinstance(difference, Difference)
    return None if difference is None else (difference.offset, difference.what)


def test_equal_replicas_have_no_difference_and_one_digest() -> None:
    assert found(list(LEADER)) is None
    assert digest_of(list(LEADER)) == digest_of(LEADER)


def test_the_first_difference_is_named_by_its_offset() -> None:
    assert found(pieces((0, 4, b"a"), (5, 9, b"x"), (10, 10, b"y"))) == (5, "other bytes than the leader's")
    assert found(pieces((0, 4, b"a"), (5, 9, b"b"))) == (10, "records of the leader are missing")
    assert found([*LEADER, Piece(11, 12, b"d")]) == (11, "records that the leader doesn't have")
    assert found(pieces((0, 4, b"a"), (5, 7, b"b"), (8, 10, b"c"))) == (
        5,
        "offsets 5 to 7 where the leader has 5 to 9",
    )


def test_digests_tell_cuts_apart() -> None:
    assert digest_of(pieces((0, 1, b"a"))) != digest_of(pieces((0, 2, b"a")))


def test_ranges_begin_at_multiples_of_their_size() -> None:
    assert _spans(3, 25, 10) == [(3, 10), (10, 20), (20, 25)]
    assert _spans(10, 20, 10) == [(10, 20)]


def test_of_a_compacted_topic_only_what_compaction_promises_counts() -> None:
    full, compacted = Survivors(), Survivors()
    records = [(1, b"a", b"1", ()), (2, b"b", b"1", ()), (3, b"a", b"2", ()), (4, b"b", None, ())]
    full.take(memoryview(build_batch(records)))
    compacted.take(memoryview(build_batch([(3, b"a", b"2", ())], base_offset=2)))
    assert digest_of(full.pieces()) == digest_of(compacted.pieces())
    other = Survivors()
    other.take(memoryview(build_batch([(3, b"a", b"3", ())], base_offset=2)))
    assert digest_of(other.pieces()) != digest_of(compacted.pieces())
