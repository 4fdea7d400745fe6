"""Holds the state that the modules of the Raft machine share: role, log, voters, and effects of the current step."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from penstock.check import check
from penstock.protocol.errors import ErrorCode
from penstock.protocol.vocabulary import NO_NODE
from penstock.raft.config import RaftConfig
from penstock.raft.events import Committed, Effect, QuorumState, Reply, RoleChanged, SaveState, Send
from penstock.raft.messages import FetchAnswer, VoterAnswer
from penstock.raft.peers import Peers
from penstock.raft.states import MAX_EPOCH, TRANSITIONS, VOTERS_ONLY, Follower, Leader, Resigned, Unattached
from penstock.raft.voters import ReplicaKey, Voter, VoterHistory

if TYPE_CHECKING:
    from penstock.raft.log_view import LogView, OffsetAndEpoch
    from penstock.raft.messages import Answer, Request
    from penstock.raft.states import State


class Core:
    """Holds the shared state of the Raft machine. `now` is the time of the current step."""

    def __init__(
        self,
        config: RaftConfig,
        me: Voter,
        random: Random,
        log: LogView,
        voters: VoterHistory,
        state: State,
        bootstrap: tuple[int, ...] = (),
        now_ms: int = 0,
    ) -> None:
        self.config = config
        self.voter = me
        self.me: ReplicaKey = me.key
        self.random = random
        self.log = log
        self.voters = voters
        self.state: State = state
        #: Nodes that an observer asks while its log names no voters.
        self.bootstrap = bootstrap
        self.peers = Peers(config)
        self.high_watermark = log.snapshot.offset if log.snapshot else log.start_offset
        self.saved = _quorum_state(state)
        self.stopping = False
        #: The snapshot being installed. The files are changing, so the replica neither fetches nor asks for votes
        #: meanwhile.
        self.installing: OffsetAndEpoch | None = None
        self.now = now_ms
        #: Total by which requests have raised the epoch since the start; `claims.highest_epoch` limits it.
        self.epochs_by_request = 0
        self.started_ms = now_ms
        self.effects: list[Effect] = []

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def is_voter(self) -> bool:
        return self.voters.latest.has(self.me)

    @property
    def is_electable(self) -> bool:
        """Returns True if this replica may stand for election: it is in the latest committed set of voters or in a
        later set.

        A replica stays electable until its removal is committed. A leader that removes itself and crashes may be the
        only replica with the record of the removal; it must then lead again to commit the record.
        """
        return any(voters.has(self.me) for voters in self.voters.since(self.high_watermark))

    # --- transitions ------------------------------------------------------------------------------------

    def become(self, state: State) -> None:
        old = self.state
        check(state.name in TRANSITIONS[old.name], f"no transition leads from {old.name} to {state.name}")
        check(state.epoch >= old.epoch, "an epoch never decreases")
        check(state.epoch <= MAX_EPOCH, "an epoch and its successor fit into 32 bits")
        check(self.is_electable or state.name not in VOTERS_ONLY, "only a voter asks for votes or leads")
        if isinstance(old, Leader):
            self._refuse_waiting(old)
        self.state = state
        self.peers.forget()
        self._save()
        self.effects.append(RoleChanged(state.name, state.epoch, state.leader_id))

    def _save(self) -> None:
        """Emits the effect SaveState if the vote, the epoch or the leader changed. `Raft` holds back later effects
        until the state is on disk."""
        wanted = _quorum_state(self.state)
        if wanted != self.saved:
            self.saved = wanted
            self.effects.append(SaveState(wanted))

    def _refuse_waiting(self, leader: Leader) -> None:
        """Answers the parked fetches and the pending change of voters with NOT_LEADER_OR_FOLLOWER."""
        for ticket in leader.parked:
            self.reply(ticket, FetchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader.epoch, NO_NODE))
        if leader.change is not None:
            message = (
                "The leader changed before the change of voters was committed. "
                "Describe the quorum, and retry if needed."
            )
            self.reply(
                leader.change.ticket, VoterAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader.epoch, NO_NODE, message)
            )

    def become_unattached(self, epoch: int, voted: ReplicaKey | None = None) -> None:
        """Makes this replica unattached in `epoch`. A replica that was already unattached keeps its election deadline,
        unless it votes now: a new epoch alone does not extend the deadline."""
        state = self.state
        waiting = isinstance(state, Unattached) and voted is None
        if voted is None and epoch == state.epoch:
            voted = state.voted  # a replica votes at most once per epoch
        deadline = state.deadline_ms if waiting and isinstance(state, Unattached) else self.election_deadline()
        self.become(Unattached(epoch, deadline if self.is_electable else self.now, voted))

    def become_follower(self, epoch: int, leader_id: int) -> None:
        check(leader_id != self.me.node_id, "a replica does not follow itself")
        voted = self.state.voted if self.state.epoch == epoch else None
        self.become(Follower(epoch, leader_id, self.now + self.config.fetch_timeout_ms, voted))

    def learn(self, epoch: int, leader_id: int) -> bool:
        """Adopts the epoch and the leader that a message names. Returns True if the role changed."""
        state = self.state
        if epoch < state.epoch:
            return False
        known = leader_id >= 0 and leader_id != self.me.node_id
        if epoch > state.epoch:
            if known:
                self.become_follower(epoch, leader_id)
            else:
                self.become_unattached(epoch)
            return True
        if not known or isinstance(state, Leader | Resigned) or state.leader_id == leader_id:
            return False  # nothing new; a prospective replica already knows this leader, and suspects it
        if isinstance(state, Follower) and state.has_fetched:
            return False  # this replica has fetched from another leader of this epoch
        self.become_follower(epoch, leader_id)
        return True

    def election_deadline(self) -> int:
        timeout = self.config.election_timeout_ms
        return self.now + timeout + self.random.randrange(timeout)

    # --- effects ----------------------------------------------------------------------------------------

    def send(self, to: int, request: Request) -> None:
        self.effects.append(Send(self.peers.sent(to, request, self.now), to, request))

    def may_send(self, to: int, kind: type[Request]) -> bool:
        return self.peers.due_ms(to, kind, self.now) == self.now

    def reply(self, ticket: int, answer: Answer) -> None:
        self.effects.append(Reply(ticket, answer))

    def advance_high_watermark(self, offset: int) -> bool:
        if offset <= self.high_watermark:
            return False
        check(offset <= self.log.end_offset, "the high watermark does not pass the end of the log")
        self.high_watermark = offset
        self.effects.append(Committed(offset))
        return True


def _quorum_state(state: State) -> QuorumState:
    """Returns the state to save. A resigned leader is saved as leader, because after a restart it must not lead this
    epoch again.
    """
    leader_id = state.led_by if isinstance(state, Resigned) else state.leader_id
    return QuorumState(state.epoch, leader_id, state.voted)
