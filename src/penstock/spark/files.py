"""Reads batches directly from a partition's segment files, if the task can open them.

This is safe for three reasons:

- A task's range ends at or below a high watermark (or last stable offset) that the leader gave. The log does not change
  below that offset: appends, rolls and truncations happen above it.
- Segments appear and disappear as a whole: retention renames and removes them, compaction replaces them. So a reader
  lists the directory, opens the files that it needs, and lists the directory again. If names and inodes are the same,
  the open files are one consistent state of the log. They stay readable for as long as the task runs.
- Transaction indexes are read before the data. Indexes that are older than the data contain every aborted transaction
  with records in the data.

If a file is not as expected, the iteration ends early, and the caller fetches the rest from the broker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise

from penstock.client.fetched import visible_batches
from penstock.log.checkpoints import META_PROPERTIES_FILE, parse_properties
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TXN_INDEX_SUFFIX
from penstock.log.swap import SWAP_SUFFIX
from penstock.log.txn_index import AbortedTransaction, read_txn_index
from penstock.protocol.errors import KafkaError
from penstock.records.batches import iter_batches
from penstock.records.header import HEADER_SIZE, LOG_OVERHEAD, BatchHeader
from penstock.spark.planner import FileHint

#: Bytes of one read: as much as one Arrow batch takes, so that it is decoded while it is in the processor's cache.
READ_BYTES = 4 * 1024 * 1024
#: The largest possible batch; a greater length means a corrupt file.
MAX_BATCH_BYTES = 1 << 30
ATTEMPTS = 5
_INDEX_ENTRY = 8
_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TXN_INDEX_SUFFIX)

Listing = dict[str, int]
"""A dict of the file names in a directory and their inodes."""


@dataclass(slots=True)
class OpenSegment:
    base_offset: int
    file: int
    position: int
    """The byte of the file at which to begin reading: at or before the batch that holds the first wanted offset."""
    end: int | None
    """The base offset of the next segment, where this segment ends; None for the active segment."""
    whole: bool = False
    """Set after reading: True if the whole file consisted of valid batches."""


@dataclass(slots=True)
class Snapshot:
    segments: list[OpenSegment]
    aborted: list[AbortedTransaction]


def partition_directory(hint: FileHint, topic: str, partition: int) -> str | None:
    """Returns the partition's directory; None if the directory is not on this machine.

    This machine may have an unrelated directory with the same path. So the node id, the cluster id and the topic id in
    its files are compared with `hint`.
    """
    try:
        with open(f"{hint.log_dir}/{META_PROPERTIES_FILE}", "rb") as file:
            meta = parse_properties(file.read(1 << 16))
        directory = f"{hint.log_dir}/{topic}-{partition}"
        with open(f"{directory}/partition.metadata", "rb") as file:
            described = file.read(1 << 12).decode(errors="replace")
    except OSError:
        return None
    node = meta.get("node.id") or meta.get("broker.id")
    if node != str(hint.node_id) or meta.get("cluster.id") != hint.cluster_id:
        return None
    return directory if f"topic_id: {hint.topic_id}" in described.splitlines() else None


def read_files(
    directory: str, start: int, end: int, *, read_committed: bool, check_crc: bool = True
) -> Iterator[tuple[list[tuple[BatchHeader, memoryview]], int]]:
    """Reads the offsets from `start` to `end` - 1. Yields pairs (list of data batches, offset after these batches)."""
    with snapshot_of(directory, start, end, read_committed) as snapshot:
        next_offset = start
        for segment in snapshot.segments:
            for data in portions(segment, next_offset):
                aborted = None
                if read_committed:
                    # As in a fetch, only aborted transactions that end at or after the next offset are used. The marker
                    # of an earlier one is not read here, so all later records of its producer would be dropped.
                    first = max(data.first, next_offset)
                    aborted = [a for a in snapshot.aborted if a.last_offset >= first and a.first_offset <= data.last]
                try:
                    # An index entry has the two fields that are used: producer id and first offset.
                    batches, after, *_ = visible_batches(data.view, next_offset, aborted=aborted, check_crc=check_crc)  # type: ignore[arg-type]
                except KafkaError:
                    return
                if after > next_offset:
                    next_offset = after
                    yield batches, after
                if next_offset >= end:
                    return
            if segment.end is not None and not segment.whole:
                return  # corrupt in the middle of the log: its records must not be skipped silently


# Listing and opening files


@contextmanager
def snapshot_of(directory: str, start: int, end: int, read_committed: bool) -> Iterator[Snapshot]:
    for _ in range(ATTEMPTS):
        with ExitStack() as files:
            try:
                before = _listing(directory)
                if before is None:
                    continue
                aborted = _aborted(directory, before, start) if read_committed else []
                bases = _bases(before)
                after = dict(pairwise(bases))
                segments = [
                    _opened(directory, base, after.get(base), start, files) for base in _wanted(bases, start, end)
                ]
                stable = _listing(directory) == before
            except OSError:
                continue
            if stable:
                yield Snapshot(segments, aborted)
                return
    yield Snapshot([], [])


def _listing(directory: str) -> Listing | None:
    """Returns the names and inodes of the directory's files.

    Returns None while compaction swaps files, because a segment may have no name for a moment.
    """
    with os.scandir(directory) as entries:
        found = {each.name: each.inode() for each in entries}
    if any(name.endswith(SWAP_SUFFIX) for name in found):
        return None
    return {name: inode for name, inode in found.items() if name.endswith(_SUFFIXES)}


def _bases(listing: Listing) -> list[int]:
    return sorted(int(name[:20]) for name in listing if name.endswith(LOG_SUFFIX))


def _wanted(bases: list[int], start: int, end: int) -> list[int]:
    first = sum(base <= start for base in bases) - 1
    return [] if first < 0 else [base for base in bases[first:] if base < end]


def _opened(directory: str, base: int, after: int | None, start: int, files: ExitStack) -> OpenSegment:
    path = f"{directory}/{base:020d}"
    file = os.open(path + LOG_SUFFIX, os.O_RDONLY)
    files.callback(os.close, file)
    return OpenSegment(base, file, _place(path, base, start) if base < start else 0, after)


def _aborted(directory: str, listing: Listing, start: int) -> list[AbortedTransaction]:
    """Returns the aborted transactions in the indexes of the segment that contains `start` and of all later segments.

    Later indexes are needed: a transaction is listed in the segment of its abort marker, which may be later than
    the segments of its records.
    """
    first = max((base for base in _bases(listing) if base <= start), default=0)
    found: list[AbortedTransaction] = []
    for name in sorted(listing):
        if name.endswith(TXN_INDEX_SUFFIX) and int(name[:20]) >= first:
            with open(f"{directory}/{name}", "rb") as file:
                found += read_txn_index(int(name[:20]), file.read())
    return found


# Reading batches


@dataclass(slots=True)
class Portion:
    view: memoryview
    first: int
    last: int


def portions(segment: OpenSegment, start: int) -> Iterator[Portion]:
    """Yields the bytes of a segment in pieces of some megabytes. Each piece consists of whole batches.

    Leaves out pieces that end before the offset `start`.
    """
    position = segment.position
    size = READ_BYTES
    while True:
        data = os.pread(segment.file, size, position)
        used, first, last = 0, -1, -1
        try:
            for header, batch in iter_batches(data, allow_partial=True):
                used += len(batch)
                if first < 0:
                    first = header.base_offset
                last = header.last_offset
        except KafkaError:
            pass  # preallocated space, or a corrupt batch: the whole batches before it are valid
        if not used:
            wanted = int.from_bytes(data[8:12], "big") + LOG_OVERHEAD if len(data) >= HEADER_SIZE else 0
            if len(data) < size or not size < wanted <= MAX_BATCH_BYTES:
                segment.whole = not data
                return
            size = wanted
            continue
        size = READ_BYTES
        position += used
        if last >= start:
            yield Portion(memoryview(data)[:used], first, last)


def _place(path: str, base_offset: int, offset: int) -> int:
    """Returns the byte position, from the segment's index, of a batch at or before `offset`; 0 if there is no index."""
    try:
        with open(path + INDEX_SUFFIX, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return 0
    relative = offset - base_offset
    found = 0
    low, high = 0, len(data) // _INDEX_ENTRY
    while low < high:
        middle = (low + high) // 2
        entry = data[middle * _INDEX_ENTRY : (middle + 1) * _INDEX_ENTRY]
        place = int.from_bytes(entry[4:], "big")
        # Kafka preallocates an index: the zeros after the last entry count as entries that are too large.
        if int.from_bytes(entry[:4], "big") <= relative and (place or not middle):
            low, found = middle + 1, place
        else:
            high = middle
    return found
