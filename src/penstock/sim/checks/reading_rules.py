"""Checks the order of events that clients see: commit, then acknowledgement, then read."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.checks.history import FinalView, History, Outcome, Read, Write
from penstock.sim.plan.plan import Plan


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _shown(value: bytes) -> str:
    return value[:40].rpartition(b":")[0].decode(errors="replace")


def _when(time: float) -> str:
    return "never" if time == float("inf") else f"at {time:.3f} s"


def acknowledgements_follow_commits(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each record with acks=all that was acknowledged before the high watermark had passed it."""
    for write in history.writes:
        if write.outcome is not Outcome.DONE or write.acks != -1 or write.offset < 0:
            continue
        committed = history.commit_time(write.partition, write.offset)
        if committed > write.ended and write.partition not in history.damaged:
            told = f"{_shown(write.value)} was acknowledged at {_name(write.partition)} offset {write.offset}"
            yield f"{told} at {write.ended:.3f} s and committed {_when(committed)}"


def readers_see_committed_records(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each record that a reader got before the high watermark had passed the record."""
    for read in history.reads:
        committed = history.commit_time(read.partition, read.offset)
        if committed > read.ended and read.partition not in history.damaged:
            where = f"{_name(read.partition)} offset {read.offset}"
            yield f"{read.reader} read {where} at {read.ended:.3f} s; it was committed {_when(committed)}"


def open_transactions_are_hidden(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each record that a read_committed reader got while the record's transaction was certainly open."""
    written = {
        (write.partition, write.offset, write.value): write.transaction
        for write in history.writes
        if write.transaction is not None and write.outcome is Outcome.DONE
    }
    for read in history.reads:
        transaction = written.get((read.partition, read.offset, read.value)) if read.committed_only else None
        if transaction is not None and read.ended < transaction.decided and read.partition not in history.damaged:
            where = f"{_name(read.partition)} offset {read.offset}"
            yield f"{read.reader} read {where} of {transaction.name}, which was open, at {read.ended:.3f} s"


def readers_go_forward(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each case in which a reader went back, or skipped an acknowledged record, without a seek."""
    acknowledged = _acknowledged(plan, history)
    for partition, reads in _passes(plan, history):
        writes = acknowledged[partition, reads[0].committed_only]
        offsets = [write.offset for write in writes]
        for before, after in pairwise(reads):
            if _excused(plan, history, before, after):
                continue
            where = f"{before.reader} read {_name(partition)} offset {before.offset} at {before.ended:.3f} s"
            if after.offset <= before.offset:
                yield f"{where}, and then offset {after.offset}"
            slot = bisect_right(offsets, before.offset)
            if slot < len(offsets) and offsets[slot] < after.offset:
                skipped = writes[slot]
                told = f"offset {skipped.offset} was acknowledged at {skipped.ended:.3f} s"
                if skipped.offset >= history.deleted_below(partition):
                    yield f"{where} and then offset {after.offset}, but {told}"


def _passes(plan: Plan, history: History) -> Iterator[tuple[TopicPartition, list[Read]]]:
    """Yields the records that each reader got between two seeks, in the order of delivery."""
    remade = {change.topic for change in history.topics if not change.partitions}
    shrinking = {topic.name for topic in plan.topics if topic.shrinks}
    passes: dict[tuple[str, TopicPartition, float, bool], list[Read]] = defaultdict(list)
    for read in history.reads:
        if read.partition[0] not in remade and read.partition[0] not in shrinking:
            passes[read.reader, read.partition, read.began, read.committed_only].append(read)
    for (_, partition, _, _), reads in passes.items():
        if partition not in history.damaged:
            yield partition, reads


def _acknowledged(plan: Plan, history: History) -> dict[tuple[TopicPartition, bool], list[Write]]:
    """Returns a dict of the acknowledged records that readers must get, in the order of their offsets.

    A key of the dict is (partition, True) for read_committed readers, and (partition, False) for other readers.
    """
    found: dict[tuple[TopicPartition, bool], list[Write]] = defaultdict(list)
    for write in history.writes:
        if write.outcome is not Outcome.DONE or write.acks != -1 or write.offset < 0:
            continue
        found[write.partition, False].append(write)
        transaction = write.transaction
        if transaction is None or (transaction.outcome is Outcome.DONE and transaction.committed):
            found[write.partition, True].append(write)
    for writes in found.values():
        writes.sort(key=lambda write: write.offset)
    return found


def _excused(plan: Plan, history: History, before: Read, after: Read) -> bool:
    """Returns True if a power loss between two reads may have erased records or the outcome of a transaction."""
    if not history.power_lost_within(before.began, after.ended):
        return False
    return not (plan.fsync_everywhere if before.committed_only else plan.fsync(before.partition[0]))


READING_RULES = (
    ("acknowledgements follow commits", acknowledgements_follow_commits),
    ("readers see committed records", readers_see_committed_records),
    ("open transactions are hidden", open_transactions_are_hidden),
    ("readers go forward", readers_go_forward),
)
