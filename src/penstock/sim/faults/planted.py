"""Puts known bugs into a node on purpose (planted bugs), to show that the rules detect them.

Each planted bug replaces a function of the node inside a `with` block, in this process only; the node's code does not
know about it. The first `SEEDS` seeds of the bug's profile must find the bug. Without the bug, the same seeds must find
no violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from penstock.broker.controlplane.quorum_files import QuorumFiles
from penstock.broker.coordinators.commits import set_result
from penstock.broker.coordinators.runtime import Coordinator
from penstock.broker.replicas.partition import Partition
from penstock.check import check
from penstock.groups import shard
from penstock.groups.shard import GroupShard
from penstock.log import appending, loading
from penstock.log.cleaner import Cleaner
from penstock.log.directory import LogDir
from penstock.log.flush import Durability
from penstock.log.log import AppendInfo, Log
from penstock.log.producers import ProducerStateManager
from penstock.log.segment import Segment
from penstock.log.snapshot_files import SnapshotFiles
from penstock.protocol.uuid import ZERO_UUID
from penstock.records.compact import OffsetMap
from penstock.sim.faults.planted_cluster import CLUSTER_BUGS, NODES, unsynced
from penstock.sim.faults.planted_directories import DIRECTORY_BUGS
from penstock.sim.faults.planted_guard import GUARD_BUGS, GUARD_SECONDS
from penstock.sim.faults.planted_lies import LIES_BELIEVED, LIES_SECONDS
from penstock.sim.faults.planted_moves import MOVE_BUGS, MOVE_BUGS_FOUND_BY
from penstock.sim.faults.planted_points import POINT_BUGS, POINT_BUGS_SECONDS
from penstock.sim.faults.planted_share import SHARE_BUGS, SHARE_SECONDS
from penstock.sim.faults.planted_subtle import SUBTLE_BUGS
from penstock.sim.faults.planted_workloads import WORKLOAD_BUGS, WORKLOAD_BUGS_FOUND_BY
from penstock.transactions.shard import TransactionShard

#: A planted bug must be found within this many seeds.
SEEDS = 30

#: Bug → a seed that finds it, and the length of that run in seconds. This seed is tried first.
FOUND_BY: dict[str, tuple[int, float]] = {
    "ack-before-fsync": (8, 8),
    "watermark-before-fsync": (3, 16),
    "recovery-point-before-flush": (8, 8),
    "torn-tail-kept": (12, 8),
    "clean-mark-stays": (2, 25),
    "producer-snapshot-not-restored": (11, 25),
    "producers-forgotten": (11, 25),
    "duplicates-written": (2, 25),
    "duplicate-told-wrong-offset": (2, 25),
    "reply-before-append": (11, 25),
    "metadata-before-fsync": (3, 25),
    "aborted-not-indexed": (5, 25),
    "open-transactions-shown": (5, 25),
    "markers-not-resumed": (18, 8),
    "compaction-keeps-the-oldest": (4, 25),
    "compaction-beyond-the-stable-offset": (11, 40),
    "offsets-outlive-their-topic": (13, 25),
    "watermark-without-followers": (2, 20),
    "ack-before-watermark": (2, 20),
    "truncate-to-watermark": (2, 15),
    "divergence-not-asked": (2, 20),
    "isr-expanded-early": (2, 20),
    "isr-shrunk-at-once": (6, 20),
    "stale-isr-accepted": (10, 30),
    "dead-replica-in-sync": (25, 15),
    "unclean-leader": (6, 20),
    "min-isr-ignored": (22, 8),
    "followers-forget-producers": (3, 20),
    "vote-forgotten": (1, 20),
    "vote-not-synced": (2, 20),
    "marker-written-twice": (12, 20),
    "watermark-beyond-the-log": (3, 20),
    "metadata-not-synced": (2, 20),
    "index-not-truncated": (3, 20),
    "epoch-not-noted": (2, 20),
    "watermark-of-the-end": (3, 20),
    "ack-one-offset-early": (1, 4),
    "watermark-of-the-majority": (1, 20),
    "follower-leaves-out-a-batch": (2, 20),
    "acks-1-refused-in-silence": (18, 30),
    "large-batch-skipped": (4, 20),
    "fetch-without-end": (1, 8),
    "partition-given-before-its-release": (3, 20),
    "revocation-not-awaited": (3, 20),
    "producers-of-truncated-batches": (2, 20),
    "time-index-of-the-last-batch": (2, 20),
    "later-segments-without-directory-sync": (1, 20),
    "decision-answered-early": (1, 8),
    "uncommitted-images-kept": (2, 10),
    "configs-never-change-on-followers": (1, 8),
    "snapshot-without-configs": (1, 8),
    "eligible-although-others-commit": (3, 15),
    "reads-do-not-wait-for-commits": (1, 8),
    "load-acts-before-the-commit": (4, 8),
    "metadata-fetched-before-fsync": (1, 8),
    "unsynced-records-counted": (2, 8),
    "configs-of-leaders-only": (1, 8),
    "moved-replicas-stay": (1, 8),
    "coordinator-writes-no-tombstones": (1, 8),
    "transaction-record-lacks-a-partition": (1, 8),
    **WORKLOAD_BUGS_FOUND_BY,
    **{name: (seed, SHARE_SECONDS) for name, (_, _, _, seed) in SHARE_BUGS.items()},
    **{name: (bug.seed, POINT_BUGS_SECONDS) for name, bug in POINT_BUGS.items()},
    **MOVE_BUGS_FOUND_BY,
    **{name: found_by for name, (_, _, _, found_by) in DIRECTORY_BUGS.items()},
    **{name: (seed, LIES_SECONDS) for name, (_, _, seed) in LIES_BELIEVED.items()},
    **{name: (seed, GUARD_SECONDS) for name, (_, _, seed) in GUARD_BUGS.items()},
}

Replacements = tuple[tuple[Any, str, Callable[[Any], Any]], ...]


@dataclass(frozen=True, slots=True)
class Plant:
    about: str
    profile: str
    replacements: Replacements
    """The code to replace, each as (owner, name, function that takes the right code and returns the wrong code)."""
    seconds: float = 25.0
    nodes: int = 1
    rule: str = ""
    """The name of the rule that finds the planted bug; empty: any rule may."""
    at: str = ""
    """The fault at a point that the planted bug needs; empty: it needs none."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        before = [(owner, name, owner.__dict__[name]) for owner, name, _ in self.replacements]
        for owner, name, make in self.replacements:
            code = owner.__dict__[name]
            check(
                callable(code) or isinstance(code, property | staticmethod),
                f"only code can be replaced, and {name} is not code",
            )
            setattr(owner, name, make(owner.__dict__[name]))
        try:
            yield
        finally:
            for owner, name, old in before:
                setattr(owner, name, old)


