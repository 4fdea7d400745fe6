"""Implements the Raft machine: takes events, returns effects, and keeps both in order.

    effects = raft.step(event, now_ms)      carry them out in order, then pass the next event
    raft.deadline()                         when to pass a Tick if no other event comes before

A step's effects end at a `SaveState`: the machine holds back later effects, and events that arrive meanwhile, until
`StateSaved`. So a replica that crashes in between has sent no message that contradicts its state on disk.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING, assert_never

from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import NO_NODE
from penstock.raft import election, follower, leader, membership
from penstock.raft.claims import highest_epoch, refused
from penstock.raft.core import Core
from penstock.raft.events import (
    Answered,
    LogFlushed,
    Propose,
    QuorumState,
    Received,
    Reply,
    Resign,
    RoleChanged,
    SaveState,
    SendFailed,
    SnapshotInstalled,
    SnapshotRejected,
    SnapshotTaken,
    StateSaved,
    StepDown,
    Tick,
)
from penstock.raft.messages import (
    AddVoter,
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    RemoveVoter,
    SnapshotChunk,
    UpdateVoter,
    Vote,
    VoteAnswer,
    VoterAnswer,
)
from penstock.raft.states import MAX_EPOCH, Candidate, Follower, Leader, Prospective, Resigned, Unattached

if TYPE_CHECKING:
    from penstock.raft.config import RaftConfig
    from penstock.raft.events import Effect, Event
    from penstock.raft.log_view import LogView
    from penstock.raft.messages import Answer, Request
    from penstock.raft.peers import InFlight
    from penstock.raft.voters import Voter, VoterHistory

#: Limit of events that wait for a save. Beyond it, requests of peers are refused; events of this node itself are kept.
MAX_WAITING_EVENTS = 10_000
NEVER = 1 << 62


class Raft:
    def __init__(
        self,
        config: RaftConfig,
        me: Voter,
        *,
        random: Random,
        log: LogView,
        voters: VoterHistory,
        saved: QuorumState | None = None,
        bootstrap: tuple[int, ...] = (),
        now_ms: int = 0,
    ) -> None:
        saved = saved or QuorumState()
        timeout = config.first_election_ms or config.election_timeout_ms
        deadline_ms = now_ms + timeout + random.randrange(timeout)
        state = election.initial_state(saved, log.last_epoch, me.key, deadline_ms, now_ms + config.fetch_timeout_ms)
        self.core = Core(config, me, random, log, voters, state, bootstrap, now_ms)
        self._held: deque[Effect] = deque()
        self._waiting: deque[Event] = deque()
        self._saving = False
        if isinstance(state, Unattached | Resigned) and (not self.core.is_electable or voters.latest.is_only(me.key)):
            state.deadline_ms = now_ms  # there is no other voter to wait for

    # --- steps ------------------------------------------------------------------------------------------

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        core = self.core
        core.now = max(core.now, now_ms)
        out: list[Effect] = []
        if isinstance(event, StateSaved):
            self._saving = False
            self._release(out)
        elif self._saving:
            if isinstance(event, Received) and len(self._waiting) >= MAX_WAITING_EVENTS:
                out.append(Reply(event.ticket, refused(event.request, ErrorCode.BROKER_NOT_AVAILABLE, -1, NO_NODE)))
            elif not isinstance(event, Tick):
                self._waiting.append(event)
            return out
        else:
            self._waiting.append(event)
        while not self._saving and self._waiting:
            self._handle(self._waiting.popleft())
            self._poll()
            self._held.extend(_without_needless_saves(core.effects))
            core.effects.clear()
            self._release(out)
        return out

    def _release(self, out: list[Effect]) -> None:
        while self._held and not self._saving:
            effect = self._held.popleft()
            out.append(effect)
            self._saving = isinstance(effect, SaveState)

    def _handle(self, event: Event) -> None:
        core = self.core
        match event:
            case Tick() | StateSaved():
                core.peers.give_up_late(core.now)
            case Received(ticket, request):
                before = core.epoch
                self._on_request(ticket, request)
                core.epochs_by_request += core.epoch - before
            case Answered(send_id, answer, from_known_address):
                flight = core.peers.done(send_id, core.now, pause=_wants_pause(answer))
                if flight is not None and self._believes(flight, answer, from_known_address):
                    self._on_answer(flight.to, flight.request, answer)
            case SendFailed(send_id):
                self._on_failure(send_id, event)
            case LogFlushed(offset):
                core.log.flushed(offset)
                if isinstance(core.state, Leader):
                    leader.update_high_watermark(core, core.state)
            case Propose():
                leader.on_propose(core, event)
            case SnapshotTaken(snapshot, start_offset):
                core.log.snapshot_taken(snapshot, start_offset)
                core.voters.forget_before(snapshot.offset)
            case SnapshotInstalled():
                follower.on_snapshot_installed(core, event)
            case SnapshotRejected():
                follower.on_snapshot_rejected(core)
            case Resign() | StepDown():
                leader.on_request_to_resign(core, stopping=isinstance(event, Resign))
            case _:
                assert_never(event)

    def _on_failure(self, send_id: int, event: SendFailed) -> None:
        flight = self.core.peers.done(send_id, self.core.now, pause=True)
        if flight is not None:
            follower.on_failure(self.core, flight.request, event)
            if event.closed and isinstance(flight.request, EndEpoch):
                leader.on_end_epoch_failure(self.core, flight.to)

    def _on_request(self, ticket: int, request: Request) -> None:
        core = self.core
        match request:
            case Vote():
                election.on_vote(core, ticket, request)
            case BeginEpoch():
                election.on_begin_epoch(core, ticket, request)
            case EndEpoch():
                election.on_end_epoch(core, ticket, request)
            case Fetch():
                leader.on_fetch(core, ticket, request)
            case FetchSnapshot():
                leader.on_fetch_snapshot(core, ticket, request)
            case AddVoter():
                membership.on_add_voter(core, ticket, request)
            case RemoveVoter():
                membership.on_remove_voter(core, ticket, request)
            case UpdateVoter():
                membership.on_update_voter(core, ticket, request)
            case _:
                assert_never(request)

    def _believes(self, flight: InFlight, answer: Answer, from_known_address: bool) -> bool:
        """Returns True if this replica adopts the epoch in the answer. An answer from an unknown address may be
        forged."""
        core = self.core
        if answer.epoch > (MAX_EPOCH if from_known_address else highest_epoch(core)):
            core.peers.pause(flight.to, type(flight.request), core.now)
            return False
        if not from_known_address:
            core.epochs_by_request += max(0, answer.epoch - core.epoch)
        return True

    def _on_answer(self, node_id: int, request: Request, answer: Answer) -> None:
        core = self.core
        if core.learn(answer.epoch, answer.leader_id):
            return  # the answer is to a request of an earlier state
        match answer:
            case VoteAnswer():
                if isinstance(request, Vote):
                    election.on_vote_answer(core, node_id, request, answer)
            case EpochAnswer(error):
                if isinstance(request, EndEpoch):
                    leader.on_end_epoch_answer(core, node_id, error)
            case FetchAnswer():
                follower.on_fetch_answer(core, answer)
            case SnapshotChunk():
                follower.on_snapshot_chunk(core, answer)
            case VoterAnswer():
                pass
            case _:
                assert_never(answer)

    # --- time -------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Handles timeouts and sends the requests that are due; repeats both until the state no longer changes."""
        core = self.core
        before = None
        while before is not core.state:
            before = core.state
            self._poll_once()

    def _poll_once(self) -> None:
        core = self.core
        match core.state:
            case Unattached() as state:
                if not core.is_electable:
                    follower.poll_observer(core, state)
                elif state.deadline_ms <= core.now and self._may_stand():
                    election.start_pre_vote(core)
            case Prospective() as state:
                if state.deadline_ms <= core.now or not core.is_electable or core.stopping:
                    election.give_up_pre_vote(core, state)
                else:
                    election.ask_for_votes(core, state)
            case Candidate() as state:
                self._poll_candidate(state)
            case Follower() as state:
                self._poll_follower(state)
            case Leader() as state:
                leader.poll_leader(core, state)
            case Resigned() as state:
                leader.poll_resigned(core, state)

    def _may_stand(self) -> bool:
        core = self.core
        return core.is_electable and not core.stopping and core.installing is None

    def _poll_candidate(self, state: Candidate) -> None:
        core = self.core
        if state.election.won:
            leader.start_leading(core, state)
        elif not core.is_electable or core.stopping:
            core.become_unattached(core.epoch)
        elif state.deadline_ms <= core.now:
            election.start_pre_vote(core)
        elif not state.lost:
            election.ask_for_votes(core, state)

    def _poll_follower(self, state: Follower) -> None:
        core = self.core
        if state.deadline_ms <= core.now:
            if self._may_stand():
                election.start_pre_vote(core)
                return
            if not core.is_electable:
                core.become_unattached(core.epoch)
                return
        follower.poll_follower(core, state)

    def deadline(self) -> int:
        """Returns the time at which the next Tick is due; NEVER while a save is in progress."""
        if self._saving:
            return NEVER
        core = self.core
        due = [core.peers.deadline_ms() or NEVER]
        match core.state:
            case Leader() as state:
                due += leader.leader_deadlines(core, state)
            case Resigned() as state:
                due.append(state.deadline_ms)
                due += self._sendable(EndEpoch, state.unacknowledged)
            case Prospective() | Candidate() as state:
                due.append(state.deadline_ms)
                if not (isinstance(state, Candidate) and state.lost):
                    due += self._sendable(Vote, state.election.unheard)
            case Follower() as state:
                if not core.is_electable or self._may_stand():
                    due.append(state.deadline_ms)
                if core.installing is not None:
                    pass
                elif state.download is not None:
                    due += self._sendable(FetchSnapshot, [state.leader_id])
                elif core.log.flushed_offset == core.log.end_offset:
                    due += self._sendable(Fetch, [state.leader_id])
            case Unattached() as state:
                if self._may_stand() or (not core.is_electable and core.installing is None):
                    due.append(state.deadline_ms)
        return min(due)

    def _sendable(self, kind: type[Request], node_ids: set[int] | list[int]) -> list[int]:
        due = (self.core.peers.due_ms(node_id, kind, self.core.now) for node_id in node_ids)
        return [at for at in due if at is not None]


def _wants_pause(answer: Answer) -> bool:
    return answer.error not in (ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH)


def _without_needless_saves(effects: list[Effect]) -> list[Effect]:
    """Returns the effects without the saves that a later save replaces.

    A later save replaces an earlier save if there are only role changes between the two.
    """
    kept: list[Effect] = []
    for effect in reversed(effects):
        if isinstance(effect, SaveState):
            later = next((one for one in reversed(kept) if not isinstance(one, RoleChanged)), None)
            if isinstance(later, SaveState):
                continue
        kept.append(effect)
    return kept[::-1]
