"""Limits offset ranges to a number of records, and splits them into tasks. Pure code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from penstock.protocol.vocabulary import TopicPartition

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Holds the offsets of a partition from `start` up to `end` - 1.

    There may be fewer records than offsets, because compaction and transactions leave gaps.
    """

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Returns the offsets in the form that Spark writes into checkpoints and progress: {"orders": {"0": 23}}."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def from_json(offsets: Mapping[str, Mapping[str, int]] | None) -> Offsets:
    return {
        (topic, int(index)): int(offset) for topic, inner in (offsets or {}).items() for index, offset in inner.items()
    }


def split(
    ranges: Iterable[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Splits long ranges, so that no range has more than `max_records` offsets.

    Splits the ranges further if there are fewer than `min_partitions`, until there are about `min_partitions`.
    """
    wanted = [each for each in ranges if each.size > 0]
    if max_records is not None:
        wanted = [piece for each in wanted for piece in _cut(each, -(-each.size // max_records))]
    if min_partitions is not None and len(wanted) < min_partitions and wanted:
        total = sum(each.size for each in wanted)
        # Short ranges stay whole; the long ranges share the remaining tasks in proportion to their size.
        small = [each for each in wanted if each.size * min_partitions <= total]
        large = [each for each in wanted if each.size * min_partitions > total]
        rest = sum(each.size for each in large)
        room = max(min_partitions - len(small), len(large))
        pieces = {each: max(1, round(each.size / rest * room)) for each in large}
        wanted = [piece for each in wanted for piece in _cut(each, pieces.get(each, 1))]
    return wanted


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    count = max(1, min(count, whole.size))
    edges = [whole.start + whole.size * index // count for index in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(edges)]


def limited(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int) -> Offsets:
    """Returns end offsets for a batch that begins at `start` and has about `limit` records in total.

    Each partition gets a part of the limit in proportion to its number of offsets. As in Spark's own source, every
    partition with records gets at least one record, so that no partition starves.
    """
    sizes = {each: max(0, end[each] - start.get(each, end[each])) for each in end}
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    moved: Offsets = {}
    for each, size in sizes.items():
        if not size:
            moved[each] = end[each]
            continue
        share = limit * size / total
        step = max(1, int(share)) if share < 1 else int(share)
        moved[each] = min(start[each] + step, end[each])
    return moved
