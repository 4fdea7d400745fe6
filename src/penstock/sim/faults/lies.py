"""Makes replicas serve damaged or wrong data: damaged and forged batches on disk, and nodes that answer falsely.

A forged batch has a correct checksum, so only a comparison with other replicas detects it. False answers are made by
wrapping the node's functions for the time of a run; the node's own code stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any

from penstock.broker.handlers import api_23_offset_for_leader_epoch as api_23
from penstock.broker.replicas.followed_partition import FollowedPartition
from penstock.protocol.messages.api_23_offset_for_leader_epoch import EpochEndOffset
from penstock.records.batches import crc32c, split_batches
from penstock.records.header import CRC_POSITION, CRC_START
from penstock.sim.engine.machine import Machine

_CRC = Struct(">I")


def segment_files(machine: Machine, topic: str, index: int) -> list[str]:
    """Returns the paths of the data files of a replica, the oldest first."""
    return sorted(
        path
        for directory in machine.data_directories
        for path, inode in machine.volume.files(f"{directory}/{topic}-{index}")
        if path.endswith(".log") and inode.data
    )


def rot(machine: Machine, path: str, at: int) -> None:
    """Flips one bit of a file."""
    machine.volume.inode(path).data[at] ^= 1


def forge(machine: Machine, path: str, number: int = 0) -> int | None:
    """Changes the last byte of the `number`-th batch of a file, and corrects the checksum of the batch.

    Returns the offset of the batch; None if the file has no such batch.
    """
    data = machine.volume.inode(path).data
    batches = split_batches(bytes(data), allow_partial=True)
    if number >= len(batches):
        return None
    start = sum(len(batch) for _, batch in batches[:number])
    header, batch = batches[number]
    changed = bytearray(batch)
    changed[-2] ^= 1  # the last byte of the last record's value; its number of headers follows
    _CRC.pack_into(changed, CRC_POSITION, crc32c(bytes(changed[CRC_START:])))
    data[start : start + len(changed)] = changed
    return header.base_offset


class FalseAnswers:
    """Holds the nodes that answer falsely, and the partitions that their false answers concern."""

    def __init__(self) -> None:
        self.leads: set[tuple[int, str, int]] = set()
        """(node, topic, partition): the node claims to lead the partition in whatever epoch it is asked for."""
        self.retreats: set[tuple[int, str, int]] = set()
        """(node, topic, partition): the node's next fetch names the start of its log instead of the end."""
        self._users = 0
        self._restore: Callable[[], None] = lambda: None

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replaces functions of all nodes by functions that can answer falsely. Restores the original functions when
        the last `with` block has ended."""
        if not self._users:
            self._wrap()
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._restore()

    def _wrap(self) -> None:
        answer, position = api_23._answer, FollowedPartition.position

        def false_answer(broker: Any, topic: str, spec: Any) -> EpochEndOffset:
            if (broker.node_id, topic, spec.partition) in self.leads:
                end = broker.partitions.get(topic, spec.partition).log.log_end_offset
                return EpochEndOffset(partition=spec.partition, leader_epoch=spec.leader_epoch, end_offset=end)
            return answer(broker, topic, spec)

        def false_position(entry: FollowedPartition, max_bytes: int) -> Any:
            asked = position(entry, max_bytes)
            key = (entry.partition.node_id, entry.partition.topic, entry.partition.index)
            start = entry.partition.log.log_start_offset
            if key in self.retreats and asked.fetch_offset > start + 1:
                self.retreats.discard(key)
                asked.fetch_offset = start
            return asked

        def restore() -> None:
            api_23._answer, patched.position = answer, position

        patched: Any = FollowedPartition
        api_23._answer, patched.position = false_answer, false_position
        self._restore = restore
