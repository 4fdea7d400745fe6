"""The metadata quorum with real disks and peers: carries out what `raft` decides.

One step at a time, on the loop: an event goes in, its effects are done in order, the next event follows. The vote is
written on the spot, because nothing may happen before it is on disk; the log is flushed in a thread, shared by all that
wait. Requests to peers are tasks: fetches have a connection of their own, for they wait long at the other end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from penstock.broker.controlplane.quorum_files import DamagedSnapshotError, QuorumFiles
from penstock.broker.controlplane.quorum_peers import QuorumPeers
from penstock.broker.events import Observer, QuorumRoleChanged, log_event
from penstock.broker.tasks import Tasks
from penstock.check import InvariantError, check
from penstock.metadata.checkpoint import checkpoint_name
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_01_fetch import FetchRequest
from penstock.protocol.messages.api_80_add_raft_voter import AddRaftVoterRequest
from penstock.protocol.messages.api_81_remove_raft_voter import RemoveRaftVoterRequest
from penstock.protocol.vocabulary import NO_NODE
from penstock.raft.describe import QuorumView, describe
from penstock.raft.events import (
    Answered,
    Append,
    Committed,
    Effect,
    Event,
    HandedOver,
    InstallSnapshot,
    LogFlushed,
    Propose,
    Received,
    Refuse,
    Reply,
    Resign,
    RoleChanged,
    SaveState,
    Send,
    SendFailed,
    SnapshotInstalled,
    SnapshotRejected,
    SnapshotTaken,
    StateSaved,
    Tick,
    Truncate,
    WriteSnapshot,
)
from penstock.raft.machine import NEVER, Raft
from penstock.raft.states import Leader
from penstock.raft.wire_answers import answer_to_wire, endpoints_in
from penstock.raft.wire_requests import request_from_wire

if TYPE_CHECKING:
    from random import Random

    from penstock.net.network import Network
    from penstock.raft.config import RaftConfig
    from penstock.raft.log_view import OffsetAndEpoch
    from penstock.raft.messages import Answer, Request
    from penstock.raft.voters import Voter

logger = logging.getLogger(__name__)

HAND_OVER_SECONDS = 2.0


class Follower(Protocol):
    """Who uses what is committed. Called between steps, in the order of the log."""

    def role_changed(self, role: str, epoch: int, leader_id: int) -> None: ...

    def failed(self, error: Exception) -> None: ...

    def committed(self, high_watermark: int) -> None: ...

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None: ...

    def snapshot_damaged(self) -> None: ...


class Quorum:
    """`start()`, then `propose` where this node leads, and `answer` for what peers ask; `close()` hands over."""

    def __init__(
        self,
        files: QuorumFiles,
        network: Network,
        random: Random,
        me: Voter,
        *,
        cluster_id: str,
        config: RaftConfig,
        bootstrap: Mapping[int, tuple[str, int]] | None = None,
        observer: Observer = log_event,
    ) -> None:
        self.cluster_id = cluster_id
        self.me = me
        self._files = files
        self._random = random
        self._config = config
        self._observer = observer
        self._follower: Follower
        self._bootstrap = dict(bootstrap or {})
        self._peers = QuorumPeers(network, me, cluster_id, config, self._bootstrap)
        self._raft: Raft
        self._inbox: deque[Event] = deque()
        self._news: deque[Callable[[], None]] = deque()
        self._stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()
        self._flushing = False
        self._waiting: dict[int, tuple[Request, asyncio.Future[Any]]] = {}
        self._next_ticket = 0
        self._next_proposal = 0
        self._refusals: dict[int, Refuse] = {}
        self._handed_over = asyncio.Event()
        self._failure: Exception | None = None
        self._closed = False
        #: Peers that say they are another cluster.
        self.strangers: set[int] = set()

    def start(self, follower: Follower) -> None:
        self._follower = follower
        state = self._files.read_state()
        view, voters = self._files.view()
        self._raft = Raft(
            replace(self._config, dynamic_voters=self._config.dynamic_voters or self._files.has_voters),
            self.me,
            random=self._random,
            log=view,
            voters=voters,
            saved=state,
            bootstrap=tuple(self._bootstrap),
            now_ms=self._now_ms(),
        )
        self.step(Tick())

    @staticmethod
    def _now_ms() -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    # --- what others ask --------------------------------------------------------------------------------

    @property
    def leader_id(self) -> int:
        return self._raft.core.state.leader_id

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Where a controller listens, as far as anybody has said."""
        if node_id in (NO_NODE, self.me.node_id):
            return None
        return self._peers.address_of(node_id, self._raft.core.voters.latest)

    @property
    def epoch(self) -> int:
        return self._raft.core.epoch

    @property
    def is_leader(self) -> bool:
        return isinstance(self._raft.core.state, Leader)

    @property
    def high_watermark(self) -> int:
        return self._raft.core.high_watermark

    def voters_before(self, end_offset: int) -> tuple[Voter, ...]:
        """For a snapshot that ends there."""
        return self._raft.core.voters.before(end_offset).voters

    def describe(self) -> QuorumView:
        return describe(self._raft.core)

    def propose(self, epoch: int, batches: list[tuple[int, bytes]]) -> int:
        """Append batches (number of records, bytes) as leader of `epoch`. Returns the end offset; raises KafkaError."""
        check(not self._stepping, "proposals are made between steps")
        self._next_proposal += 1
        self.step(Propose(self._next_proposal, epoch, tuple(batches)))
        if self._failure is not None or self._closed:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "This node takes no part in the quorum: restart it.")
        refused = self._refusals.pop(self._next_proposal, None)
        if refused is not None:
            code = ErrorCode.NOT_CONTROLLER if refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER else refused.error
            raise KafkaError(code, f"Node {refused.leader_id} leads the quorum: ask it.")
        return self._raft.core.log.end_offset

    def snapshot_taken(self, snapshot: OffsetAndEpoch, start_offset: int) -> None:
        self.step(SnapshotTaken(snapshot, start_offset))

    async def answer(self, message: Any) -> Any:
        """Kafka's answer to a peer's or a client's request. Raises KafkaError for one that can't be meant for us."""
        self._check_cluster(message)
        if self._closed or self._failure is not None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "This node takes no part in the quorum any more.")
        request = request_from_wire(message, self.me.key)
        self._next_ticket += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._next_ticket] = (request, future)
        self.step(Received(self._next_ticket, request))
        endpoints = endpoints_in(message)
        if self.leader_id in endpoints:  # of a leader that was believed
            self._peers.learn({self.leader_id: endpoints[self.leader_id]})
        return await future

    def _check_cluster(self, message: Any) -> None:
        """Replicas always name their cluster. Administrators and readers that are no replica may leave it out."""
        if message.cluster_id == self.cluster_id:
            return
        may_leave_out = isinstance(message, AddRaftVoterRequest | RemoveRaftVoterRequest) or (
            isinstance(message, FetchRequest) and max(message.replica_id, message.replica_state.replica_id) < 0
        )
        if message.cluster_id is None and may_leave_out:
            return
        named = f"{message.cluster_id} is another one" if message.cluster_id is not None else "the request names none"
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID, f"This is cluster {self.cluster_id}: {named}, check the addresses."
        )

    # --- steps ------------------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        if self._failure is not None or self._closed:
            return
        self._inbox.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inbox:
                for effect in self._raft.step(self._inbox.popleft(), self._now_ms()):
                    self._carry_out(effect)
        except (OSError, KafkaError, InvariantError) as error:
            self._fail(error)
        finally:
            self._stepping = False
        self._tell()
        self._set_timer()

    def _tell(self) -> None:
        """What callers do with the news may lead to more steps, so it comes after the one that made them."""
        while self._news and not self._stepping:
            try:
                self._news.popleft()()
            except Exception as error:
                self._fail(error)  # what is committed can't be used: this node must not go on as if it were

    def _set_timer(self) -> None:
        """Most steps move the deadline away: a timer that is early finds nothing to do and is set again."""
        deadline_ms = self._raft.deadline()
        if deadline_ms >= NEVER or self._failure is not None or self._closed:
            return
        when = (deadline_ms + 1) / 1000
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._raft.deadline() <= self._now_ms():
            self.step(Tick())
        else:
            self._set_timer()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SaveState(state):
                self._files.save_state(state)
                self._inbox.append(StateSaved())
            case Append(batches):
                self._files.append(batches, self._raft.core.epoch)
                self._flush()
            case Truncate(offset):
                logger.info("the metadata log is cut at offset %d, where the leader's differs", offset)
                self._files.truncate(offset)
            case Send():
                self._tasks.start(self._ask(effect), "quorum")
            case Reply(ticket, answer):
                self._reply(ticket, answer)
            case Refuse(proposal):
                self._refusals[proposal] = effect
            case Committed(high_watermark):
                self._files.committed(high_watermark)
                self._news.append(lambda: self._follower.committed(high_watermark))
            case RoleChanged(role, epoch, leader_id):
                self._observer(QuorumRoleChanged(self.me.node_id, role, epoch, leader_id))
                self._news.append(lambda: self._follower.role_changed(role, epoch, leader_id))
            case WriteSnapshot(snapshot, position, data):
                self._files.write_snapshot(snapshot, position, data)
            case InstallSnapshot(snapshot):
                self._install(snapshot)
            case HandedOver():
                self._handed_over.set()

    def _install(self, snapshot: OffsetAndEpoch) -> None:
        """What is wrong with the leader's disk, or with the way here, is no reason to leave the quorum."""
        try:
            voters = self._files.install_snapshot(snapshot)
        except DamagedSnapshotError as error:
            logger.error("the leader's snapshot %s is damaged and fetched again: %s", checkpoint_name(*snapshot), error)
            self._inbox.append(SnapshotRejected(snapshot))
            return
        self._inbox.append(SnapshotInstalled(snapshot, voters))
        self._news.append(lambda: self._follower.snapshot_installed(snapshot))

    # --- disk -------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._tasks.start(self._flush_all(), "quorum")

    async def _flush_all(self) -> None:
        """One at a time; what is appended meanwhile is covered by the next."""
        try:
            while True:
                await self._files.flush()
                self.step(LogFlushed(self._files.flushed_offset))
                if self._files.flushed_offset >= self._files.end_offset:
                    return
        except KafkaError as error:
            self._fail(error)
        finally:
            self._flushing = False

    def _fail(self, error: Exception) -> None:
        """A replica that doesn't know what its disk has must not vote or lead: it falls silent."""
        if self._failure is None:
            self._failure = error
            # A disk that fails is no riddle: only what nobody expected comes with its stack.
            expected = isinstance(error, OSError | KafkaError)
            logger.critical("this node leaves the quorum: %s", error, exc_info=None if expected else error)
            self._stop_everything()
            self._follower.failed(error)

    # --- peers ------------------------------------------------------------------------------------------

    async def _ask(self, effect: Send) -> None:
        try:
            answer, from_known = await self._peers.ask(effect.to, self._raft.core.voters.latest, effect.request)
        except KafkaError as error:
            logger.debug("node %d doesn't answer %s: %s", effect.to, type(effect.request).__name__, error)
            if error.code is ErrorCode.INCONSISTENT_CLUSTER_ID:
                self.strangers.add(effect.to)
            self.step(SendFailed(effect.send_id, closed=error.code is ErrorCode.NETWORK_EXCEPTION))
        else:
            self.strangers.clear()
            self.step(Answered(effect.send_id, answer, from_known))

    def _reply(self, ticket: int, answer: Answer) -> None:
        request, future = self._waiting.pop(ticket)
        answer, records = self._files.fill(answer, lambda: self._news.append(self._follower.snapshot_damaged))
        leader = self._raft.core.voters.latest.find(answer.leader_id)
        if answer.leader_id == self.me.node_id:
            leader = self.me
        if not future.done():
            future.set_result(answer_to_wire(request, answer, records, leader))

    # --- the end ----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Hand the leadership over, then stop. What others asked is left unanswered: their connections close."""
        await self.hand_over()
        await self.abandon()

    async def hand_over(self) -> None:
        """Lead no more, and never again in this life."""
        if self._failure is not None or self._closed:
            return
        self.step(Resign())
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self._handed_over.wait()
        except TimeoutError:
            logger.warning("the leadership of the quorum could not be handed over in time")

    async def abandon(self) -> None:
        """Stop as a crash does."""
        self._stop_everything()
        await self._tasks.ended()

    def _stop_everything(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._peers.close()
        self._tasks.cancel()
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "This node is stopping."))
        self._waiting.clear()
