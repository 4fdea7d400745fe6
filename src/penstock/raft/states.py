"""The states of a replica, and which may follow which.

    from          to            when
    unattached    prospective   the election timeout is over
    prospective   candidate     a majority would vote for it
                  follower      not so, but it knows a leader          unattached  not so, and it knows none
    candidate     leader        a majority voted for it                prospective lost, or out of time
    follower      prospective   the leader has been silent for the fetch timeout
    leader        resigned      cut off from the majority, voted out, or stopping
    resigned      prospective   the election timeout is over           unattached  the same, but it may not stand

A replica that is not among the voters is an observer: it is only ever Unattached or Follower (or Resigned, when it led
and was voted out). A higher epoch leads from any state to Unattached, or to Follower where the leader is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.protocol.vocabulary import NO_NODE
from penstock.raft.voters import ReplicaKey, VoterSet

if TYPE_CHECKING:
    from penstock.raft.log_view import OffsetAndEpoch
    from penstock.raft.messages import Fetch
    from penstock.raft.progress import Replicas

TRANSITIONS: dict[str, frozenset[str]] = {
    "unattached": frozenset({"unattached", "prospective", "follower"}),
    "prospective": frozenset({"unattached", "candidate", "follower"}),
    "candidate": frozenset({"unattached", "prospective", "follower", "leader"}),
    "follower": frozenset({"unattached", "prospective", "follower"}),
    "leader": frozenset({"unattached", "follower", "resigned"}),
    "resigned": frozenset({"unattached", "prospective", "follower"}),
}
#: Epochs are 32 bits wide on the wire and on disk, and the last one is left out: it could have no successor.
MAX_EPOCH = (1 << 31) - 2
#: In these a replica wants votes or has got them, which only a voter may.
VOTERS_ONLY = frozenset({"prospective", "candidate"})


@dataclass(slots=True)
class Election:
    """The count of one round of votes."""

    voters: VoterSet
    granted: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)

    @property
    def won(self) -> bool:
        return len(self.granted) >= self.voters.majority

    @property
    def lost(self) -> bool:
        return len(self.voters) - len(self.refused) < self.voters.majority

    @property
    def unheard(self) -> list[int]:
        return [node_id for node_id in self.voters.ids if node_id not in self.granted and node_id not in self.refused]


@dataclass(slots=True)
class Unattached:
    """Knows the epoch and perhaps gave its vote; waits for a leader."""

    epoch: int
    deadline_ms: int
    voted: ReplicaKey | None = None
    name: str = "unattached"

    @property
    def leader_id(self) -> int:
        return NO_NODE


@dataclass(slots=True)
class Prospective:
    """Asks whether it would get the votes, before it disturbs anybody with a new epoch."""

    epoch: int
    deadline_ms: int
    election: Election
    leader_id: int = NO_NODE  # to go back to when the others still hear from it
    voted: ReplicaKey | None = None
    name: str = "prospective"


@dataclass(slots=True)
class Candidate:
    epoch: int
    deadline_ms: int
    election: Election
    voted: ReplicaKey
    lost: bool = False  # the deadline is then the end of the pause before the next try
    name: str = "candidate"

    @property
    def leader_id(self) -> int:
        return NO_NODE


@dataclass(slots=True)
class Download:
    """A snapshot on its way here."""

    snapshot: OffsetAndEpoch
    position: int = 0


@dataclass(slots=True)
class Follower:
    epoch: int
    leader_id: int
    deadline_ms: int  # until then the leader has to answer
    voted: ReplicaKey | None = None
    #: A fetch of this epoch succeeded: the leader lives, and nobody needs another.
    has_fetched: bool = False
    #: The leader said goodbye, or its connection broke: others may have this vote if they ask first.
    doubtful: bool = False
    download: Download | None = None
    update_due_ms: int = 0
    name: str = "follower"


@dataclass(slots=True)
class Parked:
    """A fetch that waits for something to bring."""

    request: Fetch
    deadline_ms: int


@dataclass(slots=True)
class VoterChangeAnswer:
    """Somebody waits for a change of voters to be committed."""

    ticket: int
    offset: int
    deadline_ms: int


@dataclass(slots=True)
class Leader:
    epoch: int
    leader_id: int
    voted: ReplicaKey | None
    start_offset: int  # of the epoch
    granted_by: tuple[int, ...]
    replicas: Replicas
    parked: dict[int, Parked] = field(default_factory=dict)
    begin_due_ms: dict[int, int] = field(default_factory=dict)
    change: VoterChangeAnswer | None = None
    name: str = "leader"


@dataclass(slots=True)
class Resigned:
    """Led this epoch and does no more: can't vote in it, and tells the voters to choose again."""

    epoch: int
    deadline_ms: int
    voted: ReplicaKey | None
    unacknowledged: set[int] = field(default_factory=set)
    successors: tuple[ReplicaKey, ...] = ()
    #: What `quorum-state` still says, so that the next life knows as well.
    led_by: int = NO_NODE
    name: str = "resigned"

    @property
    def leader_id(self) -> int:
        return NO_NODE


State = Unattached | Prospective | Candidate | Follower | Leader | Resigned
