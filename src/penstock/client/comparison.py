"""Reads the replicas of a partition side by side and compares their digests, one range of offsets after the other.

Each replica is read like a consumer that fetches from a follower (KIP-392): the Fetch goes to the replica's node. Any
Kafka broker serves such a Fetch, up to the replica's high watermark. The comparison covers the offsets from the highest
log start offset to the lowest high watermark of the replicas. A replica's lag is reported, but not as a difference.

A replica holds the same bytes as its leader, so batches are compared byte by byte, including the leader epoch. But each
replica compacts its log independently. So for a compacted topic, only the last record of every key is compared, and
tombstones are ignored.

`outline` finds the offsets to compare. `shares` divides them into parts, which can be compared in any process and in
any order. `gathered` merges the results, which do not depend on the division.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.client.client import AsyncClient
from penstock.client.errors import code_of
from penstock.client.offsets import list_offsets
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.protocol.vocabulary import EARLIEST, TopicPartition
from penstock.records.batches import crc_ok, iter_batches
from penstock.records.record import read_records

FETCH_BYTES = 4 * 1024 * 1024
FIRST_VERSION = 11
"""The lowest version of Fetch that followers serve; older versions are served by leaders only."""
TRIES = 10
PAUSE_S = 0.2
DIGEST_BYTES = 16

Paced = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Target:
    """Names a partition whose replicas are to be compared."""

    partition: TopicPartition
    topic_id: bytes
    leader: int
    replicas: tuple[int, ...]
    """Node ids of all replicas, including the leader."""
    compacted: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """Holds the digest and the offsets of one batch, or of one record if the topic is compacted."""

    first: int
    last: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Difference:
    """Describes a range of offsets in which a replica differs from the leader. `offset` is the first offset that
    differs."""

    replica: int
    first: int
    last: int
    offset: int
    what: str


@dataclass(slots=True)
class Comparison:
    partition: TopicPartition
    leader: int
    first: int = 0
    end: int = 0
    compared: list[int] = field(default_factory=list)
    left_out: dict[int, str] = field(default_factory=dict)
    behind: dict[int, int] = field(default_factory=dict)
    """The lag of each lagging replica: the leader's high watermark minus the replica's."""
    differences: list[Difference] = field(default_factory=list)
    ranges: int = 0
    read_bytes: int = 0
    digest: str = ""
    """Digest of the leader's data; equal for every run over the same offsets."""


@dataclass(frozen=True, slots=True)
class Share:
    """Describes the part of a comparison that one task makes: consecutive ranges of offsets of one partition."""

    target: Target
    nodes: tuple[int, ...]
    """Node ids of the replicas, the leader first."""
    spans: tuple[tuple[int, int], ...]
    begins: bool
    """True for a partition's first share.

    It also covers a batch that begins before the share's first offset and extends into it.
    """


@dataclass(slots=True)
class Found:
    """Holds the result of comparing the replicas in one `Share`."""

    differences: list[Difference] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    """A digest of the leader's data for each range."""
    log_start: int = 0
    """The new log start, if retention deleted some of these offsets during the comparison."""
    read_bytes: int = 0


# --- pure -----------------------------------------------------------------------------------------------------------


def compare_pieces(
    replica: int, span: tuple[int, int], own: Sequence[Piece], leaders: Sequence[Piece]
) -> Difference | None:
    """Returns the first difference between a replica and the leader in a range of offsets; None if they are equal.

    A `Piece` is a batch, or a record if the topic is compacted.
    """
    first, last = span
    for mine, theirs in zip(own, leaders):
        if mine == theirs:
            continue
        if (mine.first, mine.last) != (theirs.first, theirs.last):
            at = min(mine.first, theirs.first)
            said = f"offsets {mine.first} to {mine.last} where the leader has {theirs.first} to {theirs.last}"
            return Difference(replica, first, last, at, said)
        return Difference(replica, first, last, mine.first, "other bytes than the leader's")
    if len(own) < len(leaders):
        return Difference(replica, first, last, leaders[len(own)].first, "records of the leader are missing")
    if len(own) > len(leaders):
        return Difference(replica, first, last, own[len(leaders)].first, "records that the leader doesn't have")
    return None


def digest_of(pieces: Sequence[Piece]) -> bytes:
    whole = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for piece in pieces:
        whole.update(b"%d-%d:" % (piece.first, piece.last) + piece.digest)
    return whole.digest()


class Survivors:
    """Collects the last record of each key. Drops keys whose last record is a tombstone."""

    def __init__(self) -> None:
        self._latest: dict[bytes | None, Piece] = {}

    def take(self, batch: memoryview) -> None:
        for record in read_records(batch):
            if record.value is None:
                self._latest.pop(record.key, None)
                continue
            digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
            for part in (record.key or b"", record.value):
                digest.update(b"%d:" % len(part))
                digest.update(part)
            digest.update(repr((record.key is None, record.timestamp, record.headers)).encode())
            self._latest[record.key] = Piece(record.offset, record.offset, digest.digest())

    def pieces(self) -> list[Piece]:
        return sorted(self._latest.values(), key=lambda piece: piece.first)


