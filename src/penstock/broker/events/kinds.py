"""Defines the kinds of events.

The fields of each class describe the event, and `str` returns a sentence for the log.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import Any, ClassVar

PARTITIONS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """The base class of all events. `str` returns the sentence for the log."""

    KIND: ClassVar[str] = ""
    LEVEL: ClassVar[int] = logging.INFO

    @property
    def level(self) -> int:
        """Returns the level of the log line, as defined in the module `logging`."""
        return self.LEVEL

    def fields(self) -> dict[str, Any]:
        """Returns the fields by name, as JSON values."""
        return {each.name: _plain(getattr(self, each.name)) for each in fields(self)}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# The quorum of the metadata log.


@dataclass(frozen=True, slots=True)
class QuorumRoleChanged(NodeEvent):
    """This node has a new role in the metadata quorum, or the same role in a new epoch."""

    KIND: ClassVar[str] = "quorum.role"

    node_id: int
    role: str
    epoch: int
    leader_id: int
    """The leader of the epoch; -1 while this node knows no leader."""

    def __str__(self) -> str:
        return f"the quorum: {self.role} in epoch {self.epoch}, leader {self.leader_id}"


@dataclass(frozen=True, slots=True)
class QuorumElected(NodeEvent):
    """This node won an election of the quorum."""

    KIND: ClassVar[str] = "quorum.elected"

    epoch: int
    took_ms: int
    """Milliseconds from the time when this node last knew a leader, or was started, to its election."""

    def __str__(self) -> str:
        return f"this node leads the quorum in epoch {self.epoch}, after {self.took_ms} ms without a leader"


@dataclass(frozen=True, slots=True)
class QuorumSteppedDown(NodeEvent):
    """This node no longer leads the quorum."""

    KIND: ClassVar[str] = "quorum.stepped_down"

    epoch: int
    """The epoch in which this node led."""
    reason: str

    def __str__(self) -> str:
        return f"this node stops leading the quorum in epoch {self.epoch}: {self.reason}"


@dataclass(frozen=True, slots=True)
class MajorityLost(NodeEvent):
    """This node led the quorum and resigned, because a majority of the voters stopped fetching from it."""

    KIND: ClassVar[str] = "quorum.majority_lost"
    LEVEL: ClassVar[int] = logging.WARNING

    epoch: int

    def __str__(self) -> str:
        return f"the quorum's leader of epoch {self.epoch} resigns: a majority of the voters stopped fetching"


@dataclass(frozen=True, slots=True)
class MajorityRegained(NodeEvent):
    """The quorum has a leader again, after this node saw no leader for a time."""

    KIND: ClassVar[str] = "quorum.majority_regained"

    epoch: int
    leader_id: int
    without_leader_ms: int

    def __str__(self) -> str:
        waited = f"after {self.without_leader_ms} ms without a leader"
        return f"the quorum has a leader again {waited}: node {self.leader_id} in epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class MetadataTruncated(NodeEvent):
    """This node removed records from its metadata log, because the quorum's leader does not have them."""

    KIND: ClassVar[str] = "quorum.truncated"
    LEVEL: ClassVar[int] = logging.WARNING

    old_end: int
    new_end: int

    def __str__(self) -> str:
        where = f"from offset {self.old_end} to {self.new_end}, where it diverges from the leader's"
        return f"the metadata log is truncated {where}: these records were never committed"


# Brokers.


@dataclass(frozen=True, slots=True)
class BrokerFenced(NodeEvent):
    """The controller fenced a broker. Until it is unfenced, it leads no partitions and is in no in-sync set."""

    KIND: ClassVar[str] = "broker.fenced"
    LEVEL: ClassVar[int] = logging.WARNING

    broker_id: int
    broker_epoch: int
    reason: str
    last_heard_ms: int | None
    """The wall-clock time of the broker's last heartbeat; None if this controller never received one."""
    detected_ms: int | None
    elected_ms: int
    partitions: int
    """The number of partitions that the fencing changed."""

    def __str__(self) -> str:
        return f"broker {self.broker_id} is fenced: it {self.reason}"


@dataclass(frozen=True, slots=True)
class NetworkPartitionSuspected(NodeEvent):
    """This node gets no answers from other nodes that may still be running: the network may be split.

    The quorum's leader emits this event when it loses its majority, and when it fences a silent broker. A broker emits
    this event when no controller has answered within the session timeout. A power loss of the other machines looks the
    same to this node.
    """

    KIND: ClassVar[str] = "network.suspected"
    LEVEL: ClassVar[int] = logging.WARNING

    reason: str
    nodes: tuple[int, ...]
    """The nodes that this node does not hear from; empty if they are not known."""

    def __str__(self) -> str:
        return f"the network may be split: {self.reason}"


