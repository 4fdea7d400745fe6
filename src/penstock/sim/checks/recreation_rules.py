"""Checks topics that are deleted and created again under the same name while clients use them.

A client can't tell whether an acknowledged record went to the new topic or to the deleted topic. So the records and
commits of these topics are removed from the history before the other rules check it. On a single node, records written
since the last creation stay in the history. In a cluster they are removed too, because a node with old metadata may
still accept records for the deleted topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.protocol.errors import KafkaError
from penstock.records.batches import split_batches
from penstock.records.record import read_records
from penstock.sim.checks.history import FinalView, History, Outcome, Write
from penstock.sim.checks.replica_rules import read_copy
from penstock.sim.plan.plan import Plan

if TYPE_CHECKING:
    from penstock.log.log import Log
    from penstock.sim.engine.machine import Machine


def set_aside(plan: Plan, history: History) -> None:
    """Removes writes, reads and commits of recreated topics from the history, so that the other rules ignore them."""
    names = {topic.name for topic in plan.topics if topic.recreated}
    if not names:
        return
    since = {name: _created_last(plan, history, name) for name in names}

    def stays(write: Write) -> bool:
        return write.partition[0] not in names or write.began > since[write.partition[0]]

    history.set_aside = [write for write in history.writes if not stays(write)]
    history.writes = [write for write in history.writes if stays(write)]
    for transaction in history.transactions:
        transaction.writes = [write for write in transaction.writes if stays(write)]
    history.reads = [read for read in history.reads if read.partition[0] not in names]
    history.commits = [commit for commit in history.commits if commit.partition[0] not in names]
    history.committed = [answer for answer in history.committed if answer.partition[0] not in names]


def _created_last(plan: Plan, history: History, name: str) -> float:
    """Returns the time since which the topic certainly exists; infinity if this time is unknown.

    In a cluster, the time is unknown after any change of the topic.
    """
    changes = [change for change in history.topics if change.topic == name]
    if not changes:
        return 0.0
    last = changes[-1]
    certain = plan.layout.single_node and last.partitions > 0 and last.outcome is Outcome.DONE
    return last.ended if certain else float("inf")


def deleted_records_stay_deleted(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each stored record that was written to an earlier, deleted topic of the same name."""
    deleted = {
        change.topic: change.began
        for change in history.topics
        if change.partitions == 0 and change.outcome is Outcome.DONE
    }
    for write in history.set_aside:
        began = deleted.get(write.partition[0], 0.0)
        if write.outcome is Outcome.DONE and write.ended < began:
            stored = view.records.get(write.partition, {}).get(write.offset)
            if stored is not None and stored.value == write.value:
                where = f"{write.partition[0]}-{write.partition[1]} offset {write.offset}"
                yield f"{where} was written at {write.ended:.3f} s and is there; the topic was deleted at {began:.3f} s"


RECREATION_RULES = (("deleted records stay deleted", deleted_records_stay_deleted),)


# A rule for logs.


def compacted_parts_are_compact(machines: Sequence[Machine], damaged: set[tuple[str, int]]) -> Iterator[str]:
    """Yields each log in which two committed records below the cleaned offset have the same key."""
    for machine in machines:
        broker = machine.broker
        if broker is None or not machine.holds_partitions:
            continue
        for partition in broker.partitions:
            if (partition.topic, partition.index) in damaged or not partition.is_open:
                continue
            log = partition.log
            if log.config.compact and not log.offline and not partition.topic.startswith("__"):
                yield from _doubled(f"{partition.topic}-{partition.index} on {machine.name}", log)


def _doubled(where: str, log: Log) -> Iterator[str]:
    seen: dict[bytes, int] = {}
    clean = log.cleaned_offset
    if not log.log_start_offset <= clean <= log.segments.active.base_offset:
        return  # compaction will start over
    try:
        batches = read_copy("", log).batches
    except KafkaError:
        return
    for base, batch in sorted(batches.items()):
        header = split_batches(batch)[0][0]
        if base >= clean or header.is_control or header.is_transactional:
            continue
        for record in read_records(memoryview(batch)):
            if record.key is None or record.offset >= clean:
                continue
            if record.key in seen:
                both = f"{seen[record.key]} and {record.offset}"
                yield f"{where} is compacted to {clean}, but has {record.key!r} at {both}"
                return
            seen[record.key] = record.offset
