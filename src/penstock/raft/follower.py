"""Follows a leader: fetches and appends records, truncates records that the leader lacks, and fetches a snapshot if the
leader's log no longer has the next record.

One fetch is in flight at a time. It is sent only when all records below its offset are on disk, because the leader uses
this offset to compute the high watermark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.check import check
from penstock.protocol.errors import ErrorCode
from penstock.raft.events import Append, InstallSnapshot, Truncate, WriteSnapshot
from penstock.raft.messages import Fetch, FetchSnapshot, UpdateVoter
from penstock.raft.states import Download, Follower, Unattached

if TYPE_CHECKING:
    from penstock.raft.core import Core
    from penstock.raft.events import SendFailed, SnapshotInstalled
    from penstock.raft.log_view import Batch, OffsetAndEpoch
    from penstock.raft.messages import FetchAnswer, Request, SnapshotChunk


def poll_follower(core: Core, state: Follower) -> None:
    """Sends the next fetch to the leader. `Raft` handles the fetch timeout."""
    if core.installing is not None:
        return
    if state.download is not None:
        download = state.download
        if core.may_send(state.leader_id, FetchSnapshot):
            core.send(
                state.leader_id,
                FetchSnapshot(
                    core.me, state.epoch, download.snapshot, download.position, core.config.max_snapshot_chunk_bytes
                ),
            )
        return
    if core.log.flushed_offset == core.log.end_offset and core.may_send(state.leader_id, Fetch):
        core.send(state.leader_id, fetch_request(core, core.config.fetch_max_wait_ms))
    _report_endpoints(core, state)


def fetch_request(core: Core, max_wait_ms: int) -> Fetch:
    return Fetch(
        core.me,
        core.epoch,
        core.log.end_offset,
        core.log.last_epoch,
        core.high_watermark,
        max_wait_ms,
        core.config.fetch_max_bytes,
    )


def _report_endpoints(core: Core, state: Follower) -> None:
    """Sends this voter's endpoints to the leader if the latest set of voters has other endpoints for this voter."""
    listed = core.voters.latest.find(core.me.node_id)
    if not core.config.dynamic_voters or listed is None or listed.key != core.me or listed == core.voter:
        return
    if core.now >= state.update_due_ms and core.may_send(state.leader_id, UpdateVoter):
        state.update_due_ms = core.now + core.config.fetch_timeout_ms
        core.send(state.leader_id, UpdateVoter(state.epoch, core.voter))


def poll_observer(core: Core, state: Unattached) -> None:
    """Sends a fetch to a random voter. No leader announces itself to an observer, but the answer to a fetch names the
    leader."""
    if state.deadline_ms > core.now or core.installing is not None:
        return
    state.deadline_ms = core.now + core.config.retry_backoff_ms * (1 + core.random.randrange(10))
    known = [node_id for node_id in core.voters.latest.ids if node_id != core.me.node_id] or list(core.bootstrap)
    if known:
        node_id = core.random.choice(known)
        if core.may_send(node_id, Fetch):
            core.send(node_id, fetch_request(core, 0))


# --- answers ----------------------------------------------------------------------------------------------


def on_fetch_answer(core: Core, answer: FetchAnswer) -> None:
    state = core.state
    if not isinstance(state, Follower) or answer.epoch != state.epoch:
        return
    if answer.error:
        if answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            state.leader_suspected = True  # the leader resigned, or is starting again
        core.peers.pause(state.leader_id, Fetch, core.now)
        return
    _leader_answered(core, state)
    if answer.diverging is not None:
        _cut(core, state, answer.diverging)
    elif answer.snapshot is not None:
        state.download = Download(answer.snapshot)
    else:
        _append(core, answer.batches)
        core.advance_high_watermark(min(answer.high_watermark, core.log.end_offset))


def _leader_answered(core: Core, state: Follower) -> None:
    state.deadline_ms = core.now + core.config.fetch_timeout_ms
    state.has_fetched = True
    state.leader_suspected = False


