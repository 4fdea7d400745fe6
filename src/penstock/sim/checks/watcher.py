"""Watches leaders, ISRs and high watermarks while nodes run, and checks them against each other.

The watcher reads the state of machines between two passes of their event loops; the node's code is unchanged.

    one leader per epoch     no two nodes ever see different leaders of one epoch, of the quorum or of a partition
    one state per change     all nodes see the same leader, ISR and replicas in a partition epoch
    leader completeness      a new leader's log reaches the highest offset that any earlier leader committed
    in sync                  every member of the ISR has all records below the high watermark, from the moment it joins
    eligible leaders         each replica outside the ISR that may be elected (KIP-966) has all records below the high
      are complete           watermark
    within the log           no replica's high watermark is above its log end
    enough replicas          no record is committed while fewer than min.insync.replicas are in sync
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.events import QuorumRoleChanged
from penstock.metadata.image import EMPTY_IMAGE, MetadataImage, PartitionImage, topic_changes
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import NO_NODE, TopicPartition
from penstock.sim.engine.machine import Machine, State

if TYPE_CHECKING:
    from penstock.broker.events import NodeEvent
    from penstock.broker.replicas.partition import Partition

#: At most this many changes of leaders are named in one line of the story.
NAMED = 6

Key = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Leadership:
    """Holds the leader, epoch and ISR that a partition has from `time` on."""

    time: float
    leader: int
    epoch: int
    isr: tuple[int, ...]


class Progress(NamedTuple):
    """Holds the high watermark and the log end of a leader at `time`."""

    time: float
    high_watermark: int
    log_end: int


class _ReplicaState(NamedTuple):
    """Holds the state of a replica that the rules check, such as its high watermark and its log end."""

    machine: Machine
    partition: Partition
    image: PartitionImage
    isr: tuple[int, ...]
    high_watermark: int
    log_end: int


@dataclass(frozen=True, slots=True)
class Excuses:
    """Holds the machines and partitions that have lost data. Records that are missing there break no rule."""

    lost: Sequence[Machine] = ()
    """Machines that lost data and are not back in sync."""
    damaged: AbstractSet[TopicPartition] = frozenset()
    """Partitions whose files were damaged, or that lost records with a machine's power."""


