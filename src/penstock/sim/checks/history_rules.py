"""Checks the guarantees of `docs/guarantees.md` against a history.

A killed process loses no acknowledged record. A machine that loses power may lose unsynced records at the end of a log:
all records from some offset on. It loses no record whose acknowledgement waited for fsync. Any other loss is a
violation, unless a client requested the deletion or a fault damaged the files. In a cluster, records with acks=all
survive if fewer than min.insync.replicas machines lose power at a time. `History.power_losses` of a cluster contains
only the power losses beyond this limit. With a single node, it contains all power losses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain, pairwise

from penstock.protocol.vocabulary import TRANSACTION_STATE, TopicPartition
from penstock.sim.checks.config_rules import CONFIG_RULES
from penstock.sim.checks.expiry_rules import (
    EXPIRY_RULES,
    commit_may_have_expired,
    expired_below,
    producer_may_have_expired,
)
from penstock.sim.checks.group_rules import GROUP_RULES
from penstock.sim.checks.history import FinalView, History, OffsetCommit, Outcome, Write, copy_of, is_copy
from penstock.sim.checks.reading_rules import READING_RULES
from penstock.sim.checks.reassignment_rules import REASSIGNMENT_RULES
from penstock.sim.checks.recreation_rules import RECREATION_RULES, set_aside
from penstock.sim.checks.share_rules import SHARE_RULES
from penstock.sim.checks.story import Violation
from penstock.sim.checks.table_rules import TABLE_RULES, deleted_keys
from penstock.sim.checks.unclean_rules import forgive_unclean_elections
from penstock.sim.plan.plan import Plan

#: Violations of one rule that are listed; the others are counted.
SHOWN = 5

#: A node sends a request to the controller again only if the answer takes long or the connection breaks.
RETRIED_AFTER_S = 1.0


def judge(plan: Plan, history: History, view: FinalView) -> list[Violation]:
    violations = [Violation("readable", problem) for problem in view.problems]
    set_aside(plan, history)
    forgive_unclean_elections(history)
    view.deleted_keys = deleted_keys(history)
    history.expired_below = expired_below(plan, view)
    for rule, check in chain(RULES, READING_RULES, *WORKLOAD_RULES):
        found = list(check(plan, history, view))
        violations += [Violation(rule, what) for what in found[:SHOWN]]
        if len(found) > SHOWN:
            violations.append(Violation(rule, f"and {len(found) - SHOWN} more"))
    return violations


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _shown(value: bytes) -> str:
    return value[:40].rpartition(b":")[0].decode(errors="replace")


def _compacted(plan: Plan, partition: TopicPartition) -> bool:
    return any(topic.compacted for topic in plan.topics if topic.name == partition[0])


def _first_loss_after(history: History, time: float) -> float:
    return min((loss for loss in history.power_losses if loss >= time), default=float("inf"))


def _deleted_below(history: History, partition: TopicPartition) -> int:
    return history.deleted_below(partition)


def _acknowledged(plan: Plan, history: History, view: FinalView) -> Iterator[Write]:
    for write in history.writes:
        judged = write.partition in view.records and write.partition not in history.damaged
        promised = write.outcome is Outcome.DONE and _promised(plan, history, write)
        if promised and not _may_be_compacted(plan, write) and judged and not _epoch_used_twice(plan, history, write):
            yield write


def _promised(plan: Plan, history: History, write: Write) -> bool:
    """Returns True if the acknowledgement promises that the record is not lost.

    An acknowledgement with acks=1 promises this in two cases only: the partition has one replica, or its leader did not
    change after the record was sent.
    """
    if plan.promises(write.acks):
        return True
    return write.acks == 1 and write.began >= history.one_leader_since.get(write.partition, float("inf"))


def _may_be_compacted(plan: Plan, write: Write) -> bool:
    """Returns True for a transactional record of a compacted topic. Only the rule `transactions_are_whole` checks such
    records."""
    return write.transaction is not None and _compacted(plan, write.partition)


def _epoch_used_twice(plan: Plan, history: History, write: Write) -> bool:
    """Returns True if a power loss may have erased the coordinator's record of this producer's last epoch.

    The coordinator then assigns that epoch a second time, and the partition wrongly rejects new batches as duplicates.
    """
    if write.transaction is None or plan.fsync_everywhere:
        return False
    return any(loss < write.ended for loss in history.power_losses)


def _in_place(write: Write, view: FinalView) -> bool:
    stored = view.records[write.partition].get(write.offset)
    return stored is not None and stored.value == write.value


def _survives(write: Write, view: FinalView) -> bool:
    if _superseded(write, view):
        return True
    stored = view.records[write.partition]
    if write.offset < 0:  # the answer to a duplicate whose offset the broker no longer knew
        return any(each.value == write.value for each in stored.values())
    return _in_place(write, view)


def _superseded(write: Write, view: FinalView) -> bool:
    """Returns True if compaction may remove the record of `write`: it is a tombstone, or a later committed record has
    the same key."""
    if write.key is None:
        return False
    if write.tombstone or view.deleted_keys.get((write.partition, write.key), -1) > write.offset:
        return True
    stored = view.committed.get(write.partition, view.records[write.partition])
    return any(offset > write.offset and each.key == write.key for offset, each in stored.items())


def nothing_acknowledged_is_lost(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    for write in _acknowledged(plan, history, view):
        if write.offset >= 0 and write.offset < _deleted_below(history, write.partition):
            continue
        if _survives(write, view):
            continue
        if history.lost_with_power(write.partition, write.offset, write.began):
            continue
        told = f"{_shown(write.value)} was acknowledged at {_name(write.partition)} offset {write.offset}"
        there = view.records[write.partition].get(write.offset)
        now = f"{_shown(there.value)} is there" if there else "nothing is there"
        promise = ", with fsync" if plan.fsync(write.partition[0]) else ""
        yield f"{told} at {write.ended:.3f} s{promise}, but {now}"


def losses_are_at_the_end(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each lost record that comes before a record which is still stored. A power loss may erase only the end of
    a log: all records from some offset on."""
    by_partition: dict[TopicPartition, list[Write]] = defaultdict(list)
    for write in _acknowledged(plan, history, view):
        copied = is_copy(write.value)  # a retry may write the same value at the same offset
        if write.offset >= _deleted_below(history, write.partition) and not copied:
            by_partition[write.partition].append(write)
    for partition, writes in by_partition.items():
        lost = [write for write in writes if not _survives(write, view)]
        kept = [write for write in writes if _in_place(write, view)]
        for gone in lost:
            loss = _first_loss_after(history, gone.began)
            later = [each for each in kept if each.offset > gone.offset and each.ended < loss]
            if later:
                yield f"{_name(partition)} lost offset {gone.offset} and kept {later[0].offset}, which is as old"


