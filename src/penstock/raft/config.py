"""How long the quorum waits for what. The names and defaults are those of `controller.quorum.*`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftConfig:
    #: A voter without a leader asks for votes after this long, or up to twice as long: the dice keep voters apart.
    election_timeout_ms: int = 1000
    #: The same for a voter that has just started and knows of no leader; None: as long. It asks before it disturbs.
    first_election_ms: int | None = None
    #: The longest pause after a lost election.
    election_backoff_max_ms: int = 1000
    #: A follower that gets no answer for so long gives its leader up; a leader gives up at one and a half times this.
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    #: How long a leader may keep a fetch that has nothing to bring.
    fetch_max_wait_ms: int = 500
    #: A follower whose connection to the leader broke asks for votes this soon, unless the leader answers after all.
    suspect_ms: int = 150
    #: Proposals are refused beyond this many records that are appended and not committed.
    max_uncommitted_records: int = 1_000_000
    #: What one fetch may bring of the log, and of a snapshot.
    fetch_max_bytes: int = 1024 * 1024
    max_snapshot_chunk_bytes: int = 1024 * 1024
    #: Observers that stopped fetching are forgotten.
    observer_session_ms: int = 300_000
    max_observers: int = 1000
    max_parked_fetches: int = 2000
    #: Voters are what the log says (KIP-853), rather than what every node's properties say.
    dynamic_voters: bool = True

    @property
    def check_quorum_ms(self) -> int:
        return self.fetch_timeout_ms * 3 // 2
