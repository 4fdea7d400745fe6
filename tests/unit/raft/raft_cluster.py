"""Simulates a cluster of Raft machines, with disks and a network in plain lists, and checks invariants after every
step.

A disk keeps saved and flushed data; a crash loses all other data. The network is a list of messages that stay until
they are delivered or dropped. Saves, flushes and snapshot installs are done at once, or wait in `todo` to be done
later.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.check import check
from penstock.protocol.errors import ErrorCode
from penstock.raft.config import RaftConfig
from penstock.raft.events import (
    Answered,
    Append,
    Committed,
    Effect,
    Event,
    HandedOver,
    InstallSnapshot,
    LeaderChange,
    LogFlushed,
    Propose,
    QuorumState,
    Received,
    Refuse,
    Reply,
    Resign,
    RoleChanged,
    SaveState,
    Send,
    SendFailed,
    SnapshotInstalled,
    SnapshotTaken,
    StateSaved,
    Tick,
    Truncate,
    VotersChange,
    WriteSnapshot,
)
from penstock.raft.log_view import Batch, LogView, OffsetAndEpoch
from penstock.raft.machine import Raft
from penstock.raft.messages import Answer, FetchAnswer, Request, SnapshotChunk
from penstock.raft.voters import Voter, VoterHistory, VoterSet

CLIENT = 0
CHUNK_BYTES = 8


def directory(node_id: int) -> bytes:
    return node_id.to_bytes(16, "big")


def voter(node_id: int) -> Voter:
    return Voter(node_id, directory(node_id))


@dataclass
class Snapshot:
    id: OffsetAndEpoch
    voters: VoterSet
    data: bytes


@dataclass
class StoredLog:
    """Holds a log on disk. `written` has every appended batch; batches below the offset `flushed` survive a crash."""

    start_offset: int = 0
    flushed: int = 0
    written: list[Batch] = field(default_factory=list)

    @property
    def end_offset(self) -> int:
        return self.written[-1].last_offset + 1 if self.written else self.start_offset

    def truncate_to(self, offset: int) -> None:
        self.written = [batch for batch in self.written if batch.last_offset < offset]
        check(self.end_offset == offset, "a truncation ends between batches")
        self.flushed = min(self.flushed, offset)

    def epochs(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for batch in self.written:
            if not found or batch.epoch > found[-1][0]:
                found.append((batch.epoch, batch.base_offset))
        return found


@dataclass
class Message:
    source: int
    target: int
    body: Request | Answer
    #: The sender's number of a request; an answer repeats it.
    send_id: int
    #: The incarnation of the requesting node.
    life: int

    @property
    def is_request(self) -> bool:
        return hasattr(self.body, "error") is False


@dataclass
class Member:
    """Holds a node: its Raft machine while the node runs, and its disk."""

    id: int
    raft: Raft | None = None
    life: int = 0
    state: QuorumState = field(default_factory=QuorumState)
    log: StoredLog = field(default_factory=StoredLog)
    snapshot: Snapshot | None = None
    partial: bytearray = field(default_factory=bytearray)
    high_watermark: int = 0
    todo: list[tuple[str, Callable[[], None]]] = field(default_factory=list)
    inbox: deque[Event] = field(default_factory=deque)
    busy: bool = False

    @property
    def running(self) -> Raft:
        assert self.raft is not None
        return self.raft


class Cluster:
    #: Batches in one answer to a fetch.
    max_fetch_batches = 100
    keep_votes = True

    def __init__(self, voters: list[int], *, seed: int = 0, config: RaftConfig | None = None) -> None:
        self.config = config or RaftConfig()
        self.random = random.Random(seed)
        self.now = 0
        self.initial = VoterSet.of(voter(node_id) for node_id in voters)
        self.members: dict[int, Member] = {}
        self.network: list[Message] = []
        self.cuts: set[tuple[int, int]] = set()
        self.tickets: dict[int, Message] = {}
        self.next_ticket = 0
        #: Nodes whose writes wait in `todo`.
        self.manual_saves: set[int] = set()
        self.manual_flushes: set[int] = set()
        self.on_event: Callable[[str], None] = lambda line: None
        self.checker = Checker()
        for node_id in voters:
            self.add_member(node_id)

    def add_member(self, node_id: int) -> None:
        self.members[node_id] = Member(node_id)
        self.start(node_id)

    # --- starts and crashes -----------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        member = self.members[node_id]
        log, snapshot = member.log, member.snapshot
        history = VoterHistory(self.initial)
        if snapshot is not None:
            history = VoterHistory(snapshot.voters, snapshot.id.offset - 1)
        for batch in log.written:
            if batch.voters is not None and batch.last_offset > history.latest_offset:
                history.record(batch.last_offset, batch.voters)
        view = LogView(
            start_offset=log.start_offset,
            end_offset=log.end_offset,
            epochs=log.epochs(),
            snapshot=snapshot.id if snapshot else None,
        )
        member.life += 1
        member.high_watermark = snapshot.id.offset if snapshot else log.start_offset
        member.raft = Raft(
            self.config,
            voter(node_id),
            random=random.Random(self.random.random()),
            log=view,
            voters=history,
            saved=member.state,
            now_ms=self.now,
        )
        self.step(node_id, Tick())

    def crash(self, node_id: int, lucky_batches: int = 0) -> None:
        """Drops unflushed data, except for `lucky_batches`. Messages sent to the node stay and reach its next
        incarnation."""
        member = self.members[node_id]
        member.raft = None
        member.todo.clear()
        member.partial.clear()
        log = member.log
        safe = [batch for batch in log.written if batch.last_offset < log.flushed]
        log.written = log.written[: len(safe) + lucky_batches]
        log.flushed = log.end_offset
        if not self.keep_votes:
            member.state = replace(member.state, voted=None)

    # --- steps ------------------------------------------------------------------------------------------

    def step(self, node_id: int, event: Event) -> None:
        """Passes one event, and carries out all its effects before the next event."""
        member = self.members[node_id]
        member.inbox.append(event)
        if member.busy:
            return
        member.busy = True
        try:
            while member.inbox and member.raft is not None:
                for effect in member.raft.step(member.inbox.popleft(), self.now):
                    self._carry_out(member, effect)
        finally:
            member.busy = False
            member.inbox.clear()

    def tick(self, node_id: int) -> None:
        member = self.members[node_id]
        if member.raft is not None and member.raft.deadline() <= self.now:
            self.step(node_id, Tick())
            require(member.raft.deadline() > self.now, f"node {node_id} asks for a tick that does nothing")

    def propose(self, node_id: int, *contents: str) -> None:
        member = self.members[node_id]
        epoch = member.running.core.epoch
        self.step(node_id, Propose(0, epoch, tuple((1, content) for content in contents)))

    def resign(self, node_id: int) -> None:
        self.step(node_id, Resign())

    def ask(self, node_id: int, request: Request) -> None:
        """Sends a request as a client."""
        self.next_ticket += 1
        self.tickets[self.next_ticket] = Message(CLIENT, node_id, request, 0, 0)
        self.step(node_id, Received(self.next_ticket, request))

    def take_snapshot(self, node_id: int) -> None:
        """Takes a snapshot of the committed records, and deletes the batches that it contains from the log."""
        member = self.members[node_id]
        log, core = member.log, member.running.core
        end = member.high_watermark
        if end <= log.start_offset:
            return
        epoch = next(batch.epoch for batch in reversed(log.written) if batch.last_offset < end)
        snapshot_id = OffsetAndEpoch(end, epoch)
        member.snapshot = Snapshot(snapshot_id, core.voters.before(end), self.checker.snapshot_data(end))
        log.start_offset = end
        log.written = [batch for batch in log.written if batch.last_offset >= end]
        log.flushed = max(log.flushed, end)
        self.step(node_id, SnapshotTaken(snapshot_id, end))

    # --- effects ----------------------------------------------------------------------------------------

    def _carry_out(self, member: Member, effect: Effect) -> None:
        match effect:
            case SaveState(state):
                self._later(member, "save", self.manual_saves, lambda: self._save(member, state))
            case Append(batches):
                for batch in batches:
                    check(batch.base_offset == member.log.end_offset, "a log has no gaps")
                    self.checker.appended(member, batch)
                    member.log.written.append(batch)
                end = member.log.end_offset
                self._later(member, "flush", self.manual_flushes, lambda: self._flush(member, end))
            case Truncate(offset):
                member.log.truncate_to(offset)
                self.on_event(f"n{member.id} cuts its log at {offset}")
            case Send(send_id, to, request):
                self._post(Message(member.id, to, request, send_id, member.life))
            case Reply(ticket, answer):
                self._reply(member, ticket, answer)
            case Refuse(_, error, leader_id):
                self.on_event(f"n{member.id} refuses the proposal: {error.name}, leader {leader_id}")
            case Committed(high_watermark):
                self.checker.committed(self, member, high_watermark)
                member.high_watermark = high_watermark
                self.on_event(f"n{member.id} commits up to {high_watermark}")
            case RoleChanged(role, epoch, leader_id):
                self.checker.changed_role(member, role, epoch)
                led = f", leader {leader_id}" if role in ("follower", "prospective") and leader_id >= 0 else ""
                self.on_event(f"n{member.id} is {role} in epoch {epoch}{led}")
            case WriteSnapshot(_, position, data):
                del member.partial[position:]
                check(len(member.partial) == position, "a snapshot has no gaps")
                member.partial += data
            case InstallSnapshot(snapshot_id):
                self._later(member, "install", self.manual_flushes, lambda: self._install(member, snapshot_id))
            case HandedOver():
                self.on_event(f"n{member.id} has handed over")

    def _later(self, member: Member, what: str, manual: set[int], do: Callable[[], None]) -> None:
        if member.id in manual:
            member.todo.append((what, do))
        else:
            do()

    def _save(self, member: Member, state: QuorumState) -> None:
        voted = state.voted
        if voted is not None and voted != member.state.voted and voted.node_id != member.id:
            self.on_event(f"n{member.id} has its vote for {voted.node_id} in epoch {state.epoch} on disk")
        member.state = state
        self.step(member.id, StateSaved())

    def _flush(self, member: Member, end: int) -> None:
        member.log.flushed = max(member.log.flushed, end)
        self.step(member.id, LogFlushed(end))

    def _install(self, member: Member, snapshot_id: OffsetAndEpoch) -> None:
        voters = self.checker.voters_of_snapshot(self, snapshot_id)
        member.snapshot = Snapshot(snapshot_id, voters, bytes(member.partial))
        check(
            member.partial == self.checker.snapshot_data(snapshot_id.offset), "a fetched snapshot equals the leader's"
        )
        member.log = StoredLog(snapshot_id.offset, snapshot_id.offset)
        self.on_event(f"n{member.id} installs snapshot {snapshot_id.offset}@{snapshot_id.epoch}")
        self.step(member.id, SnapshotInstalled(snapshot_id, voters))

    # --- the network ------------------------------------------------------------------------------------

    def _post(self, message: Message) -> None:
        if (message.source, message.target) not in self.cuts:
            self.network.append(message)

    def _reply(self, member: Member, ticket: int, answer: Answer) -> None:
        asked = self.tickets.pop(ticket)
        if isinstance(answer, FetchAnswer) and answer.read_from is not None:
            batches = tuple(batch for batch in member.log.written if batch.base_offset >= answer.read_from)
            answer = replace(answer, batches=batches[: self.max_fetch_batches], read_from=None)
        elif isinstance(answer, SnapshotChunk) and answer.snapshot is not None:
            answer = _filled(answer, member.snapshot)
        if asked.source == CLIENT:
            self.on_event(f"n{member.id} answers the client: {_outcome(answer)}")
        else:
            self._post(Message(member.id, asked.source, answer, asked.send_id, asked.life))

    def deliver(self, message: Message) -> None:
        """Delivers a message once; it stays in the network, so that it can be delivered again."""
        if isinstance(message.body, Request):
            self.next_ticket += 1
            self.tickets[self.next_ticket] = message
            self.step(message.target, Received(self.next_ticket, message.body))
        elif self.members[message.target].life == message.life:
            self.step(message.target, Answered(message.send_id, message.body))

    def fail(self, message: Message) -> None:
        """Breaks the sender's connection before the request is answered."""
        if self.members[message.source].life == message.life:
            self.step(message.source, SendFailed(message.send_id, closed=True))