def _cut(core: Core, state: Follower, end: OffsetAndEpoch) -> None:
    """Truncates the log to the divergence point that the leader's answer names. If there is nothing to truncate,
    fetches again after a pause."""
    offset = core.log.cut_for(end)
    check(offset >= core.high_watermark, "a truncation keeps all committed records")
    if offset < core.log.end_offset:
        truncate(core, offset)
    else:
        core.peers.pause(state.leader_id, Fetch, core.now)


def truncate(core: Core, offset: int) -> None:
    core.log.truncate_to(offset)
    core.voters.truncate_to(offset)
    core.effects.append(Truncate(offset))


def _append(core: Core, batches: tuple[Batch, ...]) -> None:
    """Appends the batches that the log does not have yet. An answer to a repeated fetch may contain batches that the
    log already has; these are ignored."""
    new = [batch for batch in batches if batch.base_offset >= core.log.end_offset]
    if not new or new[0].base_offset != core.log.end_offset:
        return
    for batch in new:
        check(batch.epoch <= core.epoch, "a leader's records are not of a later epoch")
        core.log.append(batch)
        if batch.voters is not None:
            core.voters.record(batch.last_offset, batch.voters)
    core.effects.append(Append(tuple(new)))


def on_snapshot_chunk(core: Core, answer: SnapshotChunk) -> None:
    state = core.state
    if not isinstance(state, Follower) or answer.epoch != state.epoch or state.download is None:
        return
    if answer.error:
        core.peers.pause(state.leader_id, FetchSnapshot, core.now)
        if answer.error in (ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE):
            state.download = None  # the leader has a newer snapshot, which the next fetch names
        return
    download = state.download
    if answer.snapshot != download.snapshot or answer.position != download.position:
        return
    _leader_answered(core, state)
    if not answer.data and answer.position < answer.size:
        core.peers.pause(state.leader_id, FetchSnapshot, core.now)
        return
    core.effects.append(WriteSnapshot(download.snapshot, download.position, answer.data))
    download.position += len(answer.data)
    if download.position >= answer.size:
        core.installing = download.snapshot
        core.effects.append(InstallSnapshot(download.snapshot))


def on_snapshot_installed(core: Core, event: SnapshotInstalled) -> None:
    """Adopts an installed snapshot: the log now starts at the snapshot's end. A replica in any role must adopt it,
    because the files have already changed."""
    check(event.snapshot.offset >= core.high_watermark, "a snapshot contains all records committed here")
    core.installing = None
    core.log.reset(event.snapshot)
    if event.voters is not None:
        core.voters.reset(event.voters, event.snapshot.offset - 1)
    core.advance_high_watermark(event.snapshot.offset)
    if isinstance(core.state, Follower):
        core.state.download = None
        core.state.deadline_ms = core.now + core.config.fetch_timeout_ms


def on_snapshot_rejected(core: Core) -> None:
    """Handles a damaged snapshot: fetches again after a pause, because the snapshot may be large and the leader may
    offer another snapshot later."""
    core.installing = None
    if isinstance(core.state, Follower):
        core.state.download = None
        core.state.deadline_ms = core.now + core.config.fetch_timeout_ms
        core.peers.pause(core.state.leader_id, Fetch, core.now, core.config.fetch_max_wait_ms)


def on_failure(core: Core, request: Request, event: SendFailed) -> None:
    """Handles a request without an answer.

    A closed connection during a fetch may mean that the leader's process died. Then this replica starts an election
    soon, unless the leader answers first.
    """
    state = core.state
    if event.closed and isinstance(state, Follower) and isinstance(request, Fetch | FetchSnapshot):
        state.leader_suspected = True
        if core.is_electable:
            wait_ms = 1 + core.random.randrange(core.config.suspect_ms)
            state.deadline_ms = min(state.deadline_ms, core.now + wait_ms)
