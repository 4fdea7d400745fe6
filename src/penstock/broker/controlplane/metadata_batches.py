"""The batches that a decision's records are written in, and the first ones of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.metadata.framing import record_class
from penstock.metadata.image import METADATA_VERSION, MetadataImage
from penstock.protocol.vocabulary import ResourceType

MAX_BATCH_BYTES = 8 * 1024 * 1024
ELR_VERSION = "eligible.leader.replicas.version"


def metadata_version(image: MetadataImage, records: Sequence[Any]) -> int:
    """The version to write records in: the cluster's, or the one that these records are about to set."""
    for record in records:
        if type(record).__name__ == "FeatureLevelRecord" and record.name == METADATA_VERSION:
            return int(record.feature_level)
    return image.features.get(METADATA_VERSION, 0)


def split(values: Sequence[bytes]) -> list[list[bytes]]:
    groups: list[list[bytes]] = [[]]
    size = 0
    for value in values:
        size += len(value) + 32  # its share of lengths, deltas and the header
        if size > MAX_BATCH_BYTES and groups[-1]:
            groups.append([])
            size = len(value) + 32
        groups[-1].append(value)
    return groups


def first_records(bootstrap: Sequence[Any], min_insync_replicas: int) -> list[Any]:
    """What an empty log starts with: the features it was formatted with, in a transaction of their own."""
    records = list(bootstrap)
    levels = {record.name: record.feature_level for record in records if type(record).__name__ == "FeatureLevelRecord"}
    if levels.get(ELR_VERSION, 0) >= 1:
        # With eligible leader replicas the bound must be the cluster's, not each broker's own.
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