def _no_fsync(old: Any) -> Any:
    async def sync_records(self: Durability) -> None:
        self.flushed_offset = max(self.flushed_offset, self._log.log_end_offset)

    return sync_records


def _watermark_at_once(old: Any) -> Any:
    def follow_disk(self: Partition, log: Log) -> None:
        log.update_high_watermark(log.log_end_offset)
        self.waiters.on_high_watermark(log.high_watermark, 1)

    return follow_disk


def _no_sync(old: Any) -> Any:
    async def sync(self: Durability, goal: Any) -> None:
        self.finish(goal)

    return sync


def _tail_kept(old: Any) -> Any:
    def recover_segment(segment: Segment, *args: Any) -> tuple[int, bool]:
        truncate = segment.file.__class__.truncate
        segment.file.__class__.truncate = lambda self, size: None  # type: ignore[method-assign]
        try:
            return old(segment, *args)  # type: ignore[no-any-return]
        finally:
            segment.file.__class__.truncate = truncate  # type: ignore[method-assign]

    return recover_segment


def _nothing(old: Any) -> Any:
    return lambda self, *args, **kwargs: None


def _empty_snapshot(old: Any) -> Any:
    def load_latest(
        self: SnapshotFiles,
        producers: ProducerStateManager,
        log_start: int,
        log_end: int,
        now_ms: int,
        expiration_ms: int,
    ) -> int | None:
        found: int | None = old(self, producers, log_start, log_end, now_ms, expiration_ms)
        producers.clear(log_start if found is None else found)
        return found

    return load_latest


