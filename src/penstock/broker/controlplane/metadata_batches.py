"""Splits a decision's records into batches, and builds the records that an empty metadata log starts with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.metadata.framing import record_class
from penstock.metadata.image import METADATA_VERSION, MetadataImage
from penstock.protocol.vocabulary import ResourceType

MAX_BATCH_BYTES = 8 * 1024 * 1024
ELR_VERSION = "eligible.leader.replicas.version"


def metadata_version(image: MetadataImage, records: Sequence[Any]) -> int:
    """Returns the metadata.version to use for encoding the records.

    If the records themselves set a metadata.version, that version is used; otherwise the image's version.
    """
    for record in records:
        if type(record).__name__ == "FeatureLevelRecord" and record.name == METADATA_VERSION:
            return int(record.feature_level)
    return image.features.get(METADATA_VERSION, 0)


def split(values: Sequence[bytes]) -> list[list[bytes]]:
    """Groups encoded records into batches of at most MAX_BATCH_BYTES; a larger record gets a batch of its own."""
    groups: list[list[bytes]] = [[]]
    size = 0
    for value in values:
        size += len(value) + 32  # its lengths, its deltas and its share of the batch header
        if size > MAX_BATCH_BYTES and groups[-1]:
            groups.append([])
            size = len(value) + 32
        groups[-1].append(value)
    return groups


def first_records(bootstrap: Sequence[Any], min_insync_replicas: int) -> list[Any]:
    """Returns the first records of a new metadata log: the bootstrap records, in one metadata transaction."""
    records = list(bootstrap)
    levels = {record.name: record.feature_level for record in records if type(record).__name__ == "FeatureLevelRecord"}
    if levels.get(ELR_VERSION, 0) >= 1:
        # With eligible leader replicas min.insync.replicas must be a cluster config, not each broker's own.
        config = record_class(4)
        records.append(
            config(
                resource_type=ResourceType.BROKER,
                resource_name="",
                name="min.insync.replicas",
                value=str(min_insync_replicas),
            )
        )
    return [record_class(23)(name="Bootstrap records"), *records, record_class(24)()]