@dataclass(frozen=True, slots=True)
class FirstWriteAfterFailover(NodeEvent):
    """This node took over partitions of a fenced broker, and the first write to one of them is committed."""

    KIND: ClassVar[str] = "failover.first_write"

    partition: str
    broker_id: int
    """The fenced broker."""
    broker_epoch: int
    elected_ms: int
    """The controller's wall-clock time of the elections."""
    took_ms: int
    """Milliseconds from the election to the first write, as measured on this node."""

    def __str__(self) -> str:
        what = f"the first write after broker {self.broker_id} was fenced"
        return f"{self.partition}: {what} is committed, {self.took_ms} ms after the election"


@dataclass(frozen=True, slots=True)
class BrokerUnfenced(NodeEvent):
    KIND: ClassVar[str] = "broker.unfenced"

    broker_id: int
    broker_epoch: int
    last_heard_ms: int | None = None
    """The wall-clock time of the heartbeat with which the broker was unfenced; None if it is not known."""

    def __str__(self) -> str:
        return f"broker {self.broker_id} is unfenced in broker epoch {self.broker_epoch}"


@dataclass(frozen=True, slots=True)
class BrokerRegistered(NodeEvent):
    KIND: ClassVar[str] = "broker.registered"

    broker_id: int
    broker_epoch: int

    def __str__(self) -> str:
        return f"broker {self.broker_id} registered and got broker epoch {self.broker_epoch}"


@dataclass(frozen=True, slots=True)
class BrokerUnregistered(NodeEvent):
    KIND: ClassVar[str] = "broker.unregistered"

    broker_id: int

    def __str__(self) -> str:
        return f"broker {self.broker_id} is removed from the cluster"


# Partitions.


@dataclass(frozen=True, slots=True)
class LeaderElected(NodeEvent):
    """The controller elected new leaders for partitions, for one common cause."""

    KIND: ClassVar[str] = "partition.leader"

    partitions: tuple[str, ...]
    """The first PARTITIONS_SHOWN of the partitions."""
    count: int
    old_leader: int
    new_leader: int
    unclean: bool

    @property
    def level(self) -> int:
        return logging.WARNING if self.unclean or self.new_leader < 0 else logging.INFO

    def __str__(self) -> str:
        how = "by an unclean election, which may have lost records" if self.unclean else "by a clean election"
        which = shown(self.partitions, self.count)
        if self.new_leader < 0:
            return f"{which}: no replica can lead after node {self.old_leader}"
        return f"{which}: node {self.new_leader} leads after node {self.old_leader}, {how}"


@dataclass(frozen=True, slots=True)
class IsrChanged(NodeEvent):
    """The in-sync sets of some partitions changed, all in the same way and for the same reason."""

    KIND: ClassVar[str] = "partition.isr"

    partitions: tuple[str, ...]
    count: int
    old_isr: tuple[int, ...]
    new_isr: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        which = shown(self.partitions, self.count)
        return f"{which}: in-sync set {list(self.old_isr)} changes to {list(self.new_isr)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ReplicaTruncated(NodeEvent):
    """A follower removed records from its log, because its leader does not have them."""

    KIND: ClassVar[str] = "replica.truncated"

    partition: str
    leader_epoch: int
    old_end: int
    new_end: int
    high_watermark: int
    """The follower's high watermark before the truncation. Records below it were committed."""

    @property
    def lost_committed(self) -> bool:
        return self.new_end < self.high_watermark

    @property
    def level(self) -> int:
        return logging.WARNING if self.lost_committed else logging.INFO

    def __str__(self) -> str:
        text = f"{self.partition}: truncated from {self.old_end} to {self.new_end}, where it diverged from the leader"
        if self.lost_committed:
            text += (
                f" of epoch {self.leader_epoch}: an unclean election lost the committed offsets {self.new_end} to"
                f" {self.high_watermark}"
            )
        return text


@dataclass(frozen=True, slots=True)
class TopicsChanged(NodeEvent):
    """Topics were created or deleted."""

    KIND: ClassVar[str] = "topic.changed"

    topics: tuple[str, ...]
    count: int
    change: str

    def __str__(self) -> str:
        return f"topic {self.change}: {shown(self.topics, self.count)}"


# Disks.


@dataclass(frozen=True, slots=True)
class DirectoryFailed(NodeEvent):
    """A log directory is offline after an I/O error."""

    KIND: ClassVar[str] = "directory.failed"
    LEVEL: ClassVar[int] = logging.ERROR

    path: str
    error: str

    def __str__(self) -> str:
        return f"log directory {self.path} is offline until the node restarts; repair or replace its disk: {self.error}"


