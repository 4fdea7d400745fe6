"""Provides the tests of segments with short histories, and with a plain model of a segment and of its indexes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

from penstock.disk.memory import MemoryDisk
from penstock.log.segment import Segment
from penstock.records.build import build_batch
from penstock.records.header import BatchHeader, parse_header

BASE = 1000
PATH = "/log"
#: An index entry is due after each batch that is larger than this.
INTERVAL = 90
#: Missing offsets before the batch (compaction leaves gaps), its number of records, its timestamp.
Kind = tuple[int, int, int]
KINDS: tuple[Kind, ...] = ((0, 1, 20), (0, 3, 10), (2, 1, 30), (0, 2, -1))
LONG: tuple[Kind, ...] = (*KINDS, (0, 1, 30), (1, 2, 25), (0, 1, 31), *KINDS, (0, 1, 32), (3, 1, 5))
HISTORIES = [history for length in range(4) for history in product(KINDS, repeat=length)] + [LONG]


@dataclass
class Model:
    """Holds the batches of a segment and the index entries that Kafka's rule gives for them."""

    batches: list[tuple[int, BatchHeader]] = field(default_factory=list)
    entries: list[tuple[int, int]] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)
    size: int = 0
    unindexed: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1][1].next_offset if self.batches else BASE

    @property
    def newest(self) -> tuple[int, int]:
        """Returns the largest timestamp, and the last offset of the first batch that has it."""
        best = (-1, BASE)
        for _, header in self.batches:
            if header.max_timestamp > best[0]:
                best = header.max_timestamp, header.last_offset
        return best

    def append(self, data: bytes) -> None:
        header = parse_header(data)
        self.batches.append((self.size, header))
        if self.unindexed > INTERVAL:
            self.entries.append((header.last_offset, self.size))
            self.add_time()
            self.unindexed = 0
        self.unindexed += header.size
        self.size += header.size

    def add_time(self) -> None:
        if self.newest[0] > (self.times[-1][0] if self.times else -1):
            self.times.append(self.newest)

    def cut(self, offset: int) -> None:
        self.batches = [each for each in self.batches if each[1].last_offset < offset]
        self.entries = [each for each in self.entries if each[0] < offset and self.batches]
        self.times = [each for each in self.times if each[1] < offset and self.batches]
        self.size = sum(header.size for _, header in self.batches)
        self.unindexed = 0

    def next_batch(self, kind: Kind) -> bytes:
        gap, count, timestamp = kind
        return build_batch([(timestamp, b"k", b"v" * 20, ())] * count, base_offset=self.end + gap)


def empty(disk: MemoryDisk | None = None) -> Segment:
    disk = MemoryDisk() if disk is None else disk
    disk.mkdir(PATH)
    return Segment.create(disk, PATH, BASE, created_ms=0, index_interval=INTERVAL)


def append(segment: Segment, model: Model, kind: Kind) -> None:
    data = model.next_batch(kind)
    segment.append(parse_header(data), data[:61], data[61:])
    model.append(data)


def filled(history: tuple[Kind, ...], disk: MemoryDisk | None = None) -> tuple[Segment, Model]:
    segment, model = empty(disk), Model()
    for kind in history:
        append(segment, model, kind)
    return segment, model


def reopened(segment: Segment) -> Segment:
    return Segment(segment.disk, PATH, BASE, size=segment.size, index_interval=INTERVAL)


def check(segment: Segment, model: Model) -> None:
    """Checks the answers of the segment for every offset, and its whole indexes."""
    assert segment.size == model.size == segment.file.size
    assert (segment.max_timestamp, segment.max_timestamp_offset) == model.newest
    first = model.batches[0][1].max_timestamp if model.batches else None
    assert segment.first_timestamp == first
    for offset in range(BASE, model.end + 2):
        following = [(position, header) for position, header in model.batches if header.last_offset >= offset]
        found = segment.locate(offset)
        if following:
            position, header = following[0]
            assert found == (position, header.size)
            assert segment.position_of(offset) == position
            assert segment.boundary(offset) == min(offset, header.base_offset)
        else:
            assert found is None
            assert (segment.position_of(offset), segment.boundary(offset)) == (model.size, offset)
    assert segment.index.entries() == model.entries
    assert segment.time_index.entries() == model.times
