"""Reads and writes Kafka's small text files: offset checkpoints, meta.properties, partition.metadata and others.

A checkpoint begins with two lines: its version, and the number of lines that follow. The file is torn if fewer lines
follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.protocol.uuid import ZERO_UUID, uuid_from_str, uuid_to_str
from penstock.protocol.vocabulary import TopicPartition

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
INCARNATION_FILE = ".penstock_life"
META_PROPERTIES_FILE = "meta.properties"
PARTITION_METADATA_FILE = "partition.metadata"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"


class CheckpointError(Exception):
    """Raised if a checkpoint file is torn or is not a checkpoint."""


def render_lines(lines: Iterable[str]) -> bytes:
    body = list(lines)
    return "\n".join(["0", str(len(body)), *body, ""]).encode()


def parse_lines(data: bytes) -> list[str]:
    if not data:
        return []
    try:
        lines = data.decode().split("\n")
        version, count = int(lines[0]), int(lines[1])
    except (UnicodeDecodeError, ValueError, IndexError):
        raise CheckpointError("the file does not start with a version and a count of lines") from None
    if version != 0:
        raise CheckpointError(f"the checkpoint has the unknown version {version}")
    body = lines[2 : 2 + count]
    # The last line counts only if it ends in a newline: a number that was cut short still reads as a number.
    if count < 0 or len(body) != count or lines[2 + count :] != [""]:
        raise CheckpointError(
            f"the file does not have exactly {count} complete lines after its first two lines: it is torn or was edited"
        )
    return body


def render_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    return render_lines(f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items())


def parse_offsets(data: bytes) -> dict[TopicPartition, int]:
    offsets: dict[TopicPartition, int] = {}
    for line in parse_lines(data):
        try:
            topic, partition, offset = line.split(" ")
            offsets[topic, int(partition)] = int(offset)
        except ValueError:
            raise CheckpointError(f"the line {line!r} does not consist of a topic, a partition and an offset") from None
    return offsets


def render_properties(values: Mapping[str, str]) -> bytes:
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()


def parse_properties(data: bytes) -> dict[str, str]:
    values: dict[str, str] = {}
    for line in data.decode(errors="replace").splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith(("#", "!")) and "=" in stripped:
            key, _, value = stripped.partition("=")
            values[key.strip()] = value.strip().replace("\\:", ":").replace("\\=", "=")
    return values


def render_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {uuid_to_str(topic_id)}".encode()


def parse_partition_metadata(data: bytes) -> bytes | None:
    """Parses partition.metadata. Returns the topic id; None if the file is torn."""
    values: dict[str, str] = {}
    for line in data.decode(errors="replace").splitlines():
        key, _, value = line.partition(": ")
        values[key] = value
    try:
        return uuid_from_str(values["topic_id"]) if values.get("version") == "0" else None
    except (KeyError, ValueError):
        return None


def render_clean_shutdown(broker_epoch: int) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


class Incarnation(NamedTuple):
    """Describes one run of the broker process.

    Each broker process writes its incarnation to every log directory, and reads the incarnation of the previous
    process.
    """

    broker_epoch: int = -1
    #: The incarnation id of a registration without an answer: the controller may have registered it.
    asking: bytes = ZERO_UUID


def render_incarnation(incarnation: Incarnation, boot_id: str) -> bytes:
    values = {"version": 0, "brokerEpoch": incarnation.broker_epoch, "boot": boot_id}
    if incarnation.asking != ZERO_UUID:
        values["asking"] = uuid_to_str(incarnation.asking)
    return json.dumps(values, separators=(",", ":")).encode()


def parse_incarnation(data: bytes, boot_id: str) -> Incarnation:
    """Returns the incarnation in `data`.

    Returns an empty `Incarnation` if `data` is damaged, or if the machine was booted after `data` was written.
    """
    try:
        found = json.loads(data)
        if not boot_id or found["boot"] != boot_id:
            return Incarnation()
        return Incarnation(
            int(found["brokerEpoch"]), uuid_from_str(found["asking"]) if "asking" in found else ZERO_UUID
        )
    except (ValueError, KeyError, TypeError):
        return Incarnation()


def parse_clean_shutdown(data: bytes) -> int:
    """Parses the clean-shutdown marker. Returns the broker epoch at the clean stop; -1 if the file has no epoch."""
    try:
        return int(json.loads(data)["brokerEpoch"])
    except (ValueError, KeyError, TypeError):
        return -1