class Watcher:
    def __init__(
        self,
        machines: Sequence[Machine],
        now: Callable[[], float],
        tell: Callable[[str, str], None],
        violated: Callable[[str, str], None],
    ) -> None:
        self._machines = machines
        self._now = now
        self._add_line = tell
        self._violated = violated
        self.excuses: Callable[[], Excuses] = Excuses
        #: Called with the name of each elected node and its epoch.
        self.on_elected: list[Callable[[str, int], None]] = []
        #: Called with each event of a node, and with each check of the machines.
        self.on_node_event: list[Callable[[str, NodeEvent], None]] = []
        self.on_look: list[Callable[[], None]] = []
        self.quorum_leader = NO_NODE
        self.quorum_epoch = NO_NODE
        self.leaderships: dict[TopicPartition, list[Leadership]] = {}
        self.progress: dict[TopicPartition, list[Progress]] = {}
        #: Partition → the time since which all its replicas have known the same leader and leader epoch.
        self.one_leader_since: dict[TopicPartition, float] = {}
        self._quorum: dict[int, int] = {}
        self._leaders: dict[tuple[bytes, int, int], int] = {}
        self._states: dict[tuple[bytes, int, int], PartitionImage] = {}
        self._epochs: dict[Key, int] = {}
        self._committed: dict[Key, tuple[int, int]] = {}
        #: min.insync.replicas, for partitions with at least as many replicas.
        self.min_insync = 1
        self._too_few: dict[Key, tuple[object, int]] = {}
        #: The replicas at the last look, and the excuses at that time.
        self._seen: dict[Key, list[_ReplicaState]] = {}
        self._excused: tuple[object, ...] = ()
        self._stopping_leaders: dict[TopicPartition, int] = {}
        self._reported: set[tuple[str, Key]] = set()

    def _broken(self, rule: str, key: Key, what: str) -> None:
        """Reports the first violation of `rule` in each partition; ignores later violations."""
        if (rule, key) not in self._reported:
            self._reported.add((rule, key))
            self._violated(rule, what)

    # The quorum.

    def node_event(self, node: str, event: NodeEvent) -> None:
        """Checks an event of a node, if it is a role change of the quorum. Passes all events on to the functions in
        `on_node_event`."""
        if isinstance(event, QuorumRoleChanged):
            self.role_changed(node, event)
        for listener in self.on_node_event:
            listener(node, event)

    def role_changed(self, node: str, event: QuorumRoleChanged) -> None:
        """Checks that the quorum has only one leader in the epoch of a node's new role."""
        epoch, leader = event.epoch, event.leader_id
        if leader == NO_NODE:
            return
        known = self._quorum.setdefault(epoch, leader)
        if known != leader:
            self._violated(
                "one leader per epoch", f"epoch {epoch} of the quorum has leaders {known} and {leader}, says {node}"
            )
        if epoch > self.quorum_epoch:
            self.quorum_epoch, self.quorum_leader = epoch, leader
        if event.role == "leader":
            self._add_line(node, f"leads the quorum in epoch {epoch}")
            for elected in tuple(self.on_elected):
                elected(node, epoch)

    # Images.

    def serves(self, machine: Machine) -> None:
        """Watches the metadata of a node that has started."""
        broker = machine.broker
        if broker is None:
            return
        self._learn(EMPTY_IMAGE, broker.metadata.image)
        broker.metadata.subscribe(self._learn)

    def _learn(self, old: MetadataImage, new: MetadataImage) -> None:
        changes = topic_changes(old, new)
        moved: list[str] = []
        for topic in (*changes.created, *(after for _, after in changes.changed)):
            before = old.topics.get(topic.name)
            for index, partition in topic.partitions.items():
                if before is not None and before.partitions.get(index) is partition:
                    continue
                told = self._partition(topic.topic_id, topic.name, index, partition)
                if told:
                    moved.append(told)
        if moved:
            more = f" and {len(moved) - NAMED} more" if len(moved) > NAMED else ""
            self._add_line("leaders", ", ".join(moved[:NAMED]) + more)

    def _partition(self, topic_id: bytes, name: str, index: int, partition: PartitionImage) -> str:
        """Checks a partition's state in a node's new metadata.

        Returns the new leader as text, or an empty string if the leader has not changed.
        """
        where = f"{name}-{index}"
        if partition.leader != NO_NODE:
            known = self._leaders.setdefault((topic_id, index, partition.leader_epoch), partition.leader)
            if known != partition.leader:
                what = f"{where} epoch {partition.leader_epoch} is led by {known} and by {partition.leader}"
                self._broken("one leader per epoch", (topic_id, index), what)
        state = self._states.setdefault((topic_id, index, partition.partition_epoch), partition)
        if _essence(state) != _essence(partition):
            what = f"{where} in partition epoch {partition.partition_epoch} is {state} and {partition}"
            self._broken("one state per change", (topic_id, index), what)
        key = (topic_id, index)
        if partition.partition_epoch < self._epochs.get(key, 0) and key in self._epochs:
            return ""  # a node with older metadata
        self._epochs[key] = partition.partition_epoch
        history = self.leaderships.setdefault((name, index), [])
        last = history[-1] if history else None
        if last is not None and (last.leader, last.epoch, last.isr) == (
            partition.leader,
            partition.leader_epoch,
            partition.isr,
        ):
            return ""
        history.append(Leadership(self._now(), partition.leader, partition.leader_epoch, partition.isr))
        if last is not None and (joined := {*partition.isr} - {*last.isr}):
            self._joined(key, partition, joined)
        if last is not None and (last.leader, last.epoch) != (partition.leader, partition.leader_epoch):
            self.one_leader_since.pop((name, index), None)
        if last is not None and last.leader == partition.leader:
            return ""
        return f"{where} {'nobody' if partition.leader == NO_NODE else f'n{partition.leader}'}"

    def elected_unclean(self, key: Key, first: int) -> None:
        """Notes that an unclean election has discarded the committed records from offset `first` on."""
        high, epoch = self._committed.get(key, (0, NO_NODE))
        self._committed[key] = (min(high, first), epoch)

    # Logs.

    def _hosted(self, key: Key) -> dict[Machine, Partition]:
        """Returns the open replicas of a partition on serving machines."""
        found: dict[Machine, Partition] = {}
        for machine in self._machines:
            broker = machine.broker
            if broker is None or machine.state is not State.SERVING or not machine.holds_partitions:
                continue
            try:
                partition = broker.partitions.get_by_id(*key)
            except KafkaError:
                continue  # the machine holds no such replica
            if partition.is_open and not partition.log.offline:
                found[machine] = partition
        return found

    def _joined(self, key: Key, now: PartitionImage, joined: set[int]) -> None:
        """Checks replicas at the moment at which they join the ISR."""
        excuses = self.excuses()
        replicas = self._hosted(key)
        for machine, partition in replicas.items():
            name = (partition.topic, partition.index)
            led = machine.node_id == now.leader and partition.image.leader_epoch == now.leader_epoch
            if not led or name in excuses.damaged:
                continue
            for other, replica in replicas.items():
                if other.node_id in joined and other is not machine and other not in excuses.lost:
                    self._in_sync(key, machine, partition, other, replica)

    def look(self, excuses: Excuses) -> None:
        """Checks all replicas that have changed since the last call."""
        for check in self.on_look:
            check()
        hosted: dict[Key, list[_ReplicaState]] = {}
        for machine in self._machines:
            broker = machine.broker
            if broker is None or machine.state is not State.SERVING or not machine.holds_partitions:
                continue
            for partition in broker.partitions:
                if partition.is_open and not (log := partition.log).offline:
                    leading = partition.leading
                    isr = () if leading is None else leading.isr
                    seen = _ReplicaState(
                        machine, partition, partition.image, isr, log.high_watermark, log.log_end_offset
                    )
                    hosted.setdefault((partition.topic_id, partition.index), []).append(seen)
        self._stopping_leaders = self._leaders_on_stopping_machines()
        excused = (tuple(excuses.lost), len(excuses.damaged), self._stopping_leaders)
        before = self._seen if excused == self._excused else {}
        self._seen, self._excused = hosted, excused
        for key, replicas in hosted.items():
            if replicas != before.get(key):
                self._judge(key, replicas, excuses)

    def _judge(self, key: Key, replicas: list[_ReplicaState], excuses: Excuses) -> None:
        self._agree(replicas)
        for machine, partition, image, _, high, end in replicas:
            if high > end:
                what = f"{machine.name} has log end {end} of {partition.topic}-{partition.index}"
                self._broken("within the log", key, f"{what}, and a high watermark of {high}")
            if image.leader == machine.node_id:
                name = (partition.topic, partition.index)
                self.progress.setdefault(name, []).append(Progress(self._now(), high, end))
                if name not in excuses.damaged:
                    self._leader(key, machine, partition, replicas, excuses.lost)
                    self._enough(key, machine, partition)

    def _agree(self, replicas: list[_ReplicaState]) -> None:
        """Notes the time since which all replicas of a partition know its newest leader, because until then an old
        leader may still accept writes."""
        name = (replicas[0].partition.topic, replicas[0].partition.index)
        newest = self.leaderships[name][-1] if name in self.leaderships else None
        if (
            newest is not None
            and self._stopping_leaders.get(name, newest.epoch) == newest.epoch
            and all((each.image.leader, each.image.leader_epoch) == (newest.leader, newest.epoch) for each in replicas)
        ):
            self.one_leader_since.setdefault(name, self._now())
        else:
            self.one_leader_since.pop(name, None)

    def _leaders_on_stopping_machines(self) -> dict[TopicPartition, int]:
        """Returns the partitions that stopping machines still lead, each with the lowest of their leader epochs.

        A stopping machine accepts writes until it has stopped, even after another leader was elected.
        """
        found: dict[TopicPartition, int] = {}
        for machine in self._machines:
            if machine.state is not State.STOPPING or machine.broker is None or not machine.holds_partitions:
                continue
            for partition in machine.broker.partitions:
                if partition.leading is not None:
                    name = (partition.topic, partition.index)
                    epoch = partition.image.leader_epoch
                    found[name] = min(epoch, found.get(name, epoch))
        return found

    def _enough(self, key: Key, machine: Machine, partition: Partition) -> None:
        """Checks that a partition whose ISR is smaller than min.insync.replicas does not advance its high watermark."""
        leading, high = partition.leading, partition.log.high_watermark
        if leading is None or len(leading.isr) >= min(self.min_insync, len(leading.replicas)):
            self._too_few.pop(key, None)
            return
        few = (machine, partition.image.leader_epoch, partition.image.partition_epoch, frozenset(leading.isr))
        before, committed = self._too_few.get(key, (None, high))
        if before == few and high > committed:
            what = f"{partition.topic}-{partition.index} has {len(leading.isr)} replicas in sync on {machine.name}"
            self._broken("enough replicas", key, f"{what}, and its high watermark went from {committed} to {high}")
        self._too_few[key] = (few, high)

    def _leader(
        self,
        key: Key,
        machine: Machine,
        partition: Partition,
        replicas: list[_ReplicaState],
        lost: Sequence[Machine],
    ) -> None:
        epoch, log = partition.image.leader_epoch, partition.log
        where = f"{partition.topic}-{partition.index}"
        high, by = self._committed.get(key, (0, NO_NODE))
        if epoch > by and log.log_end_offset < high:
            what = f"{machine.name} leads {where} in epoch {epoch} with log end {log.log_end_offset}"
            self._broken("leader completeness", key, f"{what}, but offset {high} was committed in epoch {by}")
        if log.high_watermark > high:
            self._committed[key] = (log.high_watermark, epoch)
        leading = partition.leading
        # An ISR that the controller has granted counts before the image has it, and without its eligible leaders.
        granted = leading is None or leading.partition_epoch != partition.image.partition_epoch
        for other, replica, *_ in replicas:
            if other is machine or other in lost:
                continue
            if replica.image.partition_epoch > partition.image.partition_epoch:
                continue  # the replica knows a newer partition epoch, in which this leader may be replaced
            if other.node_id in partition.image.isr:
                self._in_sync(key, machine, partition, other, replica)
            elif other.node_id in partition.image.elr and not granted:
                self._eligible(key, machine, partition, other, replica)

    def _eligible(self, key: Key, machine: Machine, partition: Partition, other: Machine, replica: Partition) -> None:
        high = partition.log.high_watermark
        if replica.log.log_end_offset < high:
            where = f"{partition.topic}-{partition.index}"
            what = f"{other.name} has log end {replica.log.log_end_offset} of {where} and may be elected"
            self._broken("eligible leaders are complete", key, f"{what}, but {machine.name} has committed up to {high}")

    def _in_sync(self, key: Key, machine: Machine, partition: Partition, other: Machine, replica: Partition) -> None:
        log = partition.log
        if replica.log.log_end_offset < log.high_watermark:
            where = f"{partition.topic}-{partition.index}"
            what = f"{other.name} has log end {replica.log.log_end_offset} of {where} and is in the ISR"
            self._broken("in sync", key, f"{what}, but {machine.name} has committed up to {log.high_watermark}")


def _essence(partition: PartitionImage) -> tuple[object, ...]:
    return partition.leader, partition.leader_epoch, frozenset(partition.isr), frozenset(partition.replicas)
