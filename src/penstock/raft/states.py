"""Defines the states of a replica, and the transitions between them.

    from          to            when
    unattached    prospective   the election timeout has passed
    prospective   candidate     a majority would vote for it
                  follower      it lost the pre-vote, and a leader is known
                  unattached    it lost the pre-vote, and no leader is known
    candidate     leader        a majority voted for it
                  prospective   it lost the election, or the timeout has passed
    follower      prospective   the leader has been silent for the fetch timeout
    leader        resigned      it lost contact with the majority, was removed, or is stopping
    resigned      prospective   the election timeout has passed
                  unattached    the election timeout has passed, but it is not a voter any more

A replica that is not among the voters is an observer. An observer is Unattached or Follower; it is Resigned if it led
and was removed. A replica in any state that learns of a higher epoch becomes Unattached, or Follower if it also learns
the leader.
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
#: Epochs are 32 bits wide on the wire and on disk; the last value is not used, because it has no successor.
MAX_EPOCH = (1 << 31) - 2
#: Only a voter may be in these states.
VOTERS_ONLY = frozenset({"prospective", "candidate"})


@dataclass(slots=True)
class Election:
    """Holds the votes counted in one election or pre-vote."""

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
    """Describes a replica that knows the epoch and waits for a leader. The replica may have voted in this epoch."""

    epoch: int
    deadline_ms: int
    voted: ReplicaKey | None = None
    name: str = "unattached"

    @property
    def leader_id(self) -> int:
        return NO_NODE


@dataclass(slots=True)
class Prospective:
    """Describes a replica that asks in a pre-vote whether it would win, before it starts a new epoch."""

    epoch: int
    deadline_ms: int
    election: Election
    leader_id: int = NO_NODE  # the leader to follow again if the other voters still hear from it
    voted: ReplicaKey | None = None
    name: str = "prospective"


@dataclass(slots=True)
class Candidate:
    epoch: int
    deadline_ms: int
    election: Election
    voted: ReplicaKey
    lost: bool = False  # if True, the deadline is the end of the pause before the next election
    name: str = "candidate"

    @property
    def leader_id(self) -> int:
        return NO_NODE


@dataclass(slots=True)
class Download:
    """Holds the progress of a snapshot that is being fetched from the leader."""

    snapshot: OffsetAndEpoch
    position: int = 0


@dataclass(slots=True)
class Follower:
    epoch: int
    leader_id: int
    deadline_ms: int  # when the leader is abandoned if it does not answer
    voted: ReplicaKey | None = None
    #: A fetch of this epoch succeeded: the leader is alive, so pre-votes are refused.
    has_fetched: bool = False
    #: The leader resigned or its connection broke: pre-votes of other replicas are granted.
    leader_suspected: bool = False
    download: Download | None = None
    update_due_ms: int = 0
    name: str = "follower"


@dataclass(slots=True)
class Parked:
    """Holds a parked fetch, which waits for new records or a new high watermark."""

    request: Fetch
    deadline_ms: int


@dataclass(slots=True)
class VoterChangeAnswer:
    """Holds a request to change the voters, which is answered when the change is committed."""

    ticket: int
    offset: int
    deadline_ms: int


@dataclass(slots=True)
class Leader:
    epoch: int
    leader_id: int
    voted: ReplicaKey | None
    start_offset: int  # the offset of the epoch's first record
    granted_by: tuple[int, ...]
    replicas: Replicas
    parked: dict[int, Parked] = field(default_factory=dict)
    begin_due_ms: dict[int, int] = field(default_factory=dict)
    change: VoterChangeAnswer | None = None
    name: str = "leader"


@dataclass(slots=True)
class Resigned:
    """Describes a replica that led this epoch and has resigned.

    The replica does not vote in this epoch, and asks the voters to elect another leader.
    """

    epoch: int
    deadline_ms: int
    voted: ReplicaKey | None
    unacknowledged: set[int] = field(default_factory=set)
    successors: tuple[ReplicaKey, ...] = ()
    #: The leader id in `quorum-state`, so that the next incarnation does not lead this epoch either.
    led_by: int = NO_NODE
    name: str = "resigned"

    @property
    def leader_id(self) -> int:
        return NO_NODE


State = Unattached | Prospective | Candidate | Follower | Leader | Resigned
