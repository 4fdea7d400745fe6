"""What the parts of the machine share: its state, its log, its voters, and the effects of the step under way."""

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
    """`now` is that of the step under way."""

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
        #: Whom an observer asks while its log names nobody.
        self.bootstrap = bootstrap
        self.peers = Peers(config)
        self.high_watermark = log.snapshot.offset if log.snapshot else log.start_offset
        self.saved = _quorum_state(state)
        self.stopping = False
        #: The files are being changed under the view: until that is over, nothing is fetched and no vote asked for.
        self.installing: OffsetAndEpoch | None = None
        self.now = now_ms
        #: By how much requests have raised the epoch since the start; `claims` says how far they may.
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
        """A set of voters that is not known to be committed doesn't end the duty of those that it leaves out.

        A leader that removed itself and died may have the only log that says so: it must lead once more to commit it.
        """
        return any(voters.has(self.me) for voters in self.voters.since(self.high_watermark))

    # --- transitions ------------------------------------------------------------------------------------

    def become(self, state: State) -> None:
        old = self.state
        check(state.name in TRANSITIONS[old.name], f"{old.name} does not become {state.name}")
        check(state.epoch >= old.epoch, "epochs never go back")
        check(state.epoch <= MAX_EPOCH, "every epoch can be written down, and the one after it")
        check(self.is_electable or state.name not in VOTERS_ONLY, "only a voter stands for election")
        if isinstance(old, Leader):
            self._dismiss(old)
        self.state = state
        self.peers.forget()
        self._save()
        self.effects.append(RoleChanged(state.name, state.epoch, state.leader_id))

    def _save(self) -> None:
        """What was just decided is on disk before anybody hears of it: `Raft` keeps the effects behind it back."""
        wanted = _quorum_state(self.state)
        if wanted != self.saved:
            self.saved = wanted
            self.effects.append(SaveState(wanted))

    def _dismiss(self, leader: Leader) -> None:
        """Nobody who waits for this leader gets anything from it any more."""
        for ticket in leader.parked:
            self.reply(ticket, FetchAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader.epoch, NO_NODE))
        if leader.change is not None:
            message = "The leader changed meanwhile: look at the voters, and ask again if need be."
            self.reply(
                leader.change.ticket, VoterAnswer(ErrorCode.NOT_LEADER_OR_FOLLOWER, leader.epoch, NO_NODE, message)
            )

    def become_unattached(self, epoch: int, voted: ReplicaKey | None = None) -> None:
        """Whoever was waiting for its election timeout goes on waiting: an epoch heard of is no reason to wait anew."""
        state = self.state
        waiting = isinstance(state, Unattached) and voted is None
        if voted is None and epoch == state.epoch:
            voted = state.voted  # a vote is given once an epoch, whatever happens next
        deadline = state.deadline_ms if waiting and isinstance(state, Unattached) else self.election_deadline()
        self.become(Unattached(epoch, deadline if self.is_electable else self.now, voted))

    def become_follower(self, epoch: int, leader_id: int) -> None:
        check(leader_id != self.me.node_id, "nobody follows itself")
        voted = self.state.voted if self.state.epoch == epoch else None
        self.become(Follower(epoch, leader_id, self.now + self.config.fetch_timeout_ms, voted))

    def learn(self, epoch: int, leader_id: int) -> bool:
        """A message names an epoch and a leader. True if that changed this replica's mind."""
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
            return False  # nothing new; a prospective replica already knows this leader, and doubts it
        if isinstance(state, Follower) and state.has_fetched:
            return False  # an epoch has one leader, and this replica has fetched from it
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
        check(offset <= self.log.end_offset, "only what is in the log can be committed")
        self.high_watermark = offset
        self.effects.append(Committed(offset))
        return True


def _quorum_state(state: State) -> QuorumState:
    """A leader that resigned has still led its epoch: its next life must not do so again."""
    leader_id = state.led_by if isinstance(state, Resigned) else state.leader_id
    return QuorumState(state.epoch, leader_id, state.voted)
