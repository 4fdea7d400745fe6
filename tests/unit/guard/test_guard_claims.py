"""Tests the findings about false claims of replicas: leadership, log ends and high watermarks."""

from penstock.guard.claims import Claim, Retreat, Role, judge_claims, judge_marks, judge_retreat
from penstock.guard.findings import NOBODY, Kind


def test_second_node_that_claims_to_lead_in_the_same_epoch_is_accused() -> None:
    claims = [Claim(1, Role.LEADS, 10), Claim(2, Role.LEADS, 12), Claim(3, Role.FOLLOWS)]
    (found,) = judge_claims("t-0", 1, 4, claims)
    assert (found.kind, found.accused) == (Kind.TWO_LEADERS, 2)
    assert found.evidence == "node 2 claims to lead in epoch 4, in which node 1 leads"


def test_rightful_leader_and_nodes_that_do_not_answer_are_not_accused() -> None:
    assert list(judge_claims("t-0", 1, 4, [Claim(1, Role.LEADS, 10), Claim(2, Role.UNKNOWN)])) == []


def test_node_with_an_epoch_above_the_controllers_epoch_is_accused() -> None:
    (found,) = judge_claims("t-0", 1, 4, [Claim(1, Role.LEADS, 10), Claim(3, Role.AHEAD)])
    assert (found.kind, found.accused) == (Kind.EPOCH, 3)


def test_high_watermarks_at_or_below_the_leaders_log_end_give_no_finding() -> None:
    assert list(judge_marks("t-0", 1, 10, {1: 10, 2: 9, 3: 10})) == []


def test_leader_whose_high_watermark_is_past_its_own_log_end_is_accused() -> None:
    (found,) = judge_marks("t-0", 1, 10, {1: 11, 2: 9, 3: 10})
    assert (found.kind, found.accused, found.offset) == (Kind.HIGH_WATERMARK, 1, 11)


def test_single_follower_with_a_high_watermark_past_the_leaders_log_end_is_accused() -> None:
    (found,) = judge_marks("t-0", 1, 10, {1: 10, 2: 15, 3: 10})
    assert found.accused == 2


def test_leader_with_a_log_end_below_the_high_watermarks_of_both_followers_is_accused() -> None:
    (found,) = judge_marks("t-0", 1, 5, {1: 5, 2: 10, 3: 10})
    assert found.accused == 1


def test_no_node_is_accused_if_the_only_follower_has_a_high_watermark_past_the_leaders_log_end() -> None:
    (found,) = judge_marks("t-0", 1, 5, {1: 5, 2: 10})
    assert found.accused == NOBODY


def test_finding_about_a_follower_that_fetches_from_a_lower_offset_names_both_offsets() -> None:
    found = judge_retreat("t-0", Retreat(2, 4, was=20, now=7))
    assert (found.kind, found.accused, found.offset) == (Kind.END_OFFSET, 2, 7)
    assert found.evidence == "node 2 fetched from offset 7 after 20, both in leader epoch 4"
