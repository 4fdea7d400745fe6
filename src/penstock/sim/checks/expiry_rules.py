"""Checks expiry: records, producer state and committed offsets expire, each after its own time, and not earlier.

Each machine measures ages with its own clock. The rules use the largest age that any machine can have measured. It is
the sum of three times: the virtual time since the record or state was written; later jumps of all clocks together; and
all jumps of single clocks in the run. Jumps of single clocks count even if they came before the record, because a
machine whose clock is ahead overestimates every age.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.protocol.vocabulary import TopicPartition
from penstock.sim.checks.history import FinalView, History, OffsetCommit, Outcome, Write
from penstock.sim.plan.plan import Plan

#: Clocks run at most one percent too fast.
FASTEST = 1.01
#: Longer than a producer tries to deliver a record.
RETRIES_S = 30.0
#: Longer than the interval of a check for expired records, with a restart of the node.
CHECK_MS = 20_000


def age_ms(history: History, since: float, until: float) -> float:
    """Returns the largest age that any machine may have measured at `until` for a record or state written at
    `since`."""
    shared = sum(jump.ms for jump in history.clock_jumps if jump.everywhere and since <= jump.time <= until)
    ahead = sum(abs(jump.ms) for jump in history.clock_jumps if not jump.everywhere)
    return (until - since) * 1_000 * FASTEST + shared + ahead


def producer_may_have_expired(plan: Plan, history: History, write: Write) -> bool:
    """Returns True if the broker may have dropped the producer's state between two attempts to send this write."""
    expiration = plan.settings.get("producer.id.expiration.ms")
    until = write.ended if write.outcome is Outcome.DONE else write.began + RETRIES_S
    return expiration is not None and age_ms(history, write.began, until) >= int(expiration)


def commit_may_have_expired(plan: Plan, history: History, commit: OffsetCommit, until: float) -> bool:
    minutes = plan.settings.get("offsets.retention.minutes")
    return minutes is not None and age_ms(history, commit.began, until) >= int(minutes) * 60_000


def expired_below(plan: Plan, view: FinalView) -> dict[TopicPartition, int]:
    """Returns the final log start offset of each partition with retention. Records below it may have expired."""
    retained = {topic.name for topic in plan.topics if topic.retained}
    return {partition: start for partition, start in view.log_start.items() if partition[0] in retained}


def _gone_at(history: History, view: FinalView, write: Write) -> float | None:
    """Returns the first time at which a client saw a log start offset above the record; None if no client saw one."""
    times = [
        each.time for each in history.log_starts if each.partition == write.partition and each.offset > write.offset
    ]
    if view.log_start.get(write.partition, 0) > write.offset:
        times.append(view.read_at[write.partition])
    return min(times, default=None)


def only_old_records_expire(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each record that retention has deleted too early."""
    limits = {topic.name: topic.retention_ms for topic in plan.topics if topic.retained}
    for write in history.writes:
        limit = limits.get(write.partition[0])
        if limit is None or write.outcome is not Outcome.DONE or write.offset < 0:
            continue
        gone = _gone_at(history, view, write)
        requested = max((each.offset for each in history.deletions if each.partition == write.partition), default=0)
        if gone is not None and write.offset >= requested and age_ms(history, write.began, gone) < limit:
            where = f"{write.partition[0]}-{write.partition[1]} offset {write.offset}"
            yield f"{where} was written at {write.began:.3f} s and deleted, but records are kept for {limit} ms"


def old_records_are_deleted(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each partition that still has a record which expired long ago by the clocks of all machines."""
    if any(not jump.everywhere for jump in history.clock_jumps):
        return
    changed = {change.topic for change in history.configs}
    limits = {topic.name: topic.retention_ms for topic in plan.topics if topic.retained and topic.name not in changed}
    for write in history.writes:
        limit = limits.get(write.partition[0])
        stored = view.records.get(write.partition, {}).get(write.offset)
        if limit is None or stored is None or stored.value != write.value or write.partition in history.damaged:
            continue
        age = age_ms(history, write.ended, view.read_at[write.partition]) / FASTEST**2
        if write.outcome is Outcome.DONE and age > limit + CHECK_MS:
            where = f"{write.partition[0]}-{write.partition[1]} offset {write.offset}"
            yield f"{where} is {age / 1000:.0f} s old and still there, but records are kept for {limit} ms"


def answers_agree(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    yield from history.contradictions


EXPIRY_RULES = (
    ("only old records expire", only_old_records_expire),
    ("old records are deleted", old_records_are_deleted),
    ("answers agree", answers_agree),
)
