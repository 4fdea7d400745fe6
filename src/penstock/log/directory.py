"""Manages one log directory: its lock, its identity, its checkpoints, and whether it is online."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.disk.api import make_lasting
from penstock.log.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    INCARNATION_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    CheckpointError,
    Incarnation,
    parse_clean_shutdown,
    parse_incarnation,
    parse_offsets,
    parse_properties,
    render_clean_shutdown,
    render_incarnation,
    render_offsets,
    render_properties,
)
from penstock.metadata.image import RESERVED_DIRECTORIES, is_reserved
from penstock.protocol.uuid import uuid_from_str, uuid_to_str
from penstock.protocol.vocabulary import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from penstock.disk.api import Disk, Lock

logger = logging.getLogger(__name__)

#: `topic-partition`; a topic may itself have dashes in it.
_LOG_NAME = re.compile(r"(.+)-([0-9]+)")
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
#: File name → the offsets that the file holds.
Checkpoints = dict[str, dict[TopicPartition, int]]


class DirectoryError(Exception):
    """Raised if a log directory belongs to another node or is not usable. The message names the directory and a
    remedy."""


def parse_log_name(name: str) -> TopicPartition | None:
    matched = _LOG_NAME.fullmatch(name)
    return (matched[1], int(matched[2])) if matched else None


@dataclass(slots=True, eq=False)
class LogDir:
    disk: Disk
    path: str
    directory_id: bytes = bytes(16)
    #: Why it is offline; None while it works.
    failure: OSError | None = None
    #: Whether the last stop was clean.
    clean: bool = False
    #: The last incarnation, if everything that it wrote is still here: it stopped cleanly, or only its process died.
    last_incarnation: Incarnation = field(default_factory=Incarnation)
    _lock: Lock | None = None
    #: Counts checkpoints begun, so that a save in the background notices a newer one.
    _writes: int = 0
    _saving: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Contents of the checkpoint files that are being written in the background.
    _on_their_way: Checkpoints = field(default_factory=dict)
    #: Contents of each checkpoint file, to write it only when it changes.
    _written: Checkpoints = field(default_factory=dict)

    @property
    def offline(self) -> bool:
        return self.failure is not None

    def space(self) -> tuple[int, int]:
        """Returns (total, usable) bytes of the directory's volume; -1 if unknown."""
        return self.disk.free_bytes(self.path)

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def acquire(self) -> None:
        make_lasting(self.disk, self.path)
        self._lock = self.disk.lock(self.path)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def identify(self, node_id: int, cluster_id: str, random: Random) -> None:
        """Reads meta.properties, or writes it if it is missing. Raises DirectoryError if it names another node."""
        path = self.file(META_PROPERTIES_FILE)
        known = parse_properties(self.disk.read_bytes(path, 1 << 16)) if self.disk.exists(path) else {}
        if known:
            for name, ours in (("node.id", str(node_id)), ("cluster.id", cluster_id)):
                theirs = known.get(name) or (known.get("broker.id") if name == "node.id" else None)
                if theirs is not None and theirs != ours:
                    raise DirectoryError(
                        f"{path} has {name}={theirs}, but this node has {ours}: give this node its own directory, "
                        "or start the node that the directory belongs to."
                    )
        try:
            self.directory_id = uuid_from_str(known["directory.id"])
            if is_reserved(self.directory_id):
                raise DirectoryError(
                    f"{path} has directory.id={known['directory.id']}, but the first {RESERVED_DIRECTORIES} ids are "
                    "reserved: format the directory again with an id from `penstock storage random-uuid`."
                )
        except (KeyError, ValueError):
            self.directory_id = random.randbytes(16)
            while is_reserved(self.directory_id):
                self.directory_id = random.randbytes(16)
            known.update(
                {
                    "version": "1",
                    "node.id": str(node_id),
                    "cluster.id": cluster_id,
                    "directory.id": uuid_to_str(self.directory_id),
                }
            )
            known.pop("broker.id", None)
            self.disk.write_atomic(path, render_properties(known))

    def take_clean_mark(self) -> None:
        """Reads the clean-shutdown marker, and sets `clean` and `last_incarnation` from it.

        Deletes the marker, so that a crash from now on counts as an unclean stop. Without a marker, reads
        `last_incarnation` from the incarnation file of the previous process.
        """
        path = self.file(CLEAN_SHUTDOWN_FILE)
        self.clean = self.disk.exists(path)
        if self.clean:
            self.last_incarnation = Incarnation(parse_clean_shutdown(self.disk.read_bytes(path, 1 << 12)))
            self.disk.remove(path)
            self.disk.sync_dir(self.path)
        elif self.disk.exists(self.file(INCARNATION_FILE)):
            data = self.disk.read_bytes(self.file(INCARNATION_FILE), 1 << 12)
            self.last_incarnation = parse_incarnation(data, self.disk.boot_id())

    def note_incarnation(self, incarnation: Incarnation) -> None:
        """Writes the incarnation of this process and the boot id of the machine to the incarnation file.

        If the machine has booted again, its boot id differs and the next process ignores the file, because unsynced
        writes may be lost. So the file itself needs no sync.
        """
        self.disk.write_atomic(
            self.file(INCARNATION_FILE), render_incarnation(incarnation, self.disk.boot_id()), sync=False
        )

    def forget_incarnation(self) -> None:
        """Removes the incarnation file, because some unsynced writes of this process may be lost
        after a disk failure.
        """
        self.disk.remove(self.file(INCARNATION_FILE))

    def leave_clean_mark(self, broker_epoch: int) -> None:
        self.disk.write_atomic(self.file(CLEAN_SHUTDOWN_FILE), render_clean_shutdown(broker_epoch))

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        path = self.file(name)
        if not self.disk.exists(path):
            return {}
        try:
            offsets = parse_offsets(self.disk.read_bytes(path))
        except CheckpointError as error:
            logger.warning("checkpoint %s is damaged and ignored: %s", path, error)
            return {}
        self._written[name] = offsets
        return dict(offsets)

    def write_checkpoints(self, files: Checkpoints) -> None:
        """Writes the checkpoint files whose contents have changed."""
        self._writes += 1
        for name, offsets in files.items():
            if self._written.get(name) != offsets:
                self.disk.write_atomic(self.file(name), render_offsets(offsets))
                self._written[name] = offsets

    async def save_checkpoints(self, current: Callable[[], Checkpoints]) -> None:
        """Writes the changed checkpoint files without blocking the event loop, one save at a time.

        Stops if a log is truncated during the save. The truncation writes the files itself, and the offsets of this
        save may be above the new end of the log.
        """
        async with self._saving:
            self._writes += 1
            number = self._writes
            self._on_their_way = current()
            try:
                for name, offsets in self._on_their_way.items():
                    if self._writes != number:
                        return
                    if self._written.get(name) != offsets:
                        await self._save(name, offsets, number)
            finally:
                self._on_their_way = {}

    async def _save(self, name: str, offsets: dict[TopicPartition, int], number: int) -> None:
        temporary = self.file(f"{name}.{number}.tmp")
        await self.disk.run(self._write_synced, temporary, offsets)
        if self._writes != number:
            self.disk.remove(temporary)
            return
        self.disk.rename(temporary, self.file(name))
        self._written[name] = offsets
        await self.disk.run(self.disk.sync_dir, self.path)

    def remembers(self, key: TopicPartition) -> bool:
        """True if a checkpoint file of this directory has a line for the partition `key`, or will have one after the
        write that is running."""
        return any(key in offsets for files in (self._written, self._on_their_way) for offsets in files.values())

    def _write_synced(self, path: str, offsets: dict[TopicPartition, int]) -> None:
        self.disk.write_new(path, render_offsets(offsets))
        self.disk.sync_file(path)

    def log_names(self) -> list[str]:
        """Returns the names of the subdirectories that hold a log."""
        names = [name for name in self.disk.listdir(self.path) if parse_log_name(name)]
        return [name for name in names if self.disk.is_dir(self.file(name))]

    def has_records(self, name: str) -> bool:
        """True if a segment in the subdirectory `name` is not empty."""
        path = self.file(name)
        return any(self.disk.size(f"{path}/{each}") for each in self.disk.listdir(path) if each.endswith(".log"))

    def remove_leftovers(self) -> None:
        """Removes directories of deleted logs and half-written checkpoint files that a crash left behind."""
        for name in self.disk.listdir(self.path):
            if name.endswith(DELETE_SUFFIX):
                self.disk.remove_tree(self.file(name))
            elif name.endswith(".tmp"):
                self.disk.remove(self.file(name))


__all__ = [
    "CLEANER_FILE",
    "DELETE_SUFFIX",
    "FUTURE_SUFFIX",
    "HIGH_WATERMARK_FILE",
    "LOG_START_FILE",
    "RECOVERY_POINT_FILE",
    "STRAY_SUFFIX",
    "DirectoryError",
    "LogDir",
    "parse_log_name",
]
