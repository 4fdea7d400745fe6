"""Leads an epoch: writes its first record, appends proposals, answers fetches, moves the high watermark, resigns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.check import check
from penstock.protocol.errors import ErrorCode
from penstock.raft.election import start_pre_vote
from penstock.raft.events import Append, HandedOver, LeaderChange, Refuse, VotersChange
from penstock.raft.log_view import Batch, Behind, Diverging
from penstock.raft.messages import BeginEpoch, EndEpoch, FetchAnswer, SnapshotChunk, VoterAnswer
from penstock.raft.progress import Replicas, may_commit
from penstock.raft.states import Candidate, Leader, Parked, Resigned

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from penstock.raft.core import Core
    from penstock.raft.events import Propose
    from penstock.raft.messages import Fetch, FetchSnapshot
    from penstock.raft.voters import VoterSet

#: Limits an answer, which is built in memory; a replica may ask for more.
MAX_FETCH_BYTES = 8 * 1024 * 1024


def start_leading(core: Core, won: Candidate) -> None:
    replicas = Replicas(core.me, core.now)
    granted_by = tuple(sorted(won.election.granted))
    core.become(Leader(won.epoch, core.me.node_id, won.voted, core.log.end_offset, granted_by, replicas))
    voters = core.voters.latest
    unsaid = core.config.dynamic_voters and core.voters.latest_offset < 0 and core.log.end_offset == 0
    first = LeaderChange(core.me.node_id, voters.ids, granted_by, voters if unsaid else None)
    append(core, [(first.records, first, first.bootstrap)])


# --- appending --------------------------------------------------------------------------------------------


def append(core: Core, contents: Sequence[tuple[int, Any, VoterSet | None]]) -> int:
    """Appends the batches and answers the parked fetches. Returns the last offset of the batches."""
    batches = []
    for records, content, voters in contents:
        check(records > 0, "a batch has at least one record")
        base = core.log.end_offset
        batch = Batch(base, base + records - 1, core.epoch, content, voters)
        core.log.append(batch)
        if voters is not None:
            core.voters.record(batch.last_offset, voters)
        batches.append(batch)
    core.effects.append(Append(tuple(batches)))
    wake(core)
    return core.log.end_offset - 1


def on_propose(core: Core, event: Propose) -> None:
    state = core.state
    if not isinstance(state, Leader) or event.epoch != state.epoch:
        core.effects.append(Refuse(event.proposal, ErrorCode.NOT_LEADER_OR_FOLLOWER, state.leader_id))
        return
    records = sum(count for count, _ in event.batches)
    if core.log.end_offset + records - core.high_watermark > core.config.max_uncommitted_records:
        core.effects.append(Refuse(event.proposal, ErrorCode.THROTTLING_QUOTA_EXCEEDED, state.leader_id))
        return
    append(core, [(count, content, None) for count, content in event.batches])


def change_voters(core: Core, voters: VoterSet) -> int:
    return append(core, [(1, VotersChange(voters), voters)])


# --- commitment -------------------------------------------------------------------------------------------


def update_high_watermark(core: Core, state: Leader) -> None:
    offset = state.replicas.replicated_to(core.voters.latest, core.log.flushed_offset)
    if not may_commit(offset, core.high_watermark, state.start_offset):
        return
    core.advance_high_watermark(offset)
    change = state.change
    if change is not None and change.offset < offset:
        state.change = None
        core.reply(change.ticket, VoterAnswer(ErrorCode.NONE, core.epoch, core.me.node_id))
    if not core.is_voter and core.voters.latest_offset < offset:
        resign(core, state)  # the record that removed this voter is committed
        return
    wake(core)


# --- fetches ----------------------------------------------------------------------------------------------


def refusal(core: Core, epoch: int) -> ErrorCode:
    """Returns the error code if this replica cannot act as the leader of `epoch`; NONE if it can."""
    if epoch < core.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > core.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if isinstance(core.state, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER


def on_fetch(core: Core, ticket: int, request: Fetch) -> None:
    state = core.state
    error = refusal(core, request.epoch)
    if min(request.epoch, request.offset, request.last_epoch, request.max_wait_ms) < 0:
        error = ErrorCode.INVALID_REQUEST
    if error or not isinstance(state, Leader):
        core.reply(ticket, FetchAnswer(error, core.epoch, state.leader_id))
        return
    parting = core.log.compare(request.offset, request.last_epoch)
    if parting is None:
        # The offset counts only now that it is known to be a prefix of this log.
        state.replicas.fetched(request.replica, request.offset, core.log.end_offset, core.now)
        update_high_watermark(core, state)
        if core.state is not state:
            core.reply(ticket, FetchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, core.epoch, core.state.leader_id))
            return
        may_park = request.max_wait_ms > 0 and len(state.parked) < core.config.max_parked_fetches
        if may_park and not _has_news(core, request):
            state.parked[ticket] = Parked(request, core.now + request.max_wait_ms)
            return
    else:
        # A diverging replica's offset does not count, but its fetch shows that it is alive.
        state.replicas.heard(request.replica, core.now)
    _answer_fetch(core, ticket, request)


def _has_news(core: Core, request: Fetch) -> bool:
    return request.offset < core.log.end_offset or request.high_watermark < core.high_watermark


def _answer_fetch(core: Core, ticket: int, request: Fetch) -> None:
    answer = FetchAnswer(
        ErrorCode.NONE,
        core.epoch,
        core.me.node_id,
        core.high_watermark,
        read_from=request.offset,
        max_bytes=min(request.max_bytes, MAX_FETCH_BYTES),
    )
    match core.log.compare(request.offset, request.last_epoch):
        case Diverging(end):
            answer = FetchAnswer(ErrorCode.NONE, core.epoch, core.me.node_id, core.high_watermark, diverging=end)
        case Behind(snapshot):
            answer = FetchAnswer(ErrorCode.NONE, core.epoch, core.me.node_id, core.high_watermark, snapshot=snapshot)
        case None:
            pass
    core.reply(ticket, answer)


def wake(core: Core) -> None:
    """Answers each parked fetch for which there are new records or a new high watermark, or whose maximum wait is
    over."""
    state = core.state
    if not isinstance(state, Leader):
        return
    for ticket, parked in list(state.parked.items()):
        if _has_news(core, parked.request) or parked.deadline_ms <= core.now:
            del state.parked[ticket]
            _answer_fetch(core, ticket, parked.request)


def on_fetch_snapshot(core: Core, ticket: int, request: FetchSnapshot) -> None:
    state = core.state
    error = refusal(core, request.epoch)
    if error or not isinstance(state, Leader):
        core.reply(ticket, SnapshotChunk(error, core.epoch, state.leader_id))
        return
    state.replicas.heard(request.replica, core.now)
    chunk_bytes = min(max(1, request.max_bytes), core.config.max_snapshot_chunk_bytes)
    core.reply(
        ticket,
        SnapshotChunk(ErrorCode.NONE, core.epoch, core.me.node_id, request.snapshot, request.position, chunk_bytes),
    )


# --- time -------------------------------------------------------------------------------------------------


def poll_leader(core: Core, state: Leader) -> None:
    cut_off_ms = _cut_off_ms(core, state)
    if cut_off_ms is not None and cut_off_ms <= core.now:
        # This leader has lost its majority: it cannot commit, and the other voters may have another leader.
        resign(core, state)
        return
    change = state.change
    if change is not None and change.deadline_ms <= core.now:
        state.change = None
        message = "The change of voters is not committed yet, but may be later. Describe the quorum to see its voters."
        core.reply(change.ticket, VoterAnswer(ErrorCode.REQUEST_TIMED_OUT, core.epoch, core.me.node_id, message))
    wake(core)
    _correct_own_endpoints(core, state)
    voters = core.voters.latest
    state.replicas.drop_observers(voters, core.now - core.config.observer_session_ms, core.config.max_observers)
    for replica in state.replicas.of_voters(voters):
        node_id = replica.key.node_id
        if core.now < begin_due_ms(core, state, node_id, replica.last_fetch_ms):
            continue
        if core.may_send(node_id, BeginEpoch):
            state.begin_due_ms[node_id] = core.now + core.config.fetch_timeout_ms // 2
            core.send(node_id, BeginEpoch(replica.key, core.me.node_id, core.epoch))


def _correct_own_endpoints(core: Core, state: Leader) -> None:
    """Appends a new set of voters if this leader's endpoints have changed. Does nothing while another change of voters
    is not committed."""
    voters = core.voters.latest
    listed = voters.find(core.me.node_id)
    if not core.config.dynamic_voters or listed is None or listed.key != core.me or listed == core.voter:
        return
    settled = core.voters.latest_offset < core.high_watermark and core.high_watermark > state.start_offset
    if settled and state.change is None:
        change_voters(core, voters.updated(core.voter))


def begin_due_ms(core: Core, state: Leader, node_id: int, last_fetch_ms: int) -> int:
    """Returns the time at which the leader sends the next BeginQuorumEpoch to a voter.

    The leader sends it immediately in a new epoch, and repeats it at intervals while the voter does not fetch.
    """
    half = core.config.fetch_timeout_ms // 2
    fetched = last_fetch_ms + half if last_fetch_ms >= 0 else 0
    return max(state.begin_due_ms.get(node_id, 0), fetched)


def _cut_off_ms(core: Core, state: Leader) -> int | None:
    heard = state.replicas.heard_until_ms(core.voters.latest)
    return None if heard is None else heard + core.config.check_quorum_ms


def leader_deadlines(core: Core, state: Leader) -> list[int]:
    due = [parked.deadline_ms for parked in state.parked.values()]
    cut_off_ms = _cut_off_ms(core, state)
    if cut_off_ms is not None:
        due.append(cut_off_ms)
    if state.change is not None:
        due.append(state.change.deadline_ms)
    for replica in state.replicas.of_voters(core.voters.latest):
        sendable = core.peers.due_ms(replica.key.node_id, BeginEpoch, core.now)
        if sendable is not None:
            due.append(max(sendable, begin_due_ms(core, state, replica.key.node_id, replica.last_fetch_ms)))
    return due


# --- the end ----------------------------------------------------------------------------------------------


def resign(core: Core, state: Leader) -> None:
    """Resigns and notifies the voters. The list of preferred successors begins with the voter that has the longest
    log."""
    voters = core.voters.latest
    others = sorted(state.replicas.of_voters(voters), key=lambda replica: -replica.end_offset)
    core.become(
        Resigned(
            state.epoch,
            core.election_deadline(),
            state.voted,
            {replica.key.node_id for replica in others},
            tuple(replica.key for replica in others),
            led_by=core.me.node_id,
        )
    )


def on_request_to_resign(core: Core, *, stopping: bool) -> None:
    """Resigns if this node leads. A node that stops takes part in no more elections."""
    core.stopping = core.stopping or stopping
    if isinstance(core.state, Leader):
        resign(core, core.state)
    report_hand_over(core)


def poll_resigned(core: Core, state: Resigned) -> None:
    for node_id in sorted(state.unacknowledged):
        if core.may_send(node_id, EndEpoch):
            core.send(node_id, EndEpoch(core.me.node_id, state.epoch, state.successors))
    if state.deadline_ms > core.now:
        return
    if core.is_electable and not core.stopping and core.installing is None:
        start_pre_vote(core)  # for the next epoch; it has already voted in its own
    else:
        core.become_unattached(state.epoch)
        report_hand_over(core)


def on_end_epoch_answer(core: Core, node_id: int, error: ErrorCode) -> None:
    state = core.state
    if isinstance(state, Resigned) and not error:
        state.unacknowledged.discard(node_id)
        report_hand_over(core)


def on_end_epoch_failure(core: Core, node_id: int) -> None:
    """Stops waiting for a voter that cannot be reached. When that voter is back, it finds that this epoch has no
    leader."""
    state = core.state
    if isinstance(state, Resigned) and core.stopping:
        state.unacknowledged.discard(node_id)
        report_hand_over(core)


def report_hand_over(core: Core) -> None:
    """Emits HandedOver if this node is stopping, does not lead, and waits for no voter's answer to its resignation."""
    state = core.state
    if core.stopping and not isinstance(state, Leader) and not (isinstance(state, Resigned) and state.unacknowledged):
        core.effects.append(HandedOver())