def _nothing_rebuilt(old: Any) -> Any:
    def rebuild_producers(log: Log, *args: Any) -> dict[int, Any]:
        log.producers.clear(log.log_end_offset)
        return {}

    return rebuild_producers


def _no_duplicates_known(old: Any) -> Any:
    def admit(self: ProducerStateManager, header: Any) -> None:
        return None

    return admit


def _wrong_place(old: Any) -> Any:
    def duplicate_of(log: Log, batch: Any) -> AppendInfo:
        info: AppendInfo = old(log, batch)
        return info._replace(base_offset=log.log_end_offset)

    return duplicate_of


def _mark_stays(old: Any) -> Any:
    def take_clean_mark(self: LogDir) -> None:
        remove = self.disk.remove
        self.disk.remove = lambda path: None  # type: ignore[method-assign]
        try:
            old(self)
        finally:
            self.disk.remove = remove  # type: ignore[method-assign]

    return take_clean_mark


def _reply_first(old: Any) -> Any:
    def run(self: Coordinator[Any], decide: Any) -> Any:
        outcome = old(self, decide)
        if hasattr(outcome, "add_done_callback") and self._unappended:
            commit = self._unappended[-1]
            for token, response in commit.turn.replies:
                set_result(token, response)
            self.perform(commit.turn)
            if not outcome.done():
                outcome.set_result(commit.result)
        return outcome

    return run


def _stable_at_once(old: Any) -> Any:
    return property(lambda self: self.high_watermark)


def _oldest_kept(old: Any) -> Any:
    def superseded(self: OffsetMap, key: bytes, offset: int) -> bool:
        return len(self) > 0 and not old(self, key, offset)

    return superseded


def _cleaned_to_the_stable_offset(old: Any) -> Any:
    def first_uncleanable_offset(self: Cleaner, log: Log, now_ms: int) -> int:
        return min(log.segments.active.base_offset, log.last_stable_offset)

    return first_uncleanable_offset


def _no_topic_id(old: Any) -> Any:
    return lambda self, name: ZERO_UUID


def _append_later(old: Any) -> Any:
    def flush(self: Coordinator[Any], producer: Any = None) -> None:
        if producer is not None or not self._unappended:
            old(self, producer)
        else:
            self._loop.call_later(0.02, old, self)

    return flush


