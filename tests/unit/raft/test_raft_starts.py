"""Tests the state of a replica after a start, for every saved state and log."""

from __future__ import annotations

import random
from itertools import product

import pytest
from raft_cluster import voter

from penstock.raft.config import RaftConfig
from penstock.raft.events import QuorumState, SaveState, Tick
from penstock.raft.log_view import LogView, OffsetAndEpoch
from penstock.raft.machine import Raft
from penstock.raft.states import Follower, Resigned, Unattached
from penstock.raft.voters import ReplicaKey, VoterHistory, VoterSet

NOW_MS = 5000
CONFIG = RaftConfig()


def started(
    saved: QuorumState | None, log: LogView, config: RaftConfig = CONFIG, voters: tuple[int, ...] = (1, 2, 3)
) -> Raft:
    history = VoterHistory(VoterSet.of(map(voter, voters)))
    return Raft(config, voter(1), random=random.Random(3), log=log, voters=history, saved=saved, now_ms=NOW_MS)


def log_of(last_epoch: int) -> LogView:
    return LogView(end_offset=3, epochs=[(last_epoch, 0)]) if last_epoch else LogView()


def test_replica_continues_in_the_later_of_its_saved_epoch_and_the_epoch_of_its_log() -> None:
    """A log with a later epoch than the saved state means that the state was lost; so are its leader and its vote."""
    for epoch, last_epoch, leader_id, voted in product(
        range(5), range(5), (-1, 0, 1, 2), (None, voter(2).key, voter(3).key)
    ):
        raft = started(QuorumState(epoch, leader_id, voted), log_of(last_epoch))
        state = raft.core.state
        assert state.epoch == max(epoch, last_epoch)
        if last_epoch > epoch:
            assert isinstance(state, Unattached)
            assert state.voted is None
        elif leader_id == 1:
            assert isinstance(state, Resigned)
            assert (state.led_by, state.unacknowledged, state.successors) == (1, set(), ())
        elif leader_id >= 0:
            assert isinstance(state, Follower)
            assert (state.leader_id, state.has_fetched, state.leader_suspected) == (leader_id, False, False)
            assert state.deadline_ms == NOW_MS + CONFIG.fetch_timeout_ms
        else:
            assert isinstance(state, Unattached)
        if last_epoch <= epoch:
            assert state.voted == voted
            assert raft.core.saved == QuorumState(epoch, leader_id, voted)
        if not isinstance(state, Follower):
            timeout_ms = CONFIG.election_timeout_ms
            assert NOW_MS + timeout_ms <= state.deadline_ms < NOW_MS + 2 * timeout_ms


def test_start_changes_nothing_and_saves_nothing_before_a_deadline() -> None:
    for saved in (None, QuorumState(3), QuorumState(3, 1, voter(1).key), QuorumState(3, 2, voter(2).key)):
        raft = started(saved, LogView())
        before = raft.core.state
        effects = raft.step(Tick(), NOW_MS)
        assert raft.core.state is before
        assert not any(isinstance(each, SaveState) for each in effects)
        assert raft.core.saved == (saved or QuorumState())


@pytest.mark.parametrize("first_ms", [None, 10])
def test_first_election_timeout_counts_from_the_time_of_the_start(first_ms: int | None) -> None:
    config = RaftConfig(first_election_ms=first_ms)
    timeout_ms = first_ms or config.election_timeout_ms
    for seed in range(20):
        history = VoterHistory(VoterSet.of(map(voter, (1, 2))))
        raft = Raft(config, voter(1), random=random.Random(seed), log=LogView(), voters=history, now_ms=NOW_MS)
        wait_ms = raft.core.state.deadline_ms - NOW_MS  # type: ignore[union-attr]
        assert timeout_ms <= wait_ms < 2 * timeout_ms
        assert raft.deadline() == NOW_MS + wait_ms


def test_high_watermark_starts_at_the_end_of_the_snapshot_or_at_the_log_start() -> None:
    assert started(None, LogView(end_offset=9, epochs=[(1, 0)])).core.high_watermark == 0
    snapshot = OffsetAndEpoch(5, 1)
    for start in (0, 3, 5):
        log = LogView(start_offset=start, end_offset=9, epochs=[(1, start)], snapshot=snapshot)
        assert started(QuorumState(1), log).core.high_watermark == 5


def test_replica_with_another_directory_than_its_voter_is_an_observer() -> None:
    """It may have lost its vote with its disk, so it neither stands nor counts as the voter."""
    history = VoterHistory(VoterSet.of(map(voter, (1, 2, 3))))
    other = ReplicaKey(1, b"another directo.")
    for key, electable in ((voter(1).key, True), (other, False)):
        me = voter(1).__class__(*key)
        raft = Raft(CONFIG, me, random=random.Random(3), log=LogView(), voters=history, now_ms=NOW_MS)
        assert (raft.core.is_voter, raft.core.is_electable) == (electable, electable)
        raft.step(Tick(), NOW_MS + 10 * CONFIG.election_timeout_ms)
        assert raft.core.state.name == ("prospective" if electable else "unattached")


def test_lone_voter_waits_for_nobody_and_two_voters_wait() -> None:
    for voters, role in (((1,), "leader"), ((1, 2), "unattached"), ((2,), "unattached")):
        for saved in (None, QuorumState(3), QuorumState(3, 1)):
            raft = started(saved, LogView(), voters=voters)
            raft.step(Tick(), NOW_MS)
            expected = "resigned" if voters == (1, 2) and saved == QuorumState(3, 1) else role
            assert raft.core.state.name == expected
            if role == "leader":
                assert raft.core.epoch == (saved.epoch if saved else 0) + 1
