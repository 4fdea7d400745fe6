"""Checks compacted topics: compaction keeps the last committed record of each key, and a deleted key stays deleted.

A reader that reads a partition from its start to its end has the last record of every key. It may miss a tombstone only
if it takes longer than delete.retention.ms; the history does not contain such slow reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.checks.history import FinalView, History, Outcome, Write
from penstock.sim.plan.plan import Plan

Keys = Mapping[tuple[TopicPartition, bytes], list[Write]]


def _by_key(history: History) -> Keys:
    found: dict[tuple[TopicPartition, bytes], list[Write]] = defaultdict(list)
    for write in history.writes:
        if write.key is not None:
            found[write.partition, write.key].append(write)
    return found


def _in_force_before(write: Write, time: float) -> bool:
    """Returns True if the write was acknowledged before `time`. For a transactional write, the commit of its
    transaction must also be acknowledged before `time`."""
    if write.outcome is not Outcome.DONE or write.offset < 0 or write.ended >= time:
        return False
    transaction = write.transaction
    if transaction is None:
        return True
    return transaction.outcome is Outcome.DONE and transaction.committed and transaction.ended < time


def maybe_in_force(write: Write) -> bool:
    """Returns True if the write may have taken effect. Returns False only if the write was certainly refused or its
    transaction certainly aborted."""
    transaction = write.transaction
    aborted = transaction is not None and transaction.outcome is Outcome.DONE and not transaction.committed
    return write.outcome is not Outcome.REFUSED and not aborted


def deleted_keys(history: History) -> dict[tuple[TopicPartition, bytes], float]:
    """Returns the offset of each key's last tombstone; infinity if the offset of a tombstone is unknown."""
    found: dict[tuple[TopicPartition, bytes], float] = {}
    for write in history.writes:
        if write.tombstone and write.key is not None and maybe_in_force(write):
            place = (write.partition, write.key)
            offset = write.offset if write.offset >= 0 else float("inf")
            found[place] = max(offset, found.get(place, -1))
    return found


def _last(writes: list[Write], time: float, below: float) -> Write | None:
    """Returns the newest write below the offset `below` that was acknowledged before `time`. For a transactional write,
    its commit must be acknowledged before `time` too."""
    return max(
        (write for write in writes if _in_force_before(write, time) and write.offset < below),
        key=lambda write: write.offset,
        default=None,
    )


def _may_supersede(writes: list[Write], last: Write, end: float, ended: float) -> bool:
    """Returns True if compaction may have removed `last` because of a newer write of the same key.

    `ended` is the time at which a reader of the table ended, `end` is the offset at which it stopped. A newer write
    counts if it began before `ended` and the reader may have missed it: its offset is unknown or not below `end`, or
    compaction may have removed it as a tombstone.
    """
    return any(
        write is not last
        and write.began < ended
        and maybe_in_force(write)
        and (write.offset < 0 or write.offset >= end or _may_have_deleted(write, last))
        for write in writes
    )


def _may_have_deleted(write: Write, last: Write) -> bool:
    """Returns True if `write` is a tombstone after `last`, in a transaction with an unknown result.

    The tombstone may have deleted the key, and compaction may have removed the tombstone since.
    """
    transaction = write.transaction
    unknown = transaction is not None and transaction.outcome is not Outcome.DONE
    return unknown and write.tombstone and write.offset > last.offset


def tables_are_complete(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each key for which a reader of the whole table missed the last record, or saw a deleted value."""
    writes = _by_key(history)
    for each in history.passes:
        if not _judged(plan, history, each.partition, each.ended):
            continue
        for (partition, key), own in writes.items():
            if partition == each.partition:
                found = each.table.get(key)
                offset = -1 if found is None else found[0]
                what = _missed(own, each.began, each.ended, each.end, offset)
                if what:
                    yield f"{each.reader} read {partition[0]}-{partition[1]} to {each.end}: {what}"


def the_last_table_is_complete(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields the same violations as `tables_are_complete`, for the table that the final reader has read."""
    latest: dict[tuple[TopicPartition, bytes], int] = {}
    for partition, records in view.committed.items():
        for offset, stored in records.items():
            if stored.key is not None:
                latest[partition, stored.key] = max(offset, latest.get((partition, stored.key), -1))
    for (partition, key), own in _by_key(history).items():
        if partition in view.committed and _judged(plan, history, partition, float("inf")):
            what = _missed(own, float("inf"), float("inf"), float("inf"), latest.get((partition, key), -1))
            if what:
                yield f"{partition[0]}-{partition[1]}: {what}"


def _judged(plan: Plan, history: History, partition: TopicPartition, until: float) -> bool:
    compacted = any(topic.compacted and topic.name == partition[0] for topic in plan.topics)
    if not compacted or partition in history.damaged or history.deleted_below(partition):
        return False
    # Transactions may be lost with the coordinator's log.
    return not history.power_lost_within(0.0, until) or plan.fsync_everywhere


def _missed(writes: list[Write], began: float, ended: float, end: float, offset: int) -> str:
    last = _last(writes, began, end)
    if last is None or offset >= last.offset or _may_supersede(writes, last, end, ended):
        return ""
    shown = f"{last.key!r} was {'deleted' if last.tombstone else 'written'} at offset {last.offset}"
    if offset >= 0 and last.tombstone:
        return f"{shown}, but its last record is at {offset}"
    if last.tombstone:
        return ""
    return f"{shown}, but {'it has no record' if offset < 0 else f'its last record is at {offset}'}"


TABLE_RULES = (
    ("tables are complete", tables_are_complete),
    ("tables are complete at the end", the_last_table_is_complete),
)
