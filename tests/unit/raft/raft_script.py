"""Runs scenario scripts of the Raft state machine; `penstock.sim.run.scenario_text` has their grammar. The commands:

nodes 1 2 3          start these voters             observer 4        start a node that is no voter
timeout 1            end its election timeout       tick 500          let time pass for all nodes
deliver [1 2 [Vote]] deliver messages until none    settle            the same, without printing them
drop [1 2]           lose messages in flight        break 2 1         break 2's connection to 1; its requests fail
isolate 1 / heal     partition in both directions   crash 1 / restart 1
hold saves|flushes 1 make these writes wait for     save 1 / flush 1 / release 1
propose 1 a b c      propose records to a leader    resign 1          stop it cleanly
add 1 4 / remove 1 2 ask node 1 to change voters    snapshot 1        take one of its committed records
batches 1            limit the batches in one answer to a fetch
run 500              let time pass and deliver messages, without printing them
logs                 print state and log of nodes   quorum 1          print the leader's description
"""

from __future__ import annotations

from collections.abc import Mapping

from raft_cluster import Cluster, Message, describe_content, voter

from penstock.raft.describe import describe
from penstock.raft.events import Tick
from penstock.raft.messages import (
    AddVoter,
    Answer,
    BeginEpoch,
    EndEpoch,
    EpochAnswer,
    Fetch,
    FetchAnswer,
    FetchSnapshot,
    RemoveVoter,
    Request,
    SnapshotChunk,
    Vote,
    VoteAnswer,
)
from penstock.sim.run.scenario_text import answered, parse

MAX_DELIVERIES = 2000
TICK_MS = 10


class Script:
    def __init__(self) -> None:
        self.cluster = Cluster([])
        self.lines: list[str] = []

    def run(self, line: str) -> str:
        self.lines = []
        name, *words = line.split()
        getattr(self, f"do_{name}")(*words)
        return "\n".join(self.lines)

    # --- nodes ------------------------------------------------------------------------------------------

    def do_nodes(self, *ids: str) -> None:
        self.cluster = Cluster([int(one) for one in ids])
        self.cluster.on_event = self.lines_append

    def lines_append(self, line: str) -> None:
        if self.lines[-1:] != [line]:
            self.lines.append(line)

    def do_batches(self, count: str) -> None:
        self.cluster.max_fetch_batches = int(count)

    def do_observer(self, node_id: str) -> None:
        self.cluster.add_member(int(node_id))

    def do_crash(self, node_id: str) -> None:
        self.cluster.crash(int(node_id))

    def do_restart(self, node_id: str) -> None:
        self.cluster.start(int(node_id))

    def do_resign(self, node_id: str) -> None:
        self.cluster.resign(int(node_id))

    # --- time -------------------------------------------------------------------------------------------

    def do_timeout(self, node_id: str) -> None:
        state = self.cluster.members[int(node_id)].running.core.state
        assert hasattr(state, "deadline_ms")
        state.deadline_ms = self.cluster.now
        self.cluster.step(int(node_id), Tick())

    def do_tick(self, milliseconds: str) -> None:
        end = self.cluster.now + int(milliseconds)
        while self.cluster.now < end:
            self.cluster.now = min(end, self.cluster.now + TICK_MS)
            for node_id in self.cluster.members:
                self.cluster.tick(node_id)

    def do_run(self, milliseconds: str) -> None:
        """Lets time pass and delivers messages without printing them."""
        end = self.cluster.now + int(milliseconds)
        while self.cluster.now < end:
            self.do_tick(str(TICK_MS))
            self.do_settle()

    # --- network ----------------------------------------------------------------------------------------

    def do_deliver(self, *words: str) -> None:
        self._deliver(words, show=True)

    def do_settle(self) -> None:
        self._deliver((), show=False)

    def _deliver(self, words: tuple[str, ...], *, show: bool) -> None:
        for _ in range(MAX_DELIVERIES):
            message = next((one for one in self.cluster.network if _matches(one, words)), None)
            if message is None:
                return
            self.cluster.network.remove(message)
            if show:
                self.lines.append(f"{message.source} → {message.target}  {show_message(message.body)}")
            self.cluster.deliver(message)
        raise AssertionError("the network never gets quiet")

    def do_drop(self, *words: str) -> None:
        self.cluster.network = [one for one in self.cluster.network if not _matches(one, words)]

    def do_break(self, source: str, target: str) -> None:
        for message in [one for one in self.cluster.network if _matches(one, (source, target))]:
            self.cluster.network.remove(message)
        for send_id in list(self.cluster.members[int(source)].running.core.peers._flights):
            flight = self.cluster.members[int(source)].running.core.peers._flights.get(send_id)
            if flight is not None and flight.to == int(target):
                life = self.cluster.members[int(source)].life
                self.cluster.fail(Message(int(source), int(target), flight.request, send_id, life))

    def do_isolate(self, node_id: str) -> None:
        one = int(node_id)
        for other in self.cluster.members:
            self.cluster.cuts |= {(one, other), (other, one)}
        self.cluster.network = [m for m in self.cluster.network if one not in (m.source, m.target)]

    def do_heal(self) -> None:
        self.cluster.cuts.clear()

    # --- disks ------------------------------------------------------------------------------------------

    def do_hold(self, what: str, node_id: str) -> None:
        manual = {"saves": self.cluster.manual_saves, "flushes": self.cluster.manual_flushes}[what]
        manual.add(int(node_id))

    def do_release(self, node_id: str) -> None:
        self.cluster.manual_saves.discard(int(node_id))
        self.cluster.manual_flushes.discard(int(node_id))
        while self.cluster.members[int(node_id)].todo:
            self._write_next(node_id)

    def do_save(self, node_id: str) -> None:
        self._write_next(node_id)

    def do_flush(self, node_id: str) -> None:
        self._write_next(node_id)

    def _write_next(self, node_id: str) -> None:
        what, do = self.cluster.members[int(node_id)].todo.pop(0)
        self.lines.append(f"n{node_id} has done its {what}")
        do()

    def do_snapshot(self, node_id: str) -> None:
        self.cluster.take_snapshot(int(node_id))

    # --- clients ----------------------------------------------------------------------------------------

    def do_propose(self, node_id: str, *contents: str) -> None:
        self.cluster.propose(int(node_id), *contents)

    def do_add(self, node_id: str, new: str) -> None:
        self.cluster.ask(int(node_id), AddVoter(voter(int(new))))

    def do_remove(self, node_id: str, old: str) -> None:
        self.cluster.ask(int(node_id), RemoveVoter(voter(int(old)).key))

    # --- views ------------------------------------------------------------------------------------------

    def do_logs(self) -> None:
        for member in self.cluster.members.values():
            batches = " ".join(
                f"{batch.base_offset}:{describe_content(batch.content)}@{batch.epoch}" for batch in member.log.written
            )
            start = f"from {member.log.start_offset}: " if member.log.start_offset else ""
            if member.raft is None:
                self.lines.append(f"n{member.id} down | {start}{batches}")
                continue
            core = member.raft.core
            position = f"epoch {core.epoch} hw {core.high_watermark}"
            self.lines.append(f"n{member.id} {core.state.name} {position} | {start}{batches}".rstrip())

    def do_quorum(self, node_id: str) -> None:
        view = describe(self.cluster.members[int(node_id)].running.core)
        self.lines.append(f"leader {view.leader_id} epoch {view.epoch} high watermark {view.high_watermark}")
        for title, replicas in (("voter", view.voters), ("observer", view.observers)):
            for one in replicas:
                self.lines.append(
                    f"{title} {one.key.node_id}: log end {one.log_end_offset},"
                    f" fetched at {one.last_fetch_ms} ms, caught up at {one.last_caught_up_ms} ms"
                )