@dataclass(frozen=True, slots=True)
class CorruptionFound(NodeEvent):
    """A stored batch or a file of a replica is damaged."""

    KIND: ClassVar[str] = "replica.corrupt"
    LEVEL: ClassVar[int] = logging.ERROR

    partition: str
    reason: str

    def __str__(self) -> str:
        return f"a stored batch of {self.partition} is damaged and not served; restore it from a replica: {self.reason}"


@dataclass(frozen=True, slots=True)
class MoveChanged(NodeEvent):
    """A move of a replica to another log directory began or ended."""

    KIND: ClassVar[str] = "replica.move"

    partition: str
    source: str
    target: str
    state: str
    copied_bytes: int = 0
    reason: str = ""

    @property
    def level(self) -> int:
        return logging.ERROR if self.state == "failed" else logging.INFO

    def __str__(self) -> str:
        text = f"the move of {self.partition} from {self.source} to {self.target}: {self.state}"
        text += f", {self.copied_bytes} bytes copied" if self.copied_bytes else ""
        return text + (f" ({self.reason})" if self.reason else "")


# Replicas that lie or rot.


@dataclass(frozen=True, slots=True)
class GuardFinding(NodeEvent):
    """The guard found that a replica serves damaged or wrong data."""

    KIND: ClassVar[str] = "guard.finding"
    LEVEL: ClassVar[int] = logging.WARNING

    finding: str
    """The kind of the finding, such as `different content`."""
    accused: int
    """The node that is wrong; -1 if the evidence does not show which node is wrong."""
    partition: str
    offset: int
    evidence: str
    confirmed: bool
    """True if the active controller observed it, and the finding counts against the node."""

    def __str__(self) -> str:
        node = f"node {self.accused}" if self.accused >= 0 else "a node"
        place = f"{self.partition} at offset {self.offset}" if self.offset >= 0 else self.partition
        said = "the controller confirms about" if self.confirmed else "the guard found at"
        return f"{said} {node}: {self.finding} ({place}): {self.evidence}"


@dataclass(frozen=True, slots=True)
class NodeQuarantined(NodeEvent):
    """A node is in quarantine: fenced, in no in-sync set and not electable until an operator releases it."""

    KIND: ClassVar[str] = "guard.quarantined"
    LEVEL: ClassVar[int] = logging.ERROR

    node_id: int
    reason: str

    def __str__(self) -> str:
        release = f"after a check of its disks, `penstock guard release {self.node_id}` releases it"
        return f"node {self.node_id} is in quarantine: {self.reason}; {release}"


@dataclass(frozen=True, slots=True)
class QuarantineRefused(NodeEvent):
    """A node has enough findings for a quarantine, but the cluster would lose data or availability without the node."""

    KIND: ClassVar[str] = "guard.quarantine_refused"
    LEVEL: ClassVar[int] = logging.ERROR

    node_id: int
    reason: str

    def __str__(self) -> str:
        return f"node {self.node_id} should be in quarantine, but stays in use: {self.reason}"


@dataclass(frozen=True, slots=True)
class NodeReleased(NodeEvent):
    """An operator released a node from quarantine."""

    KIND: ClassVar[str] = "guard.released"

    node_id: int

    def __str__(self) -> str:
        return f"node {self.node_id} is released from quarantine"


@dataclass(frozen=True, slots=True)
class ReplicaRefilled(NodeEvent):
    """A damaged segment of a replica was replaced by the content that other replicas agree on."""

    KIND: ClassVar[str] = "replica.refilled"

    partition: str
    first_offset: int
    end_offset: int
    sources: tuple[int, ...]

    def __str__(self) -> str:
        offsets = f"offsets {self.first_offset} to {self.end_offset - 1}"
        nodes = ("node " if len(self.sources) == 1 else "nodes ") + ", ".join(map(str, self.sources))
        return f"{self.partition}: {offsets} are refilled from {nodes}"


# Settings and rights.


@dataclass(frozen=True, slots=True)
class ConfigChanged(NodeEvent):
    """Dynamic configs of a resource changed. Values are left out: they may be secret."""

    KIND: ClassVar[str] = "config.changed"

    resource: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"configs of {self.resource} changed: {', '.join(self.names)}"


@dataclass(frozen=True, slots=True)
class AclsChanged(NodeEvent):
    """ACLs were added or removed."""

    KIND: ClassVar[str] = "acl.changed"

    added: int
    removed: int
    principals: tuple[str, ...]

    def __str__(self) -> str:
        return f"ACLs changed: {self.added} added, {self.removed} removed, for {', '.join(self.principals)}"


def shown(names: tuple[str, ...], count: int) -> str:
    """Returns the names as text, followed by the number of names that are left out."""
    text = ", ".join(names)
    return text if count <= len(names) else f"{text} and {count - len(names)} more"
