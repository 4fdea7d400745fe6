"""Opens the metadata log, replays it into an image, and reads and writes its snapshots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.log.checkpoints import PARTITION_METADATA_FILE, render_partition_metadata
from penstock.log.environment import LogEnvironment
from penstock.log.loading import LogPlace, open_log
from penstock.metadata.apply import advance, apply, apply_batches
from penstock.metadata.checkpoint import (
    CHECKPOINT_SUFFIX,
    CheckpointError,
    checkpoint_name,
    parse_checkpoint_name,
    read_checkpoint,
    write_checkpoint,
)
from penstock.metadata.configs.topic import LogConfig
from penstock.metadata.features import MAX_METADATA_VERSION, default_features
from penstock.metadata.framing import decode_record, record_class
from penstock.metadata.image import EMPTY_IMAGE, KRAFT_VERSION, METADATA_VERSION, MetadataImage
from penstock.metadata.snapshot import records_of
from penstock.protocol.uuid import METADATA_TOPIC_ID
from penstock.protocol.vocabulary import METADATA_TOPIC
from penstock.records.batches import iter_batches
from penstock.records.control import ControlType, parse_control
from penstock.records.record import read_records

if TYPE_CHECKING:
    from random import Random

    from penstock.clock import Clock
    from penstock.disk.api import Disk
    from penstock.log.log import Log
    from penstock.log.segment import Segment
    from penstock.metadata.voters import Voter

logger = logging.getLogger(__name__)

READ_BYTES = 8 * 1024 * 1024
MAX_BATCH_BYTES = 16 * 1024 * 1024
DIRECTORY = f"{METADATA_TOPIC}-0"
PART_SUFFIX = ".part"


class StorageError(Exception):
    """Raised if the node can't start from the files on its disk. The message has cause and remedy in one line."""


class Loaded(NamedTuple):
    image: MetadataImage
    replayed_bytes: int


def open_metadata_log(
    disk: Disk,
    log_dir: str,
    clock: Clock,
    random: Random,
    *,
    segment_bytes: int = 1 << 30,
    segment_ms: int = 604_800_000,
) -> Log:
    """Opens the log in `<log_dir>/__cluster_metadata-0`, and creates it if it doesn't exist.

    Checks every batch, because all metadata depends on this log. The log is short: snapshots replace its beginning.
    """
    path = f"{log_dir}/{DIRECTORY}"
    disk.mkdir(path)
    marker = f"{path}/{PARTITION_METADATA_FILE}"
    if not disk.exists(marker):
        disk.write_atomic(marker, render_partition_metadata(METADATA_TOPIC_ID))
    config = LogConfig.from_map(
        {
            "segment.bytes": str(segment_bytes),
            "segment.ms": str(segment_ms),
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "max.message.bytes": str(MAX_BATCH_BYTES),
        }
    )
    environment = LogEnvironment(disk=disk, clock=clock, random=random, discard=_remove)
    return open_log(environment, LogPlace(log_dir, path, METADATA_TOPIC, 0, METADATA_TOPIC_ID), config, clean=False)


def _remove(log: Log, segments: list[Segment]) -> None:
    """Deletes the files of the given metadata log segments without delay: no reader has them open."""
    for segment in segments:
        segment.remove_files()