PLANTS: dict[str, Plant] = {
    "ack-before-fsync": Plant(
        "a write is acknowledged before its fsync, where fsync is promised",
        "power",
        ((Durability, "_sync_records", _no_fsync),),
    ),
    "watermark-before-fsync": Plant(
        "coordinators answer before the fsync of their records, where fsync is promised",
        "power",
        ((Partition, "follow_disk", _watermark_at_once),),
    ),
    "recovery-point-before-flush": Plant(
        "the recovery point moves without a flush",
        "power",
        ((Durability, "sync", _no_sync),),
    ),
    "torn-tail-kept": Plant(
        "recovery keeps the torn end of a segment",
        "power",
        ((loading, "_recover_segment", _tail_kept),),
    ),
    "clean-mark-stays": Plant(
        "the mark of a clean stop is not removed at the start: recovery is skipped after a crash",
        "power",
        ((LogDir, "take_clean_mark", _mark_stays),),
    ),
    "producer-snapshot-not-restored": Plant(
        "a start loads the offset of the newest producer snapshot, but not its producers",
        "crash",
        ((SnapshotFiles, "load_latest", _empty_snapshot),),
    ),
    "producers-forgotten": Plant(
        "a restart forgets all producers: a retried batch is written twice",
        "crash",
        ((loading, "rebuild_producers", _nothing_rebuilt),),
    ),
    "duplicates-written": Plant(
        "a retried batch is written twice",
        "network",
        ((ProducerStateManager, "admit", _no_duplicates_known),),
    ),
    "duplicate-told-wrong-offset": Plant(
        "the answer to a retried batch has a wrong offset",
        "network",
        ((appending, "duplicate_of", _wrong_place),),
    ),
    "reply-before-append": Plant(
        "a coordinator answers before its records are in the log",
        "crash",
        ((Coordinator, "run", _reply_first), (Coordinator, "_flush", _append_later)),
    ),
    "metadata-before-fsync": Plant(
        "metadata changes are published and answered before their fsync",
        "power",
        ((QuorumFiles, "flush", unsynced),),
    ),
    "aborted-not-indexed": Plant(
        "aborted transactions are not indexed: their records are visible",
        "calm",
        ((Segment, "append_aborted", _nothing),),
    ),
    "open-transactions-shown": Plant(
        "read_committed consumers see records of open transactions",
        "calm",
        ((Log, "last_stable_offset", _stable_at_once),),
    ),
    "markers-not-resumed": Plant(
        "a coordinator that loads does not finish decided transactions",
        "crash",
        ((TransactionShard, "loaded", _nothing),),
        seconds=60.0,  # the coordinator has to die between the decision and the last marker
    ),
    "compaction-keeps-the-oldest": Plant(
        "compaction removes the newest value of a key instead of older values",
        "calm",
        ((OffsetMap, "superseded", _oldest_kept),),
    ),
    "compaction-beyond-the-stable-offset": Plant(
        "compaction rewrites the segment with the last stable offset",
        "calm",
        ((Cleaner, "first_uncleanable_offset", _cleaned_to_the_stable_offset),),
        seconds=40.0,
    ),
    "offsets-outlive-their-topic": Plant(
        "a recreated topic has the committed offsets of the deleted topic of its name",
        "calm",
        ((shard, "forget_topics", _nothing), (GroupShard, "topic_id", _no_topic_id)),
    ),
}

PLANTS |= {
    name: Plant(about, profile, replacements, seconds=40.0, nodes=NODES)
    for name, (about, profile, replacements) in CLUSTER_BUGS.items()
}
PLANTS |= {
    name: Plant(about, profile, replacements, seconds=25.0 if nodes == 1 else 40.0, nodes=nodes)
    for name, (about, profile, replacements, nodes) in WORKLOAD_BUGS.items()
}
PLANTS |= {
    name: Plant(about, "share", replacements, seconds=SHARE_SECONDS, nodes=nodes)
    for name, (about, replacements, nodes, _) in SHARE_BUGS.items()
}
PLANTS |= {
    name: Plant(about, profile, replacements, seconds=40.0, nodes=nodes)
    for name, (about, profile, replacements, nodes) in MOVE_BUGS.items()
}
PLANTS |= {
    name: Plant(about, "directories", replacements, seconds=40.0, nodes=nodes)
    for name, (about, replacements, nodes, _) in DIRECTORY_BUGS.items()
}
PLANTS |= {
    name: Plant(bug.about, bug.profile, bug.replacements, seconds=40.0, nodes=bug.nodes, rule=bug.rule)
    for name, bug in SUBTLE_BUGS.items()
}
PLANTS |= {
    name: Plant(bug.about, bug.profile, bug.replacements, seconds=POINT_BUGS_SECONDS, nodes=bug.nodes, at=bug.at)
    for name, bug in POINT_BUGS.items()
}
PLANTS |= {
    name: Plant(about, "liars", replacements, seconds=LIES_SECONDS, nodes=NODES)
    for name, (about, replacements, _) in LIES_BELIEVED.items()
}
PLANTS |= {
    name: Plant(about, "guard", replacements, seconds=GUARD_SECONDS, nodes=NODES)
    for name, (about, replacements, _) in GUARD_BUGS.items()
}
