"""Tests that nodes refuse forged messages: as fenced if listeners are open, as unauthorized if they demand a login."""

import re
from collections import Counter

import pytest

from penstock.protocol.messages.api_52_vote import VoteResponse, VoteResponsePartitionData, VoteResponseTopicData
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatResponse
from penstock.sim.engine.secured_listeners import is_secured
from penstock.sim.faults.liars import is_refused
from penstock.sim.plan.draw import draw_plan
from penstock.sim.plan.profiles import LIES
from penstock.sim.run.simulation import run_plan

#: Errors that name a past epoch, or an unknown node, voter or epoch.
FENCED = {
    *("FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "STALE_BROKER_EPOCH", "INVALID_UPDATE_VERSION"),
    *("NOT_LEADER_OR_FOLLOWER", "INCONSISTENT_VOTER_SET", "INVALID_PRODUCER_EPOCH", "TRANSACTION_COORDINATOR_FENCED"),
    "INVALID_REQUEST",
}
UNAUTHORIZED = {"CLUSTER_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"}


@pytest.mark.parametrize(
    ("seed", "secured", "expected"), [(4, False, FENCED), (1, True, UNAUTHORIZED)], ids=["open", "login demanded"]
)
def test_node_refuses_forged_messages_with_epoch_errors_or_on_secured_listeners_as_unauthorized(
    seed: int, secured: bool, expected: set[str]
) -> None:
    whole = draw_plan(seed, "liars", nodes=3, duration_s=20)
    assert is_secured(whole.settings) == secured
    lies = frozenset(fault.index for fault in whole.faults if fault.kind in LIES)
    verdict = run_plan(whole.only(lies))
    assert [str(each) for each in verdict.violations] == []
    answers = Counter(found[1] for line in verdict.story if (found := re.search(r" tells .*; gets (.*)$", str(line))))
    assert sum(answers[each] for each in expected) >= 10, answers


def test_forged_request_counts_as_refused_if_the_vote_is_not_granted_or_an_error_code_is_returned() -> None:
    def vote(*, granted: bool) -> VoteResponse:
        part = VoteResponsePartitionData(vote_granted=granted)
        return VoteResponse(topics=[VoteResponseTopicData(partitions=[part])])

    assert is_refused(vote(granted=False))
    assert not is_refused(vote(granted=True))
    assert is_refused(BrokerHeartbeatResponse(error_code=1))
    assert not is_refused(BrokerHeartbeatResponse())
