"""Defines the format of an archive of segments, which holds a topic's log byte for byte.

An archive is a directory or an object store's address. For a topic named orders it has:

    orders.json                  the topic's id and number of partitions
    orders-0/<first>-<end>-<digest>.log     batches as they were in the log; <end> is the last offset plus one
    orders-0/<first>-<end>-<digest>.json    the .log file's size and digest, and its batches of aborted transactions

A piece is a `.log` file with its `.json` file. It is valid once its `.json` file exists, which is written last.
Both files are named after their content, so a job that is killed and started again, or that runs twice at the same
time, writes the same files again. If two pieces overlap, readers use each offset once. Pieces are never changed or
removed.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from penstock.pipelines.stores import Place, Store
from penstock.records.header import BatchHeader
from penstock.spark.errors import SourceError

_STEM = re.compile(r"(\d{20})-(\d{20})-[0-9a-f]{16}")
_COPY_BYTES = 8 * 1024 * 1024
#: A piece is kept in memory up to this size, and above it in a temporary file.
_SPOOL_BYTES = 32 * 1024 * 1024

Batch = tuple[BatchHeader, memoryview]


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    first: int
    end: int
    stem: str
    """The common part of the names of a piece's `.log` and `.json` files, without the partition's directory and the
    suffix."""


@dataclass(frozen=True, slots=True)
class Part:
    """Names a piece (a pair of `.log` and `.json` files), and the first offset to read from it.

    The offsets before `start` are read from earlier pieces.
    """

    piece: Piece
    start: int


@dataclass(frozen=True, slots=True)
class Written:
    partition: int
    first: int
    end: int
    bytes: int
    records: int


# --- reading --------------------------------------------------------------------------------------------------------


def directory_of(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def pieces_named(names: Iterable[str]) -> list[Piece]:
    """Returns the complete pieces of a partition.

    A piece is complete if its `.json` file exists, because that file is written last.
    """
    stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
    found = [(matched, stem) for stem in stems if (matched := _STEM.fullmatch(stem))]
    return sorted(Piece(int(matched[1]), int(matched[2]), stem) for matched, stem in found)


def parts_of(pieces: Iterable[Piece]) -> list[Part]:
    """Returns the parts to read, in order. Where pieces overlap, each offset is read from only one piece."""
    found: list[Part] = []
    at = -1
    for piece in sorted(pieces, key=lambda each: (each.first, -each.end)):
        if piece.end > at:
            found.append(Part(piece, max(at, piece.first)))
            at = piece.end
    return found


def gaps_in(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Returns the ranges of offsets (start, exclusive end) that are missing between consecutive parts."""
    edges = [(before.piece.end, after.start) for before, after in pairwise(parts)]
    return [(end, start) for end, start in edges if end < start]


@dataclass(frozen=True, slots=True)
class Catalog:
    """Lists the parts of a topic's partitions that an archive holds."""

    topic: str
    topic_id: str
    parts: dict[int, list[Part]]

    def end(self, partition: int) -> int | None:
        """Returns the offset after the partition's last archived offset; None if no offset is archived."""
        parts = self.parts.get(partition)
        return parts[-1].piece.end if parts else None


def catalog(store: Store, topic: str) -> Catalog | None:
    """Returns the parts of a topic that an archive holds; None if the topic is not in the archive. Raises
    SourceError."""
    if not store.has(f"{topic}.json"):
        return None
    described = _json(store, f"{topic}.json")
    try:
        count, topic_id = int(described["partitions"]), str(described["topic_id"])
    except (KeyError, TypeError, ValueError):
        raise SourceError(f"{store.uri}/{topic}.json is damaged: it has no topic id.") from None
    listed = {index: store.names(directory_of(topic, index)) for index in range(count)}
    return Catalog(topic, topic_id, {index: parts_of(pieces_named(names)) for index, names in listed.items()})


def describe(store: Store, topic: str, topic_id: str, partitions: int) -> None:
    text = json.dumps({"topic": topic, "topic_id": topic_id, "partitions": partitions}, indent=2)
    with store.writing(f"{topic}.json") as file:
        file.write(text.encode())


def manifest(store: Store, topic: str, partition: int, piece: Piece) -> dict[str, Any]:
    name = f"{directory_of(topic, partition)}/{piece.stem}.json"
    found = _json(store, name)
    if not {"bytes", "sha256", "hidden"} <= found.keys():
        raise SourceError(f"{store.uri}/{name} is damaged: it does not describe its .log file.")
    return found


def _json(store: Store, name: str) -> dict[str, Any]:
    try:
        found = json.loads(store.read(name))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SourceError(f"{store.uri}/{name} is damaged: it is not JSON.")
    return found


# --- writing --------------------------------------------------------------------------------------------------------


class Spool:
    """Collects the batches of a piece, and writes them to the archive as a `.log` and a `.json` file.

    The names of the files contain the end offset, so they are known only when the piece is complete.
    """

    def __init__(self, topic: str, partition: int, first: int) -> None:
        self._topic = topic
        self._partition = partition
        self._file = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 (closed by `close`)
        self._digest = hashlib.sha256()
        self._hidden: list[int] = []
        self._records = 0
        self._newest_ms = -1
        self.first = first
        self.bytes = 0
        self.oldest_ms: int | None = None
        """The timestamp of the first batch in the piece."""

    def take(self, batches: Iterable[Batch], hidden: Sequence[int]) -> None:
        left_out = set(hidden)
        for header, batch in batches:
            self._file.write(batch)
            self._digest.update(batch)
            self.bytes += len(batch)
            self._records += 0 if header.is_control or header.base_offset in left_out else header.records_count
            self._newest_ms = max(self._newest_ms, header.max_timestamp)
            if self.oldest_ms is None:
                self.oldest_ms = header.max_timestamp
        self._hidden += hidden

    def publish(self, place: Place, end: int) -> Written:
        digest = self._digest.hexdigest()
        stem = f"{directory_of(self._topic, self._partition)}/{self.first:020d}-{end:020d}-{digest[:16]}"
        store = place.open()
        self._file.seek(0)
        with store.writing(f"{stem}.log") as file:
            for block in self._blocks():
                file.write(block)
        described = {
            "topic": self._topic,
            "partition": self._partition,
            "first_offset": self.first,
            "end_offset": end,
            "bytes": self.bytes,
            "sha256": digest,
            "records": self._records,
            "newest_timestamp": self._newest_ms,
            "hidden": self._hidden,
        }
        with store.writing(f"{stem}.json") as file:
            file.write(json.dumps(described, indent=2).encode())
        return Written(self._partition, self.first, end, self.bytes, self._records)

    def _blocks(self) -> Iterator[bytes]:
        while block := self._file.read(_COPY_BYTES):
            yield block

    def close(self) -> None:
        self._file.close()