def _matches(message: Message, words: tuple[str, ...]) -> bool:
    if not words:
        return True
    source, target, *kind = words
    if (message.source, message.target) != (int(source), int(target)):
        return False
    return not kind or type(message.body).__name__ == kind[0]


def show_message(body: Request | Answer) -> str:
    match body:
        case Vote():
            kind = "PreVote" if body.pre_vote else "Vote"
            return f"{kind}? epoch {body.epoch}, my log ends at {body.end_offset} in epoch {body.last_epoch}"
        case VoteAnswer():
            return f"Vote: {_error(body)}{'yes' if body.granted else 'no'}{_leader(body)}"
        case BeginEpoch():
            return f"BeginQuorumEpoch {body.epoch}"
        case EndEpoch():
            return f"EndQuorumEpoch {body.epoch}, successors {' '.join(str(key.node_id) for key in body.successors)}"
        case EpochAnswer():
            return f"{body.error.name if body.error else 'ok'}{_leader(body)}"
        case Fetch():
            return f"Fetch? epoch {body.epoch}, from {body.offset}, last epoch {body.last_epoch}"
        case FetchAnswer() if body.error:
            return f"Fetch: {body.error.name}{_leader(body)}"
        case FetchAnswer() if body.diverging:
            return f"Fetch: diverging, epoch {body.diverging.epoch} ends at {body.diverging.offset}"
        case FetchAnswer() if body.snapshot:
            return f"Fetch: take snapshot {body.snapshot.offset}@{body.snapshot.epoch}"
        case FetchAnswer():
            brought = " ".join(describe_content(batch.content) for batch in body.batches) or "nothing"
            return f"Fetch: {brought}, hw {body.high_watermark}"
        case FetchSnapshot():
            return f"FetchSnapshot? {body.snapshot.offset}@{body.snapshot.epoch} at {body.position}"
        case SnapshotChunk():
            return f"FetchSnapshot: {_error(body)}{len(body.data)} of {body.size} bytes at {body.position}"
        case _:
            return repr(body)


def _error(body: Answer) -> str:
    return f"{body.error.name} " if body.error else ""


def _leader(body: Answer) -> str:
    return f", epoch {body.epoch}" + (f", leader {body.leader_id}" if body.leader_id >= 0 else "")


def run_script(text: str, includes: Mapping[str, str] | None = None) -> str:
    """Returns the script with the answers that its commands get now."""
    script = Script()
    found: list[str] = []
    for line in parse(text, includes):
        found.append(line.text)
        for command in line.commands:
            answered(found, line, script.run(command))
    return "\n".join(found) + "\n"
