"""Names the kind of each message on a connection and of each step on a disk, from its bytes or its path.

A point is a place of a run at which a fault can be injected (`plan.points`); its kind is part of its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from penstock.protocol.apis import APIS
from penstock.sim.engine.connection import Endpoint

SIZE_BYTES = 4
#: Bytes of a frame that name its kind: size, API key, version and correlation id; size and correlation id.
REQUEST_HEAD = 12
ANSWER_HEAD = 8
FETCH = 1
#: Topic id of the metadata log.
QUORUM_TOPIC = bytes(15) + b"\x01"
METADATA_LOG = "__cluster_metadata"

NAMES = {key: api.name for key, api in APIS.items()}


class Frame(NamedTuple):
    """Describes a request or response frame whose header has just been written completely."""

    name: str
    """Name of the frame's API."""
    start: int
    """Index of the frame's first byte in the bytes written; 0 if the frame began in an earlier write."""


class _Written:
    """Holds the bytes of the unfinished frame in one direction of a connection, and the requests without an answer."""

    __slots__ = ("asked", "head", "rest")

    def __init__(self) -> None:
        self.head = b""
        #: Bytes of the frame that are not written yet.
        self.rest = 0
        #: Correlation id of each request without an answer → name of its API.
        self.asked: dict[bytes, str] = {}


class MessageKinds:
    """Finds request and response frames in the bytes that the ends of connections write."""

    def __init__(self) -> None:
        self._written: dict[Endpoint, _Written] = {}

    def frames(self, end: Endpoint, data: bytes) -> Iterator[Frame]:
        """Yields the frames whose headers these bytes complete. Frames of unknown APIs are left out."""
        written = self._written.get(end)
        if written is None:
            written = self._written[end] = _Written()
        length = REQUEST_HEAD if end.outgoing else ANSWER_HEAD
        at = 0
        while at < len(data):
            if written.rest:
                step = min(written.rest, len(data) - at)
                written.rest -= step
                at += step
                continue
            start = at if not written.head else 0
            taken = data[at : at + length - len(written.head)]
            head = written.head + taken
            at += len(taken)
            if len(head) < length:
                written.head = head
                return
            written.head = b""
            written.rest = max(0, int.from_bytes(head[:SIZE_BYTES], "big") + SIZE_BYTES - length)
            name = self._asks(written, head, data, at) if end.outgoing else self._answers(end, head)
            if name:
                yield Frame(name, start)

    def _asks(self, written: _Written, head: bytes, data: bytes, at: int) -> str:
        key = int.from_bytes(head[4:6], "big")
        name = NAMES.get(key, "")
        if key == FETCH:
            quorum = data.find(QUORUM_TOPIC, at, at + written.rest) >= 0
            name = "Fetch(quorum)" if quorum else "Fetch(follower)"
        written.asked[head[8:12]] = name
        return name

    def _answers(self, end: Endpoint, head: bytes) -> str:
        asked = self._written.get(end.peer)
        return asked.asked.pop(head[4:8], "") if asked is not None else ""


_NUMBERED = re.compile(r"^\d{20}(?:-\d{10})?(\..*)$")
_PARTITION = re.compile(r"^(.+)-(\d+)(?:\.[0-9a-f]{32})?(-delete|-future|-stray)?$")
#: Temporary files of checkpoints have a number of their own.
_COUNTED = re.compile(r"(?<=checkpoint)\.\d+$")
_FILES = {
    ".log": "segment",
    ".index": "index",
    ".timeindex": "time index",
    ".txnindex": "transaction index",
    ".snapshot": "producer snapshot",
    ".checkpoint": "snapshot",
}
_SUFFIXES = (".deleted", ".cleaned", ".swap", ".tmp", ".part")


class FileKind(NamedTuple):
    """Holds the kind of a file, and the partition that the file belongs to."""

    name: str
    topic: str = ""
    partition: int = -1


@lru_cache(maxsize=4096)
def file_kind(path: str) -> FileKind:
    parent, _, name = path.rpartition("/")
    found = _PARTITION.match(name)
    if found is not None and "." not in parent.rpartition("/")[2] and not _NUMBERED.match(name):
        return FileKind(f"{_log(found[1])}directory{found[3] or ''}", found[1], int(found[2]))
    suffix = next((each for each in _SUFFIXES if name.endswith(each)), "")
    bare = _COUNTED.sub("", name.removesuffix(suffix))
    numbered = _NUMBERED.match(bare)
    called = _FILES.get(numbered[1], numbered[1]) if numbered is not None else bare or "root"
    called += suffix.replace(".", " ")
    owner = _PARTITION.match(parent.rpartition("/")[2])
    if owner is None:
        return FileKind(called)
    return FileKind(_log(owner[1]) + called, owner[1], int(owner[2]))


def _log(topic: str) -> str:
    if topic == METADATA_LOG:
        return "metadata "
    return "internal " if topic.startswith("__") else ""