def offsets_keep_their_values(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    seen: dict[tuple[TopicPartition, int], list[tuple[float, float, bytes, str]]] = defaultdict(list)
    for write in history.writes:
        promised = write.outcome is Outcome.DONE and write.offset >= 0 and _promised(plan, history, write)
        if promised and not _epoch_used_twice(plan, history, write):
            seen[write.partition, write.offset].append((write.began, write.ended, write.value, write.writer))
    for read in history.reads:
        seen[read.partition, read.offset].append((read.began, read.ended, read.value, read.reader))
    end = float("inf")
    for partition, records in view.records.items():
        for offset, stored in records.items():
            seen[partition, offset].append((end, end, stored.value, "the final reader"))
    for (partition, offset), told in seen.items():
        if partition in history.damaged:  # above the recovery point, damage looks like a torn tail and is truncated
            continue
        told.sort(key=lambda each: each[1])
        for (began, _, before, who), (also_began, ended, after, other) in pairwise(told):
            # An answer may be as old as its request: it may be sent before a power loss and arrive afterwards. Where
            # acknowledgements promise fsync, readers see only synced records, and no power loss is an excuse.
            lost = history.power_lost_within(min(began, also_began), ended) and not plan.fsync(partition[0])
            if before != after and not lost:
                yield (
                    f"{_name(partition)} offset {offset} is {_shown(before)} for {who} and {_shown(after)} for {other}"
                )


def idempotence(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each record of an idempotent producer that is stored twice or in the wrong order."""
    # A copier writes the same value in every attempt: `copies_are_exact` judges copies.
    own = (write for write in history.writes if write.idempotent and not is_copy(write.value))
    writes = {write.value: write for write in own}
    for partition, records in view.records.items():
        if partition in history.damaged:
            continue
        found: dict[bytes, int] = {}
        last: dict[str, tuple[int, int]] = {}
        for offset in sorted(records):
            write = writes.get(records[offset].value)
            if write is None or (write.value in found and producer_may_have_expired(plan, history, write)):
                continue
            if write.value in found:
                yield f"{_shown(write.value)} is in {_name(partition)} twice: {found[write.value]} and {offset}"
            found[write.value] = offset
            if write.outcome is Outcome.DONE:
                number, before = last.get(write.writer, (0, -1))
                if write.number < number:
                    yield f"{_name(partition)} has {write.writer}'s {number} at {before} and {write.number} at {offset}"
                last[write.writer] = (write.number, offset)


def transactions_are_whole(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    visible = {
        (partition, stored.value) for partition, records in view.committed.items() for stored in records.values()
    }
    read = {(each.partition, each.value): each for each in history.reads if each.committed_only}
    for transaction in history.transactions:
        judged = [
            write
            for write in transaction.writes
            if write.partition in view.committed
            and write.partition not in history.damaged
            and (write.offset < 0 or write.offset >= _deleted_below(history, write.partition))
        ]
        # Several attempts of a copier have the same value: the offset tells which attempt is stored.
        there = [
            write
            for write in judged
            if (write.partition, write.value) in visible and (not is_copy(write.value) or _shown_in_place(write, view))
        ]
        known = [write for write in judged if write.outcome is Outcome.DONE]
        missing = [write for write in known if write not in there and not _superseded(write, view)]
        if _excused(plan, history, transaction.began, [write.partition for write in judged], TRANSACTION_STATE):
            continue
        aborted = transaction.outcome is Outcome.DONE and not transaction.committed
        if aborted:
            for write in judged:
                copied = is_copy(write.value)
                if write in there or (not copied and (write.partition, write.value) in read):
                    yield f"{transaction.name} was aborted: {_name(write.partition)} shows {_shown(write.value)}"
            continue
        if transaction.outcome is Outcome.DONE and missing:
            yield f"{transaction.name} was committed and {_shown(missing[0].value)} is not visible"
        elif there and missing:
            yield f"{transaction.name} is torn: {_shown(there[0].value)} is visible, {_shown(missing[0].value)} is not"


def _shown_in_place(write: Write, view: FinalView) -> bool:
    stored = view.committed[write.partition].get(write.offset)
    return stored is not None and stored.value == write.value


def _excused(plan: Plan, history: History, since: float, partitions: list[TopicPartition], internal: str) -> bool:
    """Returns True if a power loss after the time `since` may have erased records that a rule expects.

    These are records of the given partitions and of the internal topic `internal`. Records of topics with fsync before
    the acknowledgement can't be erased.
    """
    if not history.power_lost_within(since, float("inf")):
        return False
    return not (plan.fsync_everywhere and all(plan.fsync(topic) for topic, _ in [*partitions, (internal, 0)]))


def what_was_read_committed_stays(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    for read in history.reads:
        if not read.committed_only or read.partition not in view.committed or read.partition in history.damaged:
            continue
        if read.offset < _deleted_below(history, read.partition):
            continue
        stored = view.committed[read.partition].get(read.offset)
        lost = history.power_lost_within(read.began, float("inf")) and not plan.fsync_everywhere
        if (stored is None or stored.value != read.value) and not lost and not _compacted(plan, read.partition):
            where = f"{_name(read.partition)} offset {read.offset}"
            yield f"{read.reader} read {_shown(read.value)} as committed at {where}; it is gone"


def committed_offsets_never_go_back(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    commits: dict[tuple[str, TopicPartition], list[OffsetCommit]] = defaultdict(list)
    for commit in history.commits:
        commits[commit.group, commit.partition].append(commit)
    told = [(each.group, each.partition, each.offset, each.began) for each in history.committed]
    told += [(group, each, offset, float("inf")) for (group, each), offset in view.group_offsets.items()]
    for group, partition, offset, began in told:
        if partition in history.damaged:  # its reader may have started over
            continue
        if offset < 0 and (group, partition) in history.outlived:
            continue  # a coordinator with old metadata took the commit for the deleted topic of that name
        attempts = commits[group, partition]
        done = [each for each in attempts if each.outcome is Outcome.DONE and each.ended < began]
        if not done:
            continue
        # Of sequential commits the last counts; of concurrent ones, any. A commit without an answer may have been
        # applied at any time. A reader may commit a lower offset itself after a power loss took its records.
        last_began = max(each.began for each in done)
        newest = [each for each in done if each.ended >= last_began]
        others = [each for each in attempts if each.outcome is not Outcome.DONE or each.ended >= began]
        if offset in {each.offset for each in newest + others}:
            continue
        if history.power_lost_within(min(each.began for each in newest), began) and not plan.fsync_everywhere:
            continue
        last = newest[-1]
        if offset < 0 and commit_may_have_expired(plan, history, last, min(began, view.ended)):
            continue
        yield f"{group} committed {last.offset} of {_name(partition)} at {last.ended:.3f} s and is told {offset}"


def topics_made_again_start_anew(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    for (group, partition), offsets in history.outlived.items():
        offset = view.group_offsets.get((group, partition), -1)
        if partition[0] in view.topics and offset in offsets:
            yield f"{group} is told {offset} of {_name(partition)}, committed for a deleted topic"


def copies_are_exact(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each record below a copier's committed offset that was not copied exactly once."""
    copiers = [each for each in plan.actors if each.kind == "copier"]
    if len(copiers) != 1 or (history.power_losses and not plan.fsync_everywhere):
        return
    target: TopicPartition = copiers[0].params["target"]
    if target not in view.committed or target in history.damaged or history.deletions:
        return
    counts = Counter(stored.value for stored in view.committed[target].values())
    there: Counter[bytes] = Counter()  # a retry of a plain producer may have written a record twice
    for partition in copiers[0].params["partitions"]:
        for stored in view.committed.get(partition, {}).values():
            there[copy_of(partition, stored.value)] += 1
    for value, count in counts.items():
        if count > there[value] and not history.damaged:
            yield f"{_shown(value)} was copied {count} times, and is there {there[value]} times"
    for partition in copiers[0].params["partitions"]:
        done = view.group_offsets.get((copiers[0].params["group"], partition), -1)
        if partition in history.damaged:
            continue
        for offset, stored in view.committed.get(partition, {}).items():
            if offset < done and not counts[copy_of(partition, stored.value)]:
                yield f"{_name(partition)} offset {offset} counts as copied ({done}), but has no copy"


def topics_are_as_told(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    last: dict[str, int | None] = {topic.name: topic.partitions for topic in plan.topics}
    for change in history.topics:
        # After a request without a clear answer the state of the topic is unknown. It is unknown, too, after a deletion
        # that took long: a node may have sent it to the controller twice, and the copy that was delayed by the network
        # deletes the next topic of this name.
        certain = change.outcome is Outcome.DONE and last.get(change.topic, 0) is not None
        repeated = not change.partitions and RETRIED_AFTER_S < change.ended - change.began < float("inf")
        last[change.topic] = change.partitions if certain and not repeated else None
    for topic, partitions in last.items():
        if partitions is not None and view.topics.get(topic, 0) != partitions:
            yield f"{topic} should have {partitions} partitions and has {view.topics.get(topic, 0)}"


WORKLOAD_RULES = (
    TABLE_RULES,
    EXPIRY_RULES,
    RECREATION_RULES,
    CONFIG_RULES,
    SHARE_RULES,
    GROUP_RULES,
    REASSIGNMENT_RULES,
)
RULES = (
    ("nothing acknowledged is lost", nothing_acknowledged_is_lost),
    ("losses are at the end", losses_are_at_the_end),
    ("offsets keep their values", offsets_keep_their_values),
    ("idempotence", idempotence),
    ("transactions are whole", transactions_are_whole),
    ("committed reads stay", what_was_read_committed_stays),
    ("committed offsets never go back", committed_offsets_never_go_back),
    ("topics made again start anew", topics_made_again_start_anew),
    ("copies are exact", copies_are_exact),
    ("topics are as told", topics_are_as_told),
)
