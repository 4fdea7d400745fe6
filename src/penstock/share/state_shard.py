"""Holds the share partitions in one partition of `__share_group_state`, for the share coordinator that leads it.

Durable state changes only in `apply`. The functions of `state_requests` decide on requests; they write records to a
`Turn`, and the records are applied here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.metadata.image import EMPTY_IMAGE
from penstock.share.state_journal import JournalRecord, ShareKey, Snapshot, Update, decode_record, encode_record
from penstock.share.stored_state import StoredState

if TYPE_CHECKING:
    from penstock.metadata.image import MetadataImage
    from penstock.protocol.errors import ErrorCode

#: If a partition's state is not written, it is copied to the end of the log after this many records of other
#: partitions, so that the log before it can be deleted.
COLD_AFTER_RECORDS = 1000


@dataclass(slots=True)
class Turn:
    now_ms: int  # monotonic: for timeouts
    wall_ms: int  # for durable state
    records: list[JournalRecord] = field(default_factory=list)
    replies: list[tuple[object, Any]] = field(default_factory=list)
    after: list[Callable[[Turn, ErrorCode], None]] = field(default_factory=list)
    undo: tuple[()] = ()
    effects: tuple[()] = ()
    producer: tuple[int, int] | None = None

    def write(self, key: ShareKey, value: Snapshot | Update | None) -> None:
        self.records.append(JournalRecord(key, value))


class ShareStateShard:
    #: An update changes what earlier records made: a load applies every record.
    incremental = True

    def __init__(self, updates_per_snapshot: int = 500) -> None:
        self.updates_per_snapshot = updates_per_snapshot
        self.states: dict[ShareKey, StoredState] = {}
        self.image: MetadataImage = EMPTY_IMAGE
        self._next_offset = 0
        self._deleted_ms: int | None = None  # topics were deleted: the states of their partitions are to be erased

    def turn(self, now_ms: int, wall_ms: int) -> Turn:
        return Turn(now_ms, wall_ms)

    def encode(self, record: JournalRecord) -> tuple[bytes, bytes | None]:
        return encode_record(record)

    def decode(self, key: bytes | None, value: bytes | None) -> JournalRecord | None:
        return decode_record(key, value)

    # --- durable state

    def apply(self, record: JournalRecord, log_offset: int, producer_id: int = -1) -> None:
        key, value = record
        self._next_offset = log_offset + 1
        if value is None:
            self.states.pop(key, None)
        elif isinstance(value, Snapshot):
            self.states[key] = StoredState(value, log_offset)
        else:
            state = self.states.get(key)
            if state is not None:  # else its snapshot was deleted before, with the state
                state.update(value)

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        """Does nothing: no transaction writes to `__share_group_state`."""

    def remembered(self) -> Mapping[ShareKey, tuple[Any, ...]]:
        """Returns all durable state. A replay of the log must restore exactly this state."""
        return {
            key: (
                state.state_epoch,
                state.leader_epoch,
                state.snapshot_epoch,
                state.start_offset,
                state.complete_count,
                state.batches(),
            )
            for key, state in self.states.items()
        }

    # --- load and unload

    def loaded(self, turn: Turn) -> None:
        """Schedules a check for deleted topics: topics may have been deleted while no coordinator was active."""
        self._deleted_ms = turn.now_ms

    def abandon(self, turn: Turn) -> None:
        """Drops all state when the leadership is lost. There are no parked requests to answer."""
        self.states.clear()

    def see(self, image: MetadataImage, now_ms: int | None = None) -> None:
        """Replaces the metadata image.

        The caller passes the time as `now_ms` if topics were deleted. Then `on_timers` is due immediately.
        """
        self.image = image
        if now_ms is not None:
            self._deleted_ms = now_ms

    # --- time

    def next_deadline(self) -> int | None:
        return self._deleted_ms

    def on_timers(self, turn: Turn) -> None:
        """Deletes the states of share partitions whose topic was deleted."""
        if self._deleted_ms is None or turn.now_ms < self._deleted_ms:
            return
        self._deleted_ms = None
        for key in self.states:
            if key.topic_id not in self.image.topics_by_id:
                turn.write(key, None)

    # --- pruning

    def copy_cold(self, turn: Turn) -> None:
        """Writes a new snapshot of each state whose last snapshot is old. Otherwise the whole log after the oldest
        snapshot would have to be kept."""
        for key, state in self.states.items():
            if self._next_offset - state.snapshot_offset > COLD_AFTER_RECORDS:
                turn.write(key, snapshot_of(state, turn.wall_ms))

    def redundant_before(self) -> int:
        """Returns the offset of the oldest snapshot that is still needed. The log before this offset can be deleted."""
        return min((state.snapshot_offset for state in self.states.values()), default=self._next_offset)


def snapshot_of(state: StoredState, wall_ms: int) -> Snapshot:
    return Snapshot(
        state.snapshot_epoch + 1,
        state.state_epoch,
        state.leader_epoch,
        state.start_offset,
        state.complete_count,
        state.batches(),
        state.created_ms,
        wall_ms,
    )
