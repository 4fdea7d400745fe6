"""Subtle planted bugs: each is found by one named rule, often long before, or without, any harm that a client sees."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.broker.replicas.partition import Partition
from penstock.log.log import Log
from penstock.records.batches import split_batches
from penstock.replication.leader import Leading


class Subtle(NamedTuple):
    about: str
    rule: str
    """The rule that finds the bug."""
    profile: str
    nodes: int
    replacements: tuple[tuple[Any, str, Any], ...]


def _one_early(old: Any) -> Any:
    def when_committed(self: Partition, offset: int, *args: Any) -> Any:
        return old(self, offset if self.topic.startswith("__") else offset - 1, *args)

    return when_committed


def _majority(old: Any) -> Any:
    def high_watermark(self: Leading, own_end: int, *args: Any) -> int:
        ends = sorted([own_end, *(self.followers[each].log_end for each in self._largest if each in self.followers)])
        return max(ends[(len(ends) - 1) // 2], int(old(self, own_end, *args)))

    return high_watermark


def _newest_only(old: Any) -> Any:
    def append_as_follower(self: Log, records: Any, leader_epoch: int) -> Any:
        if self.config.compact:
            found = [view for header, view in split_batches(records, allow_partial=True) if not header.is_control]
            if len(found) > 1:
                records = b"".join(found[1:])
        return old(self, records, leader_epoch)

    return append_as_follower


SUBTLE_BUGS: dict[str, Subtle] = {
    "ack-one-offset-early": Subtle(
        "acks=all is answered when the high watermark is one offset below the batch's end",
        "acknowledgements follow commits",
        "calm",
        3,
        ((Partition, "when_committed", _one_early),),
    ),
    "watermark-of-the-majority": Subtle(
        "the high watermark is what a majority of the in-sync replicas has, not all of them",
        "in sync by content",
        "calm",
        3,
        ((Leading, "high_watermark", _majority),),
    ),
    "follower-leaves-out-a-batch": Subtle(
        "a follower of a compacted topic leaves out the first of several fetched batches",
        "same contents",
        "crash",
        3,
        ((Log, "append_as_follower", _newest_only),),
    ),
}
