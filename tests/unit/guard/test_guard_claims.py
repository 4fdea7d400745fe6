"""Judging the claims of replicas: leadership, log ends and high watermarks."""

from penstock.guard.claims import Claim, Retreat, Role, judge_claims, judge_marks, judge_retreat
from penstock.guard.findings import NOBODY, Kind


def test_a_second_leader_in_the_controllers_epoch_is_accused() -> None:
    claims = [Claim(1, Role.LEADS, 10), Claim(2, Role.LEADS, 12), Claim(3, Role.FOLLOWS)]
    (found,) = judge_claims("t-0", 1, 4, claims)
    assert (found.kind, found.accused) == (Kind.TWO_LEADERS, 2)
    assert found.evidence == "node 2 claims to lead in epoch 4, in which node 1 leads"


def test_the_leader_and_silent_nodes_are_not_accused() -> None:
    assert list(judge_claims("t-0", 1, 4, [Claim(1, Role.LEADS, 10), Claim(2, Role.UNKNOWN)])) == []


def test_node_with_an_epoch_above_the_controllers_epoch_is_accused() -> None:
    (found,) = judge_claims("t-0", 1, 4, [Claim(1, Role.LEADS, 10), Claim(3, Role.AHEAD)])
    assert (found.kind, found.accused) == (Kind.EPOCH, 3)


def test_high_watermarks_up_to_the_leaders_end_are_right() -> None:
    assert list(judge_marks("t-0", 1, 10, {1: 10, 2: 9, 3: 10})) == []


def test_a_leader_whose_high_watermark_is_past_its_own_end_is_accused() -> None:
    (found,) = judge_marks("t-0", 1, 10, {1: 11, 2: 9, 3: 10})
    assert (found.kind, found.accused, found.offset) == (Kind.HIGH_WATERMARK, 1, 11)


def test_a_single_follower_past_the_leaders_end_is_accused() -> None:
    (found,) = judge_marks("t-0", 1, 10, {1: 10, 2: 15, 3: 10})
    assert found.accused == 2


def test_a_leader_with_an_end_below_the_high_watermarks_of_both_followers_is_accused() -> None:
    (found,) = judge_marks("t-0", 1, 5, {1: 5, 2: 10, 3: 10})
    assert found.accused == 1


def test_no_node_is_accused_if_a_leader_and_its_only_follower_disagree() -> None:
    (found,) = judge_marks("t-0", 1, 5, {1: 5, 2: 10})
    assert found.accused == NOBODY


def test_an_end_offset_that_went_back_names_both_offsets_and_the_epoch() -> None:
    found = judge_retreat("t-0", Retreat(2, 4, was=20, now=7))
    assert (found.kind, found.accused, found.offset) == (Kind.END_OFFSET, 2, 7)
    assert found.evidence == "node 2 fetched from offset 7 after 20, both in leader epoch 4"
