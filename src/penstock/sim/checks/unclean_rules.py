"""Decides which records an unclean election may lose: the first committed record that the new leader lacks, and all
later records.

The comparison of replicas finds this first record when the new leader begins to lead. The rules ignore a write or read
of a record that may be lost, if the write or read began before the election. All rules hold for the remaining records.
"""

from __future__ import annotations

from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.checks.history import History, Outcome


def forgive_unclean_elections(history: History) -> None:
    """Prepares the history for the rules: if an unclean election may have lost a record, the outcome of its write
    becomes unknown, and its reads are removed."""
    if not history.unclean:
        return

    def taken(partition: TopicPartition, offset: int, began: float) -> bool:
        return any(
            each.partition == partition and each.first <= offset and began < each.time for each in history.unclean
        )

    for write in history.writes:
        if write.outcome is Outcome.DONE and taken(write.partition, write.offset, write.began):
            write.outcome, write.offset, write.ended = Outcome.UNKNOWN, -1, float("inf")
    history.reads = [read for read in history.reads if not taken(read.partition, read.offset, read.began)]
