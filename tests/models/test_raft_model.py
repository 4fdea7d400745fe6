"""Tests that no reachable state of a small quorum has two leaders in an epoch or a leader without committed records."""

from collections.abc import Callable
from typing import Any

import pytest
from explorer import Explored, explore, require_broken
from raft_model import Budget, RaftModel

from penstock.raft import membership
from penstock.raft.core import Core
from penstock.raft.log_view import LogView
from penstock.raft.states import Leader
from penstock.raft.voters import VoterSet


def explored(model: RaftModel, most_states: int = 30_000) -> Explored:
    found = explore(model, most_states=most_states)
    print(found)
    return found


@pytest.mark.parametrize(
    "model",
    [
        RaftModel(Budget(timeouts=1, proposals=1)),
        RaftModel(Budget(timeouts=1, lost_answers=1)),
        RaftModel(Budget(timeouts=0, crashes=1, proposals=1)),
        RaftModel(Budget(timeouts=0, proposals=1, removals=1)),
        RaftModel(Budget(timeouts=0, additions=1, proposals=1), (1, 2), (3,)),
        RaftModel(Budget(timeouts=1, removals=1)),
        RaftModel(Budget(timeouts=1, additions=1), (1, 2), (3,)),
        RaftModel(Budget(timeouts=2), (1, 2), led=False),
        RaftModel(Budget(timeouts=2, crashes=1), (1, 2), led=False),
    ],
    ids=[
        *("election", "lost answer", "crash", "voter removed", "voter added", "election and removal"),
        *("election and addition", "two candidates", "two candidates and a crash"),
    ],
)
def test_no_reachable_state_of_a_small_quorum_breaks_an_invariant(model: RaftModel) -> None:
    assert not explored(model).broken


@pytest.mark.slow
def test_every_state_of_a_quorum_within_two_timeouts_keeps_all_invariants() -> None:
    assert not explored(RaftModel(Budget(timeouts=2))).broken


# Rules that are taken away.


def _ready_while_a_change_is_pending(core: Core) -> Leader:
    assert isinstance(core.state, Leader)
    core.state.change = None
    return core.state


BUGS: dict[str, tuple[Any, str, Any, Callable[[], RaftModel], tuple[str, ...]]] = {
    "half of the voters are a majority": (
        *(VoterSet, "majority", property(lambda self: (len(self) + 1) // 2)),
        lambda: RaftModel(Budget(timeouts=2), (1, 2), led=False),
        ("n1, unattached, times out", "n2, unattached, times out"),
    ),
    "a voter elects a leader with an older log": (
        *(LogView, "is_at_most", lambda self, last_epoch, end_offset: True),
        lambda: RaftModel(Budget(timeouts=2, proposals=1)),
        ("n1 appends a record", "times out", "times out", "Vote(epoch=2 pre_vote=False)"),
    ),
    "voters change while another change is not committed": (
        *(membership, "_ready", _ready_while_a_change_is_pending),
        lambda: RaftModel(Budget(timeouts=2, removals=2)),
        ("times out", "times out", "n1 is asked to remove voter", "n1 is asked to remove voter"),
    ),
}


SLOW = "voters change while another change is not committed"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == SLOW)) for name in BUGS])
def test_removing_any_one_rule_of_raft_breaks_an_invariant_of_the_model(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, attribute, wrong, model, steps = BUGS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    require_broken(explored(model()), steps)
