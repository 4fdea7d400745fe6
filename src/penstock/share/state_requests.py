"""Handles the requests to a share coordinator. Each function handles the part of a request for one share partition.

The requests are InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState and
ReadShareGroupStateSummary. A write is refused in three cases:

- Its leader epoch is old: its sender no longer leads the partition.
- Its state epoch is old: the group's offsets were altered after the write was sent.
- No leader has read the state yet: the write is for a deleted group with the same id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.share.state_journal import ShareKey, Snapshot, Update
from penstock.share.states import FINAL, RecordState, StateBatch
from penstock.share.stored_state import UNKNOWN_OFFSET, StoredState

if TYPE_CHECKING:
    from penstock.share.state_shard import ShareStateShard, Turn

UNKNOWN_EPOCH = -1
UNKNOWN_COUNT = -1
#: The states of records that are stored. Acquired records are available after a change of the leader.
STORED = FINAL | {RecordState.AVAILABLE, RecordState.ARCHIVING}
#: State batches of one share partition in one write; more of them would hold the event loop for too long. A leader of
#: this version writes some thousand at most.
MAX_BATCHES = 5000


class Write(NamedTuple):
    """Holds the content of a WriteShareGroupState request for one share partition."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    complete_count: int
    batches: tuple[StateBatch, ...]


class Read(NamedTuple):
    state_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...]


class Summary(NamedTuple):
    state_epoch: int = 0
    leader_epoch: int = UNKNOWN_EPOCH
    start_offset: int = UNKNOWN_OFFSET
    complete_count: int = UNKNOWN_COUNT


def initialize(shard: ShareStateShard, turn: Turn, key: ShareKey, state_epoch: int, start_offset: int) -> None:
    """Creates the state of a share partition, or replaces it with a state that begins at another offset.

    A repeated request changes nothing.
    """
    _check_exists(shard, key)
    state = shard.states.get(key)
    if state is not None:
        if state.state_epoch > state_epoch:
            raise _fenced_state(state, state_epoch)
        if state.state_epoch == state_epoch and start_offset == UNKNOWN_OFFSET:
            return
    turn.write(
        key,
        Snapshot(
            snapshot_epoch=0 if state is None else state.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=UNKNOWN_EPOCH if state is None else state.leader_epoch,
            start_offset=start_offset,
            complete_count=UNKNOWN_COUNT,
            batches=(),
            created_ms=turn.wall_ms,
            written_ms=turn.wall_ms,
        ),
    )


def read(shard: ShareStateShard, turn: Turn, key: ShareKey, leader_epoch: int) -> Read:
    """Returns the state of a share partition to the partition's leader, and fences earlier leaders."""
    state = _state(shard, key, leader_epoch)
    if leader_epoch > state.leader_epoch:
        turn.write(key, Update(state.snapshot_epoch, leader_epoch, state.start_offset, state.complete_count, ()))
    return Read(state.state_epoch, state.start_offset, state.batches())


def write(shard: ShareStateShard, turn: Turn, key: ShareKey, wanted: Write) -> None:
    state = _state(shard, key, wanted.leader_epoch)
    if state.state_epoch != wanted.state_epoch:  # a newer one is of a deleted group, too
        raise _fenced_state(state, wanted.state_epoch)
    if state.leader_epoch == UNKNOWN_EPOCH:
        raise KafkaError(
            ErrorCode.FENCED_STATE_EPOCH, "The writer loaded an earlier state: load the share partition again."
        )
    if len(wanted.batches) > MAX_BATCHES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The write has more than {MAX_BATCHES} state batches: send fewer.")
    if any(not 0 <= batch.first <= batch.last for batch in wanted.batches):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "The last offset of a state batch is lower than its first offset: send offsets in order.",
        )
    if any(batch.state not in STORED for batch in wanted.batches):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A state batch has an unknown state: send 0, 2, 3 or 4.")
    if state.updates < shard.updates_per_snapshot:
        turn.write(
            key,
            Update(
                state.snapshot_epoch,
                wanted.leader_epoch,
                wanted.start_offset,
                wanted.complete_count,
                wanted.batches,
            ),
        )
        return
    start_offset, batches = state.merged(wanted.start_offset, wanted.batches)
    turn.write(
        key,
        Snapshot(
            state.snapshot_epoch + 1,
            wanted.state_epoch,
            max(state.leader_epoch, wanted.leader_epoch),
            start_offset,
            wanted.complete_count,
            batches,
            state.created_ms,
            turn.wall_ms,
        ),
    )


def summary(shard: ShareStateShard, key: ShareKey) -> Summary:
    _check_exists(shard, key)
    state = shard.states.get(key)
    if state is None:
        return Summary()
    return Summary(state.state_epoch, state.leader_epoch, state.start_offset, state.complete_count)


def delete(shard: ShareStateShard, turn: Turn, key: ShareKey) -> None:
    if key.partition < 0:
        raise _no_partition(key)
    if key in shard.states:
        turn.write(key, None)


def _state(shard: ShareStateShard, key: ShareKey, leader_epoch: int) -> StoredState:
    if key.partition < 0:
        raise _no_partition(key)
    state = shard.states.get(key)
    if state is None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Group {key.group} has no state for partition {key.partition}: initialize the share partition first.",
        )
    if state.leader_epoch > leader_epoch:
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH,
            f"The partition's leader epoch is {state.leader_epoch}, not {leader_epoch}: another broker leads the "
            "partition.",
        )
    _check_exists(shard, key)
    return state


def _check_exists(shard: ShareStateShard, key: ShareKey) -> None:
    if key.partition < 0:
        raise _no_partition(key)
    topic = shard.image.topics_by_id.get(key.topic_id)
    if topic is None or key.partition not in topic.partitions:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic or partition does not exist: refresh the metadata."
        )


def _no_partition(key: ShareKey) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"There is no partition {key.partition}: give 0 or more.")


def _fenced_state(state: StoredState, state_epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.FENCED_STATE_EPOCH,
        f"The state epoch is {state.state_epoch}, not {state_epoch}: load the share partition again.",
    )