def _filled(answer: SnapshotChunk, snapshot: Snapshot | None) -> SnapshotChunk:
    if snapshot is None or snapshot.id != answer.snapshot:
        return replace(answer, error=ErrorCode.SNAPSHOT_NOT_FOUND)
    data = snapshot.data[answer.position : answer.position + min(answer.max_bytes, CHUNK_BYTES)]
    return replace(answer, size=len(snapshot.data), data=data)


def _outcome(answer: Any) -> str:
    return f"{answer.error.name}" + (f" ({answer.message})" if answer.message else "")


class ViolationError(AssertionError):
    """Raised if an invariant of Raft is violated."""


def require(condition: object, message: str) -> None:
    if not condition:
        raise ViolationError(message)


class Checker:
    """Records every batch that any node wrote or committed, and compares later writes with it."""

    def __init__(self) -> None:
        self.leaders: dict[int, int] = {}
        self.batches: dict[tuple[int, int], tuple[Batch, tuple[int, int] | None]] = {}
        self.history: list[Batch] = []  # committed, in order

    @property
    def high_watermark(self) -> int:
        return self.history[-1].last_offset + 1 if self.history else 0

    def changed_role(self, member: Member, role: str, epoch: int) -> None:
        if role != "leader":
            return
        require(self.leaders.setdefault(epoch, member.id) == member.id, f"epoch {epoch} has two leaders")
        require(member.log.end_offset >= self.high_watermark, f"leader {member.id} lacks committed records")
        self.compare(member, self.high_watermark)

    def appended(self, member: Member, batch: Batch) -> None:
        """Checks log matching: the same offset and epoch mean the same batch and the same batch before it."""
        log = member.log
        before: tuple[int, int] | None = None
        if log.written:
            before = (log.written[-1].base_offset, log.written[-1].epoch)
        elif log.start_offset:
            return  # the batch before is in a snapshot
        known, known_before = self.batches.setdefault((batch.base_offset, batch.epoch), (batch, before))
        require(known.content == batch.content, f"two batches are at offset {batch.base_offset} of one epoch")
        require(known_before == before, f"logs differ before offset {batch.base_offset}")

    def committed(self, cluster: Cluster, member: Member, high_watermark: int) -> None:
        require(high_watermark > member.high_watermark, "a high watermark decreased")
        self.compare(member, high_watermark)
        new = [batch for batch in member.log.written if self.high_watermark <= batch.base_offset < high_watermark]
        if not new:
            return
        voters = member.running.core.voters.latest
        durable = [one for one in voters.ids if one in cluster.members and _has(cluster.members[one], new[-1])]
        require(len(durable) >= voters.majority, f"offset {new[-1].last_offset} is committed without a majority")
        self.history += new
        require(self.high_watermark == high_watermark, "the high watermark is at the end of a batch")

    def compare(self, member: Member, high_watermark: int) -> None:
        for mine, theirs in zip(self._from(self.history, member.log.start_offset), member.log.written, strict=False):
            if mine.base_offset >= high_watermark:
                break
            require(
                (mine.base_offset, mine.epoch, mine.content) == (theirs.base_offset, theirs.epoch, theirs.content),
                f"node {member.id} has other records at committed offset {mine.base_offset}",
            )

    @staticmethod
    def _from(batches: list[Batch], offset: int) -> list[Batch]:
        return [batch for batch in batches if batch.base_offset >= offset]

    def snapshot_data(self, end_offset: int) -> bytes:
        below = [batch for batch in self.history if batch.last_offset < end_offset]
        return " ".join(describe_content(batch.content) for batch in below).encode()

    def voters_of_snapshot(self, cluster: Cluster, snapshot_id: OffsetAndEpoch) -> VoterSet:
        voters = cluster.initial
        for batch in self.history:
            if batch.last_offset < snapshot_id.offset and batch.voters is not None:
                voters = batch.voters
        return voters


def _has(member: Member, batch: Batch) -> bool:
    log = member.log
    return batch.last_offset < log.flushed and (batch.last_offset < log.start_offset or batch in log.written)


def describe_content(content: Any) -> str:
    if isinstance(content, LeaderChange):
        return f"leader={content.leader_id}"
    if isinstance(content, VotersChange):
        return "voters=" + "+".join(map(str, content.voters.ids))
    return str(content)