def unread(target: Target, why: str) -> Comparison:
    """Returns the `Comparison` for a partition whose replicas could not be read."""
    return Comparison(target.partition, target.leader, left_out=dict.fromkeys(target.replicas, why))


def shares(target: Target, outlined: Comparison, *, range_offsets: int, most_ranges: int | None = None) -> list[Share]:
    """Divides the offsets to compare into ranges. Returns them in order, as shares of at most `most_ranges` ranges.

    A compacted topic is not divided, because the last record of a key may be at any offset.
    """
    if outlined.first >= outlined.end:
        return []
    whole = (outlined.first, outlined.end)
    spans = [whole] if target.compacted else _spans(*whole, range_offsets)
    nodes = (outlined.leader, *(node for node in outlined.compared if node != outlined.leader))
    size = most_ranges or len(spans)
    return [Share(target, nodes, tuple(spans[at : at + size]), begins=at == 0) for at in range(0, len(spans), size)]


def _spans(first: int, end: int, size: int) -> list[tuple[int, int]]:
    """Divides the offsets from `first` to `end` (excluded) into ranges that end at multiples of `size`.

    Two runs of a comparison therefore divide the log at the same offsets.
    """
    cuts = [first, *range((first // size + 1) * size, end, size), end]
    return list(pairwise(cuts))


def gathered(outlined: Comparison, parts: Iterable[Found]) -> Comparison:
    """Merges the results of all offset ranges of a partition. `parts` must be in the order of the ranges."""
    whole = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        for digest in part.digests:
            whole.update(digest)
        outlined.ranges += len(part.digests)
        outlined.differences += part.differences
        outlined.read_bytes += part.read_bytes
        outlined.first = max(outlined.first, part.log_start)
    outlined.digest = whole.hexdigest()
    return outlined


# --- reading --------------------------------------------------------------------------------------------------------


def at_rate(bytes_per_second: float | None) -> Paced:
    """Returns a function that limits the rate of reads. Call it after each read: it waits as long as necessary."""

    async def paced(size: int) -> None:
        if bytes_per_second:
            await asyncio.sleep(size / bytes_per_second)

    return paced


class _Reader:
    """Reads one replica in the order of offsets. Keeps batches that belong to a later range."""

    def __init__(self, client: AsyncClient, target: Target, node: int, paced: Paced) -> None:
        self.client = client
        self.partition = target.partition
        self.topic_id = target.topic_id
        self.node = node
        self.paced = paced
        self.position = 0
        self.floor = 0
        """Batches that begin before this offset belong to another range and are skipped."""
        self.read_bytes = 0
        self.log_start = 0
        self.high_watermark = 0
        self._ahead: list[Piece] = []

    async def fetch(self, offset: int, max_bytes: int = FETCH_BYTES) -> PartitionData:
        name, index = self.partition
        wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=max_bytes,
            topics=[FetchTopic(topic=name, topic_id=self.topic_id, partitions=[wanted])],
        )
        connection = await self.client.connection(self.node, "compare")
        version = connection.version_of(request.API_KEY)
        if version < FIRST_VERSION:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Node {self.node} is too old to serve reads from followers: upgrade it to Kafka 2.4 or later.",
            )
        answer: FetchResponse = await connection.request(request, version=version)
        if answer.error_code:
            raise KafkaError(code_of(answer.error_code), f"Node {self.node} refused to serve a fetch.")
        data = answer.responses[0].partitions[0]
        if data.error_code:
            raise KafkaError(code_of(data.error_code), f"{name}-{index} can't be read on node {self.node}.")
        size = len(data.records or b"")
        self.read_bytes += size
        await self.paced(size)
        return data

    async def bounds(self, start: int, leaders_mark: int) -> None:
        """Finds the replica's `log_start` and `high_watermark`.

        Retries for a short time, because a follower learns both with a delay.
        """
        for attempt in range(TRIES):
            try:
                data = await self.fetch(max(start, self.log_start), max_bytes=1)
                self.log_start, self.high_watermark = max(start, data.log_start_offset), data.high_watermark
                if self.high_watermark >= leaders_mark or attempt + 1 == TRIES:
                    return
            except KafkaError as error:
                if attempt + 1 == TRIES or not (error.code.retriable or error.code is ErrorCode.OFFSET_OUT_OF_RANGE):
                    raise
            await asyncio.sleep(PAUSE_S)

    async def batches_until(self, end: int, take: Callable[[int, int, memoryview], None]) -> None:
        """Calls `take` for every batch that begins before `end`, in order."""
        size = FETCH_BYTES
        while self.position < end:
            try:
                data = await self.fetch(self.position, size)
            except KafkaError as error:
                if error.code is not ErrorCode.CORRUPT_MESSAGE:
                    raise
                if size == 1:
                    raise _DamagedError(self.position) from None
                size = 1  # a broker may refuse a whole read that contains damage: read batch by batch to locate it
                continue
            moved = False
            for header, batch in iter_batches(memoryview(data.records or b""), allow_partial=True):
                if header.next_offset <= self.position:
                    continue
                if not crc_ok(batch):
                    if header.base_offset < self.floor:
                        continue  # reported by the range that it belongs to
                    raise _DamagedError(header.base_offset)
                moved = True
                self.position = header.next_offset
                if header.base_offset >= self.floor:
                    take(header.base_offset, header.last_offset, batch)
            if not moved:
                self.position = end  # no more batches below the high watermark: compaction removed the rest
                return

    async def pieces_until(self, end: int) -> list[Piece]:
        """Returns the digests of the batches that begin before `end`. Each batch is returned only once."""

        def take(first: int, last: int, batch: memoryview) -> None:
            self._ahead.append(Piece(first, last, hashlib.blake2b(batch, digest_size=DIGEST_BYTES).digest()))

        await self.batches_until(end, take)
        cut = next((index for index, piece in enumerate(self._ahead) if piece.first >= end), len(self._ahead))
        found, self._ahead = self._ahead[:cut], self._ahead[cut:]
        return found

    def go_to(self, offset: int, *, begins: bool) -> None:
        """Continues reading at another offset and drops the batches read so far."""
        self.position = offset
        self.floor = 0 if begins else offset
        self._ahead = []


class _DamagedError(Exception):
    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


async def outline(client: AsyncClient, target: Target, paced: Paced) -> Comparison:
    """Finds the replicas that can be compared, and the range of offsets to compare.

    Raises KafkaError if the leader can't be read.
    """
    partition, leader = target.partition, target.leader
    found = Comparison(partition, leader)
    start = (await list_offsets(client, {partition: EARLIEST}))[partition].offset
    nodes = (leader, *(node for node in target.replicas if node != leader))
    readers = {node: _Reader(client, target, node, paced) for node in nodes}
    for node in list(readers):
        try:
            await readers[node].bounds(start, readers[leader].high_watermark)
        except KafkaError as error:
            if node == leader:
                raise
            found.left_out[node] = error.message or error.code.name
            del readers[node]
    found.compared = sorted(readers)
    found.first = max(reader.log_start for reader in readers.values())
    found.end = min(reader.high_watermark for reader in readers.values())
    ahead = {node: readers[leader].high_watermark - reader.high_watermark for node, reader in readers.items()}
    found.behind = {node: lag for node, lag in ahead.items() if lag > 0}
    found.read_bytes = sum(reader.read_bytes for reader in readers.values())
    return found


async def compare_share(client: AsyncClient, share: Share, paced: Paced) -> Found:
    """Compares the replicas in one share and returns the result. Raises KafkaError if a replica can't be read."""
    found = Found()
    partition, compacted, leader = share.target.partition, share.target.compacted, share.nodes[0]
    readers = {node: _Reader(client, share.target, node, paced) for node in share.nodes}
    for reader in readers.values():
        reader.go_to(share.spans[0][0], begins=share.begins)
    for first, end in share.spans:
        try:
            if found.log_start < end:
                await _compare_span(found, readers, (max(first, found.log_start), end), compacted, leader)
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            # Retention may overtake the comparison: records deleted from all replicas need no comparison.
            start = (await list_offsets(client, {partition: EARLIEST}))[partition].offset
            if start <= first:
                raise
            found.log_start = start
            for reader in readers.values():
                reader.go_to(start, begins=True)
            if start < end:
                await _compare_span(found, readers, (start, end), compacted, leader)
    found.read_bytes = sum(reader.read_bytes for reader in readers.values())
    return found


async def compare_replicas(client: AsyncClient, target: Target, *, range_offsets: int, paced: Paced) -> Comparison:
    """Compares all replicas of a partition in this process and returns the result.

    Raises KafkaError if a replica can't be read.
    """
    found = await outline(client, target, paced)
    parts = shares(target, found, range_offsets=range_offsets)
    return gathered(found, [await compare_share(client, part, paced) for part in parts])


async def _compare_span(
    found: Found, readers: dict[int, _Reader], span: tuple[int, int], compacted: bool, leader: int
) -> None:
    first, end = span
    differences: list[Difference] = []
    leaders: list[Piece] | None = None
    for node, reader in readers.items():  # the leader comes first
        try:
            pieces = await (_survivors(reader, end) if compacted else reader.pieces_until(end))
        except _DamagedError as damaged:
            differences.append(Difference(node, first, end - 1, damaged.offset, "damaged: its checksum is wrong"))
            reader.go_to(end, begins=False)
            continue
        if compacted:
            pieces = [piece for piece in pieces if piece.last < end]
        if node == leader:
            leaders = pieces
        elif leaders is not None and digest_of(pieces) != digest_of(leaders):
            difference = compare_pieces(node, (first, end - 1), pieces, leaders)
            if difference is not None:
                differences.append(difference)
    # Added only now: a range interrupted by retention is compared again.
    found.digests.append(b"" if leaders is None else digest_of(leaders))
    found.differences += differences


async def _survivors(reader: _Reader, end: int) -> list[Piece]:
    survivors = Survivors()

    def take(first: int, last: int, batch: memoryview) -> None:
        from penstock.records.header import parse_header

        if first < end and not parse_header(batch).is_control:
            survivors.take(batch)

    await reader.batches_until(end, take)
    return survivors.pieces()
