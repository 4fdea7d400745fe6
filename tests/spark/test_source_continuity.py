"""Checks where a stream continues, by the offsets and ids of its topics."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.continuity import StreamOffset, changes, made_again
from penstock.spark.ranges import from_json

NAMES = st.text("abc.-_", min_size=1, max_size=4)
OFFSETS = st.dictionaries(st.tuples(NAMES, st.integers(0, 3)), st.integers(0, 9), max_size=6)
IDS = st.dictionaries(NAMES, st.text("xyz-_", min_size=1, max_size=3), max_size=4)


@given(OFFSETS, IDS)
def test_stream_offset_in_a_checkpoint_can_be_read_by_penstock_and_by_sparks_own_source(
    offsets: dict[tuple[str, int], int], ids: dict[str, str]
) -> None:
    topics = {topic for topic, _ in offsets}
    known = {topic: each for topic, each in ids.items() if topic in topics}
    written = json.loads(json.dumps(StreamOffset(offsets, ids).to_json()))
    assert StreamOffset.from_json(written) == StreamOffset(offsets, known)
    assert from_json(written) == offsets


@given(OFFSETS, OFFSETS, IDS, IDS)
def test_each_changed_partition_is_reported_once_as_recreated_deleted_or_shortened(
    before: dict[tuple[str, int], int],
    after: dict[tuple[str, int], int],
    old: dict[str, str],
    new: dict[str, str],
) -> None:
    start, newest = StreamOffset(before, old), StreamOffset(after, new)
    found = changes(start, newest)
    for each, offset in before.items():
        reasons = (each[0] in found.made_again, each in found.gone, each in found.behind)
        assert sum(reasons) == (each[0] in made_again(start, newest) or each not in after or after[each] < offset), (
            each,
            found,
        )


def test_topic_counts_as_recreated_only_if_two_stream_offsets_have_different_ids_for_it() -> None:
    with_id, without = StreamOffset({("t", 0): 1}, {"t": "A"}), StreamOffset({("t", 0): 1})
    assert made_again(with_id, without) == made_again(without, with_id) == set()
    assert made_again(with_id, StreamOffset({("t", 0): 1}, {"t": "B"})) == {"t"}
