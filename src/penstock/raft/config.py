"""Defines the timeouts and limits of the quorum, with the names and defaults of Kafka's `controller.quorum.*`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftConfig:
    #: A voter without a leader asks for votes after a random time between one and two of these timeouts, so that voters
    #: do not stand at the same moment.
    election_timeout_ms: int = 1000
    #: Replaces `election_timeout_ms` for a voter that has just started and knows no leader; None keeps the timeout. A
    #: short value is safe because a pre-vote disturbs no leader.
    first_election_ms: int | None = None
    #: The longest pause after a lost election.
    election_backoff_max_ms: int = 1000
    #: A follower abandons a leader that sends no answer for this long; a leader without a majority resigns after 1.5
    #: times this.
    fetch_timeout_ms: int = 2000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    #: How long a leader may park a fetch that has no new records.
    fetch_max_wait_ms: int = 500
    #: A follower whose connection to the leader broke asks for votes within this time, unless the leader answers first.
    suspect_ms: int = 150
    #: Proposals are refused while more than this many appended records are uncommitted.
    max_uncommitted_records: int = 1_000_000
    #: The largest answer to one fetch of the log, and of a snapshot.
    fetch_max_bytes: int = 1024 * 1024
    max_snapshot_chunk_bytes: int = 1024 * 1024
    #: The leader forgets observers that stopped fetching for this long.
    observer_session_ms: int = 300_000
    max_observers: int = 1000
    max_parked_fetches: int = 2000
    #: True if the log defines the voters (KIP-853); False if every node's properties do.
    dynamic_voters: bool = True

    @property
    def check_quorum_ms(self) -> int:
        return self.fetch_timeout_ms * 3 // 2
