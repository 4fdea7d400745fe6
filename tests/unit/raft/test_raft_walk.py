"""Tests that random schedules violate no invariant of the Raft machine, and find every bug that is planted in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from raft_cluster import Cluster, ViolationError
from raft_walk import Walk, run_seeds

from penstock.check import InvariantError
from penstock.protocol.errors import ErrorCode
from penstock.raft import leader, membership
from penstock.raft.core import Core
from penstock.raft.events import Effect
from penstock.raft.log_view import Batch, LogView
from penstock.raft.machine import Raft
from penstock.raft.states import Leader

pytestmark = pytest.mark.programs

FAST_SEEDS = 100
SLOW_SEEDS = 3000
MAX_SEEDS_FOR_A_BUG = 600


def test_raft_violates_no_invariant_on_random_schedules() -> None:
    run_seeds(0, FAST_SEEDS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_raft_violates_no_invariant_on_thousands_of_random_schedules() -> None:
    run_seeds(10_000, SLOW_SEEDS)
    for mix in (YOUNG_LEADERS, DYING_VOTERS):
        run_seeds(0, SLOW_SEEDS // 20, mix)


def test_same_seed_gives_the_same_random_schedule() -> None:
    traces: list[list[str]] = []
    for _ in range(2):
        walk = Walk(7)
        trace: list[str] = []
        walk.cluster.on_event = trace.append
        walk.run()
        traces.append(trace)
    assert traces[0] == traces[1]


# --- planted bugs -----------------------------------------------------------------------------------------


def commit_by_count(patch: pytest.MonkeyPatch) -> None:
    """Commits every offset that a majority has, whatever its epoch."""
    patch.setattr(leader, "may_commit", lambda offset, high_watermark, _: offset > high_watermark)


def vote_for_any_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogView, "is_at_most", lambda *_: True)


def send_before_the_vote_is_saved(patch: pytest.MonkeyPatch) -> None:
    def release(self: Raft, out: list[Effect]) -> None:
        out.extend(self._held)
        self._held.clear()

    patch.setattr(Raft, "_release", release)


def count_unflushed_records(patch: pytest.MonkeyPatch) -> None:
    append = LogView.append

    def eager(self: LogView, batch: Batch) -> None:
        append(self, batch)
        self.flushed_offset = self.end_offset

    patch.setattr(LogView, "append", eager)


def trust_every_fetch_offset(patch: pytest.MonkeyPatch) -> None:
    """Compares no epochs: assumes that a follower's log is a prefix of the leader's log unless the follower's log is
    longer."""
    compare = LogView.compare

    def credulous(self: LogView, offset: int, last_epoch: int) -> object:
        return compare(self, offset, self.end_offset_for(1 << 30).epoch if offset <= self.end_offset else last_epoch)

    patch.setattr(LogView, "compare", credulous)


def truncate_to_the_start(patch: pytest.MonkeyPatch) -> None:
    """Truncates a diverging follower's log to its start."""
    patch.setattr(LogView, "cut_for", lambda self, _: self.start_offset)


def change_voters_without_waiting(patch: pytest.MonkeyPatch) -> None:
    """Appends a change of voters while another change is uncommitted, in an epoch without a committed record."""

    def ready(core: Core) -> Leader:
        if not isinstance(core.state, Leader):
            raise membership._RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "")
        core.state.change = None
        return core.state

    patch.setattr(membership, "_ready", ready)
    patch.setattr(membership, "_is_caught_up", lambda *_: True)


def forget_votes(patch: pytest.MonkeyPatch) -> None:
    """Loses the vote, and nothing else, in a crash."""
    patch.setattr(Cluster, "keep_votes", False)


#: Weights for bugs that random weights find too slowly: leaders crash soon after appends, voters soon after votes.
YOUNG_LEADERS = {"deliver": 50, "pass_time": 25, "propose": 10, "crash_leader": 10, "restart": 6}
DYING_VOTERS = {"deliver": 50, "pass_time": 20, "crash": 6, "restart": 10}


@pytest.mark.parametrize(
    ("plant", "mix"),
    [
        (commit_by_count, YOUNG_LEADERS),
        (forget_votes, DYING_VOTERS),
        (vote_for_any_log, None),
        pytest.param(send_before_the_vote_is_saved, None, marks=pytest.mark.slow),
        (count_unflushed_records, None),
        (trust_every_fetch_offset, None),
        (truncate_to_the_start, None),
        (change_voters_without_waiting, None),
    ],
)
def test_random_schedules_find_a_planted_raft_bug(
    plant: Callable[[pytest.MonkeyPatch], None], mix: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((ViolationError, InvariantError)):
        run_seeds(0, MAX_SEEDS_FOR_A_BUG, mix)
