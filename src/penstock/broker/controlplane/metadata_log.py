"""Keeps `__cluster_metadata-0`, the log with all metadata of the cluster. The `Quorum` replicates this log.

    submit(decide)   decide on the image with every record appended so far → append → committed → publish → reply

A record is committed when a majority of the voters has fsynced it; a single node is a quorum of one. Only the quorum's
leader decides, and every node publishes committed records in the order of the log.

There are two images. `_pending` has every appended record; decisions read it, so that two concurrent requests can't
both create a topic. `image` has the committed records; all other code reads it. The records of one decision become
visible together. An error response also waits until all earlier records are committed, because the error may depend on
them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.broker.controlplane.metadata_batches import first_records, metadata_version, split
from penstock.broker.controlplane.metadata_storage import SnapshotStore, read_bootstrap, replay
from penstock.check import InvariantError, check
from penstock.metadata.apply import apply
from penstock.metadata.decision import Decision
from penstock.metadata.framing import encode_record, record_class
from penstock.metadata.image import (
    EMPTY_IMAGE,
    METADATA_VERSION,
    ImageChanges,
    MetadataImage,
    ScramCredentials,
)
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.raft.log_view import OffsetAndEpoch
from penstock.records.build import build_batch

if TYPE_CHECKING:
    from penstock.broker.controlplane.quorum import Quorum
    from penstock.clock import Clock
    from penstock.disk.api import Disk
    from penstock.log.log import Log
    from penstock.metadata.voters import Voter
    from penstock.raft.describe import ReplicaView

logger = logging.getLogger(__name__)

R = TypeVar("R")
Listener = Callable[[MetadataImage, MetadataImage], None]


@dataclass(frozen=True, slots=True)
class QuorumView:
    """Holds the content of a DescribeQuorum response. Only a leader knows the replicas' progress.

    Times are wall-clock times.
    """

    leader_id: int
    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    voters: tuple[Voter, ...]
    replicas: tuple[ReplicaView, ...] = ()
    observers: tuple[ReplicaView, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotPolicy:
    """Determines when to write a snapshot and delete the log before it: after some bytes, or after an interval.

    Kafka writes a snapshot after `bytes_between`. Penstock writes the next snapshot earlier: when the log has grown by
    the size of the last snapshot, and by at least `bytes_at_least`. So a starting node reads at most about twice the
    bytes of a snapshot.
    """

    bytes_between: int = 20 * 1024 * 1024
    interval_ms: int = 3_600_000
    bytes_at_least: int = 1024 * 1024

    def due_bytes(self, last_snapshot_bytes: int) -> int:
        return min(self.bytes_between, max(self.bytes_at_least, last_snapshot_bytes))


class MetadataLog:
    """Appends the records of metadata decisions, and publishes the new image when the records are committed.

    Handlers cache encoded responses in `answers`, which is emptied when the image changes.
    """

    def __init__(
        self,
        log: Log,
        disk: Disk,
        clock: Clock,
        voter: Voter,
        quorum: Quorum,
        *,
        policy: SnapshotPolicy | None = None,
        on_fatal: Callable[[Exception], None] | None = None,
    ) -> None:
        self.image = EMPTY_IMAGE
        self.leader_epoch = 0
        self._quorum = quorum
        self._leading = False
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._first_records: Callable[[], list[Any]] = list
        self.answers: dict[Any, Any] = {}
        self._log = log
        self._disk = disk
        self._clock = clock
        self.voter = voter
        self._policy = policy or SnapshotPolicy()
        self._on_fatal = on_fatal
        self._snapshots = SnapshotStore(disk, log.path)
        self._snapshot_task: asyncio.Task[None] | None = None
        self._bytes_since_snapshot = 0
        self._snapshot_due_ms = clock.wall_ms() + self._policy.interval_ms
        self._pending = EMPTY_IMAGE
        self._unpublished: deque[MetadataImage] = deque()
        self._listeners: list[Listener] = []
        self._leadership: list[Callable[[bool], None]] = []
        self._controller: list[Callable[[int], None]] = []
        self._failure: KafkaError | None = None
        self._stored_credentials: tuple[int, ScramCredentials] = (-1, {})

    # --- start and stop -------------------------------------------------------------------------------

    async def start(
        self,
        *,
        bootstrap_path: str | None = None,
        min_insync_replicas: int = 1,
        keep_credentials: bool = False,
        on_stored: Callable[[MetadataImage], None] | None = None,
    ) -> None:
        """Loads the newest snapshot and starts the quorum.

        Before the quorum starts, calls `on_stored` with the image of all records in this node's log, committed or not.
        Set `keep_credentials` if controllers log in with SCRAM: see `credentials_for_controllers`. Raises StorageError
        if a file can't be used.
        """
        read = partial(read_bootstrap, self._disk, bootstrap_path)
        if self._log.log_end_offset == 0:
            read()  # an unusable file is refused here, not when this node is elected
        self._first_records = lambda: first_records(read(), min_insync_replicas)
        self.image = self._pending = self._snapshots.latest()
        if keep_credentials or on_stored is not None:
            end, stored = self._stored_image(read)
            if keep_credentials:
                self._stored_credentials = end, stored.scram_credentials
            if on_stored is not None:
                on_stored(stored)
        self._quorum.start(self)

    def _stored_image(self, read_first: Callable[[], list[Any]]) -> tuple[int, MetadataImage]:
        """Returns the end offset of this node's own log, and the image of its records, committed or not.

        For an empty log, returns the image of the bootstrap file.
        """
        if self._log.log_end_offset == 0:
            return 0, apply(self.image, read_first(), offset=0, epoch=0, timestamp_ms=self._clock.wall_ms())
        stored = replay(self._log, self.image, self._log.log_end_offset).image
        return stored.offset, stored

    def credentials_for_controllers(self) -> ScramCredentials:
        """Returns the SCRAM credentials with which controllers log in to this node.

        Without a leader no record is committed, but controllers must log in before they can elect a leader. So until
        the quorum has a leader, the credentials in this node's own log are used.
        """
        offset, credentials = self._stored_credentials
        caught_up = self.image.offset >= offset and METADATA_VERSION in self.image.features
        return self.image.scram_credentials if caught_up else credentials

    def _append_as_new_leader(self) -> None:
        """Aborts a transaction that the previous leader left open. If the log is empty, appends its first records."""
        if self._pending.open_transaction is not None:
            self._append([record_class(25)(reason="the leader that began it is gone")])
        if METADATA_VERSION not in self._pending.features:
            self._append(self._first_records())

    def step_down(self) -> None:
        """Resigns if this node leads the quorum, so that the voters elect a leader again. The node stays a voter."""
        self._quorum.step_down()

    async def hand_over(self) -> None:
        """Hands the quorum's leadership to another voter, if this node leads and there is another voter."""
        if self._leading and len(self._quorum.describe().voter_set) > 1:
            await self._quorum.hand_over()

    async def abandon(self) -> None:
        """Stops as in a crash: nothing is flushed or handed over."""
        if self._snapshot_task is not None:
            self._snapshot_task.cancel()
        await self._quorum.abandon()

    async def close(self) -> None:
        """Stops the quorum, flushes the log and closes it. A snapshot that is being written is finished first."""
        if self._snapshot_task is not None:
            await asyncio.wait([self._snapshot_task])
        await self._quorum.close()
        if self._failure is None:
            try:
                await self._log.flush()
            except KafkaError as error:  # every committed record is on disk; the next start rebuilds the indexes
                logger.error("the metadata log could not be flushed before the stop (no record is lost): %s", error)
        self._log.close()

    # --- changes ----------------------------------------------------------------------------------------

    async def submit(self, decide: Callable[[MetadataImage], Decision[R]]) -> R:
        """Calls `decide`, appends the records that it returns, and returns its reply once the records are committed.

        If `decide` raises KafkaError, this method waits until all earlier records are committed, then raises the error:
        the error may depend on these records.
        """
        if self._failure is not None:
            raise self._failure
        if not self._leading:
            raise self._not_controller()
        try:
            decision = decide(self._pending)
        except KafkaError:
            await self._commit()
            raise
        if decision.records:
            self._append(decision.records)
        await self._commit()
        return decision.reply

    def subscribe(self, listener: Listener) -> None:
        """Calls the listener with the old and the new image at each change, before `submit` returns its reply.

        Listeners are called in the order of their subscription, even if an earlier listener fails.
        """
        self._listeners.append(listener)

    @property
    def log(self) -> Log:
        """Returns the log that holds the records, for tools and checks that read it directly."""
        return self._log

    @property
    def leading(self) -> bool:
        """Returns True while this node is the active controller."""
        return self._leading

    @property
    def in_contact(self) -> bool:
        """Returns True while this node leads the quorum, or follows a leader that answers its fetches."""
        return self._quorum.in_contact

    def watch_leadership(self, listener: Callable[[bool], None]) -> None:
        """Calls the listener with True when this node leads and can decide, and with False when its leadership ends."""
        self._leadership.append(listener)
        if self._leading:
            listener(True)

    def watch_controller(self, listener: Callable[[int], None]) -> None:
        """Calls the listener with the id of the active controller whenever this node learns of a new controller."""
        self._controller.append(listener)

    def active_controller(self) -> tuple[int, tuple[str, int] | None]:
        """Returns the active controller's id and address.

        The id is -1 if unknown. The address is None if unknown, or if this node is the active controller.
        """
        return self._quorum.leader_id, self._quorum.address_of(self._quorum.leader_id)

    @property
    def reaches_other_cluster(self) -> bool:
        """Returns True if a peer refused this node's cluster id and no peer has accepted it since."""
        return bool(self._quorum.other_cluster_peers)

    async def answer_peer(self, request: Any, listener: str | None = None) -> Any:
        """Answers a request of another replica of the quorum, or a client's request about the voters."""
        return await self._quorum.answer(request, listener)

    def _notify_leadership(self) -> None:
        for listener in self._leadership:
            try:
                listener(self._leading)
            except Exception:
                logger.exception("a callback for changes of the quorum's leadership failed")

    def quorum(self) -> QuorumView:
        view = self._quorum.describe()
        return QuorumView(
            view.leader_id,
            view.epoch,
            view.high_watermark,
            self._log.log_end_offset,
            view.voter_set.voters,
            tuple(map(self._with_wall_times, view.voters)),
            tuple(map(self._with_wall_times, view.observers)),
        )

    def _with_wall_times(self, view: ReplicaView) -> ReplicaView:
        """Converts the times in a QuorumView from the event loop's clock to wall time."""
        shift = self._clock.wall_ms() - int(asyncio.get_running_loop().time() * 1000)
        fetch_ms, caught_up_ms = (t + shift if t >= 0 else -1 for t in (view.last_fetch_ms, view.last_caught_up_ms))
        return replace(view, last_fetch_ms=fetch_ms, last_caught_up_ms=caught_up_ms)

    def _append(self, records: Sequence[Any]) -> None:
        """Applies a decision's records to the pending image, then appends them to the log.

        The order matters: a record that can't be applied must not enter the log.
        """
        version = metadata_version(self._pending, records)
        values = [encode_record(record, version) for record in records]
        groups = split(values)
        if len(groups) > 1:
            begin, end = record_class(23)(name="large change"), record_class(24)()
            records = [begin, *records, end]
            values = [encode_record(begin, version), *values, encode_record(end, version)]
            groups = split(values)
        now_ms, epoch = self._clock.wall_ms(), self.leader_epoch
        offset = self._log.log_end_offset + len(values) - 1
        new = apply(self._pending, records, offset=offset, epoch=epoch, timestamp_ms=now_ms)
        batches = [build_batch([(now_ms, None, value, ()) for value in group], leader_epoch=epoch) for group in groups]
        counted = [(len(group), batch) for group, batch in zip(groups, batches)]
        last_offset = self._quorum.propose(epoch, counted) - 1
        self._bytes_since_snapshot += sum(map(len, batches))
        check(last_offset == new.offset, "metadata records get the offsets that their image was built with")
        self._pending = new
        self._unpublished.append(new)

    async def _commit(self) -> None:
        """Waits until all records appended so far are committed and published. Concurrent callers share one fsync."""
        goal = self._pending.offset
        if goal > self.image.offset:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((goal, future))
            await future

    def _publish(self, offset: int) -> None:
        if not self._unpublished or self._unpublished[0].offset > offset:
            return  # an earlier call has published up to here
        changes = ImageChanges(self.image.version)
        new = self.image
        while self._unpublished and self._unpublished[0].offset <= offset:
            new = self._unpublished.popleft()
            changes = changes.then(new.changes)
        self._log.update_high_watermark(new.offset + 1)
        self._show(replace(new, changes=changes))

    def _show(self, new: MetadataImage) -> None:
        old, self.image = self.image, new
        self.answers.clear()
        for listener in self._listeners:
            try:
                listener(old, self.image)
            except Exception:
                logger.exception("a listener of the metadata log failed at offset %d", new.offset)
        self._consider_snapshot()

    def _fatal(self, error: KafkaError) -> KafkaError:
        """Reports once that the metadata log has failed. Returns the error that `submit` raises from now on."""
        if self._failure is None:
            self._failure = KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"The metadata log failed ({error.message}): restart the node."
            )
            logger.critical("the metadata log failed, and this node decides nothing until its restart: %s", error)
            if self._on_fatal is not None:
                self._on_fatal(error)
        return self._failure

    # --- calls of the quorum --------------------------------------------------------------------------------

    def role_changed(self, role: str, epoch: int, leader_id: int) -> None:
        """Starts or ends this node's leadership of the quorum.

        A new leader decides on an image of its whole log, including records that are not committed yet: it will commit
        these records itself unless it is deposed.
        """
        if self._leading:
            self._step_down()
        for listener in self._controller if leader_id >= 0 else ():
            listener(leader_id)
        if role != "leader" or self._failure is not None:
            return
        self._leading, self.leader_epoch = True, epoch
        try:
            self._pending = replay(self._log, self.image, self._log.log_end_offset).image
            self._unpublished.append(self._pending)
            self._append_as_new_leader()
        except KafkaError as error:
            if error.code is not ErrorCode.NOT_CONTROLLER:
                raise
            logger.info("this node lost the quorum's leadership of epoch %d before its first decision", epoch)
            return
        self._notify_leadership()

    def _step_down(self) -> None:
        """Ends this node's leadership. Fails the calls of `submit` that wait for a commit.

        The next leader may still commit the records of these calls.
        """
        led, self._leading = self._leading, False
        self._unpublished.clear()
        self._pending = self.image
        while self._waiting:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_exception(self._not_controller())
        if led:
            self._notify_leadership()

    def _not_controller(self) -> KafkaError:
        leader_id = self._quorum.leader_id
        remedy = f"Send the request to node {leader_id}." if leader_id >= 0 else "None is elected yet: try again."
        return KafkaError(ErrorCode.NOT_CONTROLLER, f"This node is not the active controller. {remedy}")

    def committed(self, high_watermark: int) -> None:
        if self._leading:
            self._publish(high_watermark - 1)
        if (
            not self._unpublished and high_watermark - 1 > self.image.offset
        ):  # records of others, or of the quorum itself
            loaded = replay(self._log, self.image, high_watermark)
            self._bytes_since_snapshot += loaded.replayed_bytes
            self._unpublished.append(loaded.image)
            if not self._leading or self._pending.offset < loaded.image.offset:
                self._pending = loaded.image
            self._publish(high_watermark - 1)
        while self._waiting and self._waiting[0][0] <= self.image.offset:
            _, future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None:
        """Replaces the image with the leader's snapshot, and reports every topic, config and broker as changed."""
        old, new = self.image, self._snapshots.latest()
        check(new.offset == snapshot.offset - 1, "the snapshot that was installed is the newest")
        changes = ImageChanges(
            old.version,
            frozenset({*old.topics, *new.topics}),
            frozenset({*old.configs, *new.configs}),
            frozenset({*old.brokers, *new.brokers}),
            client_quotas=True,
            features=True,
        )
        self._unpublished.clear()
        self._pending = replace(new, version=max(old.version, new.version) + 1, changes=changes)
        self._bytes_since_snapshot = 0
        self._show(self._pending)

    def snapshot_damaged(self) -> None:
        """Writes a new snapshot from the image in memory, because a peer fetches a snapshot that is damaged on disk."""
        self._start_snapshot()

    def failed(self, error: Exception) -> None:
        reason = error if isinstance(error, KafkaError) else KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
        self._fatal(reason)
        self._step_down()

    # --- snapshots ----------------------------------------------------------------------------------------

    def _consider_snapshot(self) -> None:
        due = self._bytes_since_snapshot >= self._policy.due_bytes(self._snapshots.last_bytes) or (
            self._bytes_since_snapshot > 0 and self._clock.wall_ms() >= self._snapshot_due_ms
        )
        if due:
            self._start_snapshot()

    def _start_snapshot(self) -> None:
        if self._snapshot_task is None and self.image.open_transaction is None:
            self._snapshot_task = asyncio.get_running_loop().create_task(
                self._snapshot_and_log(), name="metadata-snapshot"
            )

    async def _snapshot_and_log(self) -> None:
        try:
            await self.snapshot()
        except (OSError, KafkaError, InvariantError) as error:
            logger.error("the metadata snapshot could not be written, so the metadata log keeps growing: %s", error)
        finally:
            self._snapshot_task = None

    async def snapshot(self) -> str:
        """Writes the committed image to a checkpoint file, deletes older log segments, and returns the file's name."""
        image = self.image
        self._bytes_since_snapshot = 0
        self._snapshot_due_ms = self._clock.wall_ms() + self._policy.interval_ms
        if self._log.segments.active.size:
            self._log.roll()  # before the next append, so that the snapshot covers all of the old segment
        end_offset = image.offset + 1
        name = await self._snapshots.write(image, self._quorum.voters_before(end_offset), self._clock.wall_ms())
        if end_offset < self._log.log_start_offset:
            return name  # a newer snapshot of the leader was installed meanwhile
        self._log.advance_log_start_offset(end_offset)
        self._quorum.snapshot_taken(OffsetAndEpoch(end_offset, image.epoch), self._log.log_start_offset)
        self._log.delete_old_segments(self._clock.wall_ms())
        self._snapshots.remove_before(end_offset)
        return name
