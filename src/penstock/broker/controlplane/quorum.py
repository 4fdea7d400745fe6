"""Drives the metadata quorum: passes events to `raft` and carries out the effects on disk and network.

The event loop handles one event at a time: `raft` takes the event and returns effects, and the effects are carried out
in order before the next event. A vote is written synchronously, because it must be on disk before any later effect
runs. The log is flushed in a thread, and all waiting appends share one flush. Each request to a peer runs in a task.
Fetches use a separate connection, because the leader parks them.
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
from penstock.broker.events import Observer, log_event
from penstock.broker.events.kinds import MetadataTruncated
from penstock.broker.events.quorum_changes import QuorumChanges
from penstock.broker.tasks import Tasks
from penstock.check import InvariantError, check
from penstock.client.credentials import NO_CREDENTIALS, Credentials
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
    StepDown,
    Tick,
    Truncate,
    WriteSnapshot,
)
from penstock.raft.machine import NEVER, Raft
from penstock.raft.states import Follower, Leader
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


class QuorumListener(Protocol):
    """Defines the callbacks of the quorum: for committed records, role changes, snapshots and failures.

    The quorum calls them between two events of `raft`, in the order of the log.
    """

    def role_changed(self, role: str, epoch: int, leader_id: int) -> None: ...

    def failed(self, error: Exception) -> None: ...

    def committed(self, high_watermark: int) -> None: ...

    def snapshot_installed(self, snapshot: OffsetAndEpoch) -> None: ...

    def snapshot_damaged(self) -> None: ...


class Quorum:
    """Runs this node's replica of the metadata log as a member of the quorum.

    Call `start` first, `propose` while this node leads, and `close` to hand the leadership over and stop.
    """

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
        credentials: Credentials = NO_CREDENTIALS,
        listener: str | None = None,
    ) -> None:
        """Creates the quorum. `listener` is the name of the controllers' listener that this node connects to."""
        self.cluster_id = cluster_id
        self.me = me
        self._files = files
        self._random = random
        self._config = config
        self._observer = observer
        self._changes = QuorumChanges(me.node_id, observer, self._now_ms)
        self._listener: QuorumListener
        self._bootstrap = dict(bootstrap or {})
        self._peers = QuorumPeers(network, me, cluster_id, config, self._bootstrap, credentials, listener)
        self._listener_name = listener
        self._raft: Raft
        self._inbox: deque[Event] = deque()
        #: Calls of the listener that wait for the end of the current step.
        self._notifications: deque[Callable[[], None]] = deque()
        self._stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()
        self._flushing = False
        self._waiting: dict[int, tuple[Request, asyncio.Future[Any], str | None]] = {}
        self._next_ticket = 0
        self._next_proposal = 0
        self._refusals: dict[int, Refuse] = {}
        self._handed_over = asyncio.Event()
        self._failure: Exception | None = None
        self._closed = False
        #: True while an operator's request makes this node resign.
        self._steps_down = False
        #: Peers that answered INCONSISTENT_CLUSTER_ID: they belong to another cluster.
        self.other_cluster_peers: set[int] = set()

    def start(self, listener: QuorumListener) -> None:
        self._listener = listener
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

    # --- state and requests -----------------------------------------------------------------------------

    @property
    def leader_id(self) -> int:
        return self._raft.core.state.leader_id

    def address_of(self, node_id: int) -> tuple[str, int] | None:
        """Returns the address of another controller; None if unknown or for this node itself."""
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
        """Returns the voters according to the records before `end_offset`, for a snapshot that ends at this offset."""
        return self._raft.core.voters.before(end_offset).voters

    def describe(self) -> QuorumView:
        return describe(self._raft.core)

    def propose(self, epoch: int, batches: list[tuple[int, bytes]]) -> int:
        """Appends batches as leader of `epoch`, and returns the log's end offset.

        Each batch is a pair: its number of records and its bytes.

        Raises KafkaError if this node does not lead in this epoch or has left the quorum, and also if it resigns in the
        step that appends the batches: then the next leader decides whether they stay.
        """
        check(not self._stepping, "proposals are made between steps")
        self._next_proposal += 1
        self.step(Propose(self._next_proposal, epoch, tuple(batches)))
        if self._failure is not None or self._closed:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                "This node has left the quorum after a failure or stop: restart the node.",
            )
        refused = self._refusals.pop(self._next_proposal, None)
        if refused is not None and refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            known = refused.leader_id >= 0
            leader = f"Node {refused.leader_id} leads the quorum: send the request there."
            raise KafkaError(ErrorCode.NOT_CONTROLLER, leader if known else "The quorum has no leader: try again.")
        if refused is not None:
            raise KafkaError(
                refused.error, "Too many records of the metadata log are not committed yet: try again later."
            )
        if not self.is_leader:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER,
                "This node resigned as leader of the quorum before the records were committed: try again.",
            )
        return self._raft.core.log.end_offset

    def snapshot_taken(self, snapshot: OffsetAndEpoch, start_offset: int) -> None:
        self.step(SnapshotTaken(snapshot, start_offset))

    async def answer(self, message: Any, listener: str | None = None) -> Any:
        """Answers a request of a peer or a client. `listener` is the name of the listener that received the request.

        Raises KafkaError if the request is for another cluster, or if this node has left the quorum.
        """
        self._check_cluster(message)
        if self._closed or self._failure is not None:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE, "This node has left the quorum: send the request to another controller."
            )
        request = request_from_wire(message, self.me.key)
        self._next_ticket += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[self._next_ticket] = (request, future, listener)
        self.step(Received(self._next_ticket, request))
        endpoints = endpoints_in(message, self._listener_name)
        if self.leader_id in endpoints:  # `raft` has accepted the request's leader
            self._peers.learn({self.leader_id: endpoints[self.leader_id]})
        return await future

    def _check_cluster(self, message: Any) -> None:
        """Raises KafkaError if the request has the id of another cluster. Only clients may leave the cluster id out."""
        if message.cluster_id == self.cluster_id:
            return
        may_leave_out = isinstance(message, AddRaftVoterRequest | RemoveRaftVoterRequest) or (
            isinstance(message, FetchRequest) and max(message.replica_id, message.replica_state.replica_id) < 0
        )
        if message.cluster_id is None and may_leave_out:
            return
        named = "no cluster id" if message.cluster_id is None else f"cluster id {message.cluster_id}"
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"The request names {named}, but this is cluster {self.cluster_id}: check the controllers' addresses.",
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
        self._notify()
        self._set_timer()

    def _notify(self) -> None:
        """Calls the listener after the current event is handled, because the listener may cause further events."""
        while self._notifications and not self._stepping:
            try:
                self._notifications.popleft()()
            except Exception as error:
                self._fail(error)  # the listener could not use a committed record: this node must not go on without it

    def _set_timer(self) -> None:
        """Sets the timer to the next deadline of `raft`, unless the timer already fires earlier.

        Most events only postpone the deadline. To save work, the timer then stays as it is. When it fires too early, it
        is set again.
        """
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
                self._observer(MetadataTruncated(self._files.end_offset, offset))
                self._files.truncate(offset)
            case Send():
                self._tasks.start(self._ask(effect), "quorum")
            case Reply(ticket, answer):
                self._reply(ticket, answer)
            case Refuse(proposal):
                self._refusals[proposal] = effect
            case Committed(high_watermark):
                self._files.committed(high_watermark)
                self._notifications.append(lambda: self._listener.committed(high_watermark))
            case RoleChanged(role, epoch, leader_id):
                core = self._raft.core
                stopping = core.stopping or self._steps_down
                self._changes.role_changed(role, epoch, leader_id, stopping=stopping, is_voter=core.is_voter)
                self._notifications.append(lambda: self._listener.role_changed(role, epoch, leader_id))
            case WriteSnapshot(snapshot, position, data):
                self._files.write_snapshot(snapshot, position, data)
            case InstallSnapshot(snapshot):
                self._install(snapshot)
            case HandedOver():
                self._handed_over.set()

    def _install(self, snapshot: OffsetAndEpoch) -> None:
        """Installs the downloaded snapshot. Rejects a damaged snapshot, so that it is downloaded again."""
        try:
            voters = self._files.install_snapshot(snapshot)
        except DamagedSnapshotError as error:
            name = checkpoint_name(*snapshot)
            logger.error("snapshot %s of the leader arrived damaged and is fetched again: %s", name, error)
            self._inbox.append(SnapshotRejected(snapshot))
            return
        self._inbox.append(SnapshotInstalled(snapshot, voters))
        self._notifications.append(lambda: self._listener.snapshot_installed(snapshot))

    # --- disk -------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._tasks.start(self._flush_all(), "quorum")

    async def _flush_all(self) -> None:
        """Flushes the log until all of it is on disk. Records appended during a flush are covered by the next flush."""
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
        """Leaves the quorum after a disk error or an unexpected error.

        A replica whose files may be incomplete must not vote or lead.
        """
        if self._failure is None:
            self._failure = error
            # A failed disk needs no stack trace; an unexpected error does.
            expected = isinstance(error, OSError | KafkaError)
            stack = None if expected else error
            logger.critical("this node leaves the quorum until its restart: %s", error, exc_info=stack)
            self._stop_everything()
            self._listener.failed(error)

    # --- peers ------------------------------------------------------------------------------------------

    async def _ask(self, effect: Send) -> None:
        try:
            answer, from_known = await self._peers.ask(effect.to, self._raft.core.voters.latest, effect.request)
        except KafkaError as error:
            logger.debug("node %d did not answer %s: %s", effect.to, type(effect.request).__name__, error)
            if error.code is ErrorCode.INCONSISTENT_CLUSTER_ID:
                self.other_cluster_peers.add(effect.to)
            self.step(SendFailed(effect.send_id, closed=error.code is ErrorCode.NETWORK_EXCEPTION))
        else:
            self.other_cluster_peers.clear()
            self.step(Answered(effect.send_id, answer, from_known))

    def _reply(self, ticket: int, answer: Answer) -> None:
        request, future, listener = self._waiting.pop(ticket)
        answer, records = self._files.fill(answer, lambda: self._notifications.append(self._listener.snapshot_damaged))
        leader = self._raft.core.voters.latest.find(answer.leader_id)
        if answer.leader_id == self.me.node_id:
            leader = self.me
        if not future.done():
            named = None if leader is None else leader.preferring(listener)
            future.set_result(answer_to_wire(request, answer, records, named))

    @property
    def in_contact(self) -> bool:
        """Returns True while this node leads, or follows a leader that has answered a fetch in this epoch."""
        state = self._raft.core.state
        return isinstance(state, Leader) or (isinstance(state, Follower) and state.has_fetched)

    def step_down(self) -> None:
        """Resigns if this node leads. The voters then elect a leader, which may be this node again."""
        self._steps_down = True
        try:
            self.step(StepDown())
        finally:
            self._steps_down = False

    # --- stop -------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Hands the leadership over and stops. Waiting requests of peers fail with BROKER_NOT_AVAILABLE."""
        await self.hand_over()
        await self.abandon()

    async def hand_over(self) -> None:
        """Resigns and waits for a new leader. This incarnation of the node never leads again."""
        if self._failure is not None or self._closed:
            return
        self.step(Resign())
        try:
            async with asyncio.timeout(HAND_OVER_SECONDS):
                await self._handed_over.wait()
        except TimeoutError:
            logger.warning("no other voter took over the quorum's leadership within %.0f s", HAND_OVER_SECONDS)

    async def abandon(self) -> None:
        """Stops as in a crash: the leadership is not handed over."""
        self._stop_everything()
        await self._tasks.ended()

    def _stop_everything(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._peers.close()
        self._tasks.cancel()
        for _, future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(
                    KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "This node is stopping: try another node.")
                )
        self._waiting.clear()