class SnapshotStore:
    """Reads and writes the `<end offset>-<epoch>.checkpoint` files in the log's directory."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.last_bytes = 0  # size of the newest snapshot

    def names(self) -> list[tuple[int, int, str]]:
        """Returns (end offset, epoch, file name) of every snapshot, oldest first."""
        found = []
        for name in self._disk.listdir(self._path):
            parsed = parse_checkpoint_name(name)
            if parsed is not None:
                found.append((*parsed, name))
        return sorted(found)

    def latest(self) -> MetadataImage:
        """Returns the image of the newest undamaged snapshot; the empty image if there is no snapshot."""
        for end_offset, epoch, name in reversed(self.names()):
            data = self._disk.read_bytes(f"{self._path}/{name}")
            try:
                content = read_checkpoint(data)
            except CheckpointError as error:
                logger.error("snapshot %s/%s is damaged; the previous snapshot is used: %s", self._path, name, error)
                continue
            self.last_bytes = len(data)
            image = advance(EMPTY_IMAGE, offset=-1, epoch=epoch, kraft_version=content.kraft_version)
            return apply(image, content.records, offset=end_offset - 1, epoch=epoch)
        return EMPTY_IMAGE

    async def write(self, image: MetadataImage, voters: Sequence[Voter], now_ms: int) -> str:
        parts: list[bytes] = []
        for batch in write_checkpoint(
            records_of(image),
            epoch=image.epoch,
            timestamp_ms=now_ms,
            last_contained_timestamp_ms=now_ms,
            metadata_version=image.features.get(METADATA_VERSION, 0),
            kraft_version=image.features.get(KRAFT_VERSION, 0),
            voters=voters,
        ):
            parts.append(batch)
            await asyncio.sleep(0)  # requests are served between the batches of a big image
        name = checkpoint_name(image.offset + 1, image.epoch)
        data = b"".join(parts)
        await self._disk.run(self._disk.write_atomic, f"{self._path}/{name}", data)
        self.last_bytes = len(data)
        return name

    def install(self, name: str, data: bytes) -> None:
        """Stores a snapshot that another node made."""
        self._disk.write_atomic(f"{self._path}/{name}", data)
        self.last_bytes = len(data)

    def remove_before(self, end_offset: int) -> None:
        for found, _, name in self.names():
            if found < end_offset:
                self._disk.remove(f"{self._path}/{name}")
        for name in self._disk.listdir(self._path):
            if name.endswith(CHECKPOINT_SUFFIX + PART_SUFFIX):
                self._disk.remove(f"{self._path}/{name}")


def replay(log: Log, image: MetadataImage, end_offset: int) -> Loaded:
    """Applies the batches from the image's offset up to `end_offset`.

    Returns the new image and the size of the batches. All records are applied in one call: copying the image for each
    of a hundred thousand batches would take minutes.
    """
    start = image.offset + 1
    offset, epoch, size = start, image.epoch, 0
    kraft_version: int | None = None
    batches: list[tuple[int, list[Any]]] = []
    while offset < end_offset:
        data = log.read(offset, READ_BYTES, upper_bound=end_offset).read_now()
        before = offset
        for header, batch in iter_batches(data, allow_partial=True):
            if header.next_offset <= offset:
                continue  # the image already has this batch
            if header.is_control:
                for kind, message in filter(None, map(parse_control, read_records(batch))):
                    if kind is ControlType.KRAFT_VERSION:
                        kraft_version = message.kraft_version
            else:
                batches.append((header.max_timestamp, [decode_record(each.value) for each in read_records(batch)]))
            offset, epoch = header.next_offset, header.partition_leader_epoch
            size += header.size
        if offset == before:
            break
    if offset > start:
        image = apply_batches(image, batches, offset=offset - 1, epoch=epoch)
        if kraft_version is not None:
            changes = image.changes
            image = advance(image, offset=offset - 1, epoch=epoch, kraft_version=kraft_version)
            image = replace(image, changes=changes.then(image.changes))
    return Loaded(image, size)


def read_bootstrap(disk: Disk, path: str | None) -> list[Any]:
    """Returns the records in the bootstrap file at `path`; without the file, records with the features of Kafka 4.3."""
    if path is not None and disk.exists(path):
        try:
            return read_checkpoint(disk.read_bytes(path)).records
        except CheckpointError as error:
            raise StorageError(f"{path} can't be used ({error}): format the directory again.") from error
    return bootstrap_records(default_features(MAX_METADATA_VERSION))


def bootstrap_records(features: dict[str, int]) -> list[Any]:
    """Returns a record for each finalized feature, metadata.version first. kraft.version has no feature record."""
    feature_level = record_class(12)
    names = [METADATA_VERSION, *sorted(features.keys() - {METADATA_VERSION, KRAFT_VERSION})]
    return [feature_level(name=name, feature_level=features[name]) for name in names if features.get(name)]
