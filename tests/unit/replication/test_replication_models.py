"""Compares the rules of replication with plain models of them, for all small inputs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from penstock.metadata.image import BrokerImage, PartitionImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.replication import follower
from penstock.replication.directory_move import (
    MAX_NAME_BYTES,
    MAX_TAIL_BYTES,
    MIN_TAIL_BYTES,
    TRANSITIONS,
    Action,
    CopyRate,
    Decision,
    MoveEvent,
    MoveFigures,
    MoveState,
    Replica,
    decide,
    tail_bytes,
)
from penstock.replication.epochs import check_leader_epoch, newest_epoch_end
from penstock.replication.fetch_session import LAST_EPOCH, NO_SESSION, Key, ReplicaSession
from penstock.replication.follower import Answer, Trouble
from penstock.replication.leader import Leading, Progress, Proposal, Verdict, effective_min_isr
from penstock.replication.preferred_replica import preferred_replica

LAG_MS = 100
BROKERS = {each: BrokerImage(each, 10 + each, bytes(16), {}, fenced=False) for each in (1, 2, 3)}


def image(isr: tuple[int, ...] = (1, 2, 3), *, leader_epoch: int = 5, partition_epoch: int = 8) -> PartitionImage:
    return PartitionImage((1, 2, 3), isr, 1, leader_epoch, partition_epoch=partition_epoch)


# Epochs.


def test_leader_epoch_of_a_request_is_compared_with_the_leaders_epoch() -> None:
    for asked, current in product(range(-1, 4), range(4)):
        code = ErrorCode.NONE
        try:
            check_leader_epoch(asked, current)
        except KafkaError as error:
            code = error.code
        if asked in (-1, current):
            assert code is ErrorCode.NONE
        else:
            assert code is (ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH)


def test_epoch_ends_at_the_log_end_if_the_leaders_log_has_no_later_epoch() -> None:
    for epoch, current, latest in product(range(-1, 6), range(5), (None, *range(5))):
        if latest is not None and latest > current:
            continue
        known = {current} if latest is None else {current, latest}
        found = newest_epoch_end(epoch, current, latest, 70)
        if epoch == -1 or epoch > current or (latest is not None and epoch < latest):
            assert found is None
        elif latest is None:
            assert found == (epoch, 70)
        else:
            assert found == (max(each for each in known if each <= epoch), 70)


# Followers.


def test_answer_is_applied_only_at_the_asked_offset_and_truncates_if_it_names_an_epoch_or_an_end() -> None:
    for asked, log_end, epoch, end in product(range(3), range(3), (-1, 0, 2), (-1, 0, 2)):
        expected = Answer.STALE
        if asked == log_end:
            expected = Answer.APPEND if (epoch, end) == (-1, -1) else Answer.TRUNCATE
        assert follower.answer(asked, log_end, epoch, end) is expected


def test_follower_truncates_to_the_end_of_the_last_epoch_that_both_logs_have() -> None:
    for leader_epoch, leader_end, own_epoch, own_end in product((-1, 1, 2), (-1, 2, 4, 9), (-1, 1, 2), (-1, 3, 8)):
        for log_end, mark in product((1, 5), (0, 3, 7)):
            step = follower.truncation(leader_epoch, leader_end, own_epoch, own_end, log_end, mark)
            if leader_end == -1:
                expected = (mark, True)
            elif -1 in (leader_epoch, own_end):
                expected = (leader_end, True)
            elif own_epoch == leader_epoch:
                expected = (min(own_end, leader_end), True)
            else:
                expected = (own_end, False)
            assert (step.offset, step.done) == (min(expected[0], log_end), expected[1])


def test_pause_doubles_after_each_error_that_metadata_may_solve_and_is_the_backoff_after_others() -> None:
    for backoff, failures in product((0, 3, 50, 1000), range(40)):
        expected = min(backoff, follower.FIRST_PAUSE_MS * 2**failures)
        assert follower.pause_ms(Trouble.SOON, failures, backoff) == expected
        for kind in (Trouble.LATER, Trouble.OUT_OF_RANGE):
            assert follower.pause_ms(kind, failures, backoff) == backoff


def test_every_error_code_of_a_fetch_has_its_kind_of_recovery() -> None:
    soon = {
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
    for code in ErrorCode:
        kind = Trouble.SOON if code in soon else Trouble.LATER
        assert follower.trouble(code) is (Trouble.OUT_OF_RANGE if code is ErrorCode.OFFSET_OUT_OF_RANGE else kind)
        assert follower.is_final(code) is (code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER))


# Fetch sessions.

KEYS: tuple[Key, ...] = ((b"a" * 16, 0), (b"a" * 16, 1), (b"b" * 16, 0))
STEPS = ("follow", "unfollow", "move", "fetch", "lost", "refused", "no room", "begin")


class Fetching:
    """Plays the follower and its leader: the leader's session has to contain the followed partitions."""

    def __init__(self) -> None:
        self.session = ReplicaSession()
        self.followed: dict[Key, None] = dict.fromkeys(KEYS[:2])
        self.news: set[Key] = set()
        self.at_leader: set[Key] = set()
        self.epoch = 0

    def take(self, step: str) -> None:
        session = self.session
        match step:
            case "follow":
                for key in KEYS[1:]:
                    if key not in self.followed:
                        session.come_back(key)
                        session.mention(key)
                        self.followed[key] = None
                        self.news.add(key)
            case "unfollow":
                if self.followed:
                    key = next(reversed(self.followed))
                    del self.followed[key]
                    session.leave(key)
                    self.news.discard(key)
            case "move":
                for key in list(self.followed)[:1]:
                    session.mention(key)
                    self.news.add(key)
            case "begin":
                session.begin()
                self.epoch = 0
            case _:
                self.fetch(step)

    def fetch(self, step: str) -> None:
        session = self.session
        begins = self.epoch == 0
        assert (session.begins, session.epoch) == (begins, self.epoch)
        due = session.due(self.followed)
        assert set(due) == (set(self.followed) if begins else self.news)
        assert len(due) == len(set(due))
        for key in due:
            session.named(key)
        removed = {(topic.topic_id, index) for topic in session.ask() for index in topic.partitions}
        self.at_leader = set(due) if begins else (self.at_leader - removed) | set(due)
        assert not begins or not removed
        assert self.at_leader == set(self.followed)
        self.news = set()
        match step:
            case "fetch":
                session.answered(7)
                self.epoch += 1
                assert session.id == 7
            case "no room":
                session.answered(NO_SESSION)
                self.epoch = 0
                assert session.id == NO_SESSION
            case "lost" | "refused":
                before = session.id
                lost = session.failed(
                    ErrorCode.FETCH_SESSION_ID_NOT_FOUND if step == "lost" else ErrorCode.NETWORK_EXCEPTION
                )
                assert (lost, session.id) == (step == "lost", NO_SESSION if step == "lost" else before)
                self.epoch = 0


def test_leaders_session_contains_exactly_the_followed_partitions_after_any_few_steps() -> None:
    for steps in product(STEPS, repeat=4):
        fetching = Fetching()
        for step in ("fetch", *steps, "fetch", "fetch"):
            fetching.take(step)


def test_only_errors_about_the_session_end_it_at_the_leader() -> None:
    lost = {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
    for code in ErrorCode:
        session = ReplicaSession()
        session.answered(7)
        assert session.failed(code) is (code in lost)
        assert (session.id, session.begins) == (NO_SESSION if code in lost else 7, True)


@pytest.mark.parametrize(("epoch", "following"), [(0, 1), (1, 2), (LAST_EPOCH - 1, LAST_EPOCH), (LAST_EPOCH, 1)])
def test_session_epoch_counts_up_to_the_largest_epoch_and_then_begins_at_one(epoch: int, following: int) -> None:
    session = ReplicaSession()
    session.epoch = epoch
    session.answered(7)
    assert session.epoch == following


def test_partition_that_returns_and_leaves_again_between_two_fetches_is_forgotten() -> None:
    session = ReplicaSession()
    for key in session.due(KEYS[:1]):
        session.named(key)
    session.ask()
    session.answered(7)
    session.leave(KEYS[0])
    session.come_back(KEYS[0])
    session.mention(KEYS[0])
    session.leave(KEYS[0])
    assert session.due([]) == []
    assert [(each.topic_id, each.partitions) for each in session.ask()] == [(KEYS[0][0], [0])]


# Leaders.


def test_effective_min_isr_is_the_smaller_of_the_config_and_the_number_of_replicas() -> None:
    for config, count in product(range(1, 5), range(1, 5)):
        assert effective_min_isr(config, tuple(range(count))) == min(config, count)
    for isr, config in product([(1,), (1, 2), (1, 2, 3)], range(1, 6)):
        assert Leading(1, image(isr), 0, 0).is_under_min_isr(config) is (len(isr) < min(config, 3))


def test_fetch_offset_is_forgotten_exactly_if_the_broker_epoch_changes() -> None:
    progress = Progress(2, 0, 0)
    assert (progress.broker_epoch, progress.log_end) == (-1, -1)
    for epoch, forgets in ((7, True), (7, False), (8, True), (7, True)):
        progress.log_end = 4
        progress.registered_as(epoch)
        assert (progress.broker_epoch, progress.log_end) == (epoch, -1 if forgets else 4)


def test_fetch_of_a_follower_is_stored_in_every_field() -> None:
    progress = Progress(2, 3, 4)
    assert (progress.caught_up_ms, progress.fetch_ms, progress.since_ms) == (3, 3, 4)
    progress.on_fetch(6, 5, 9, 50)
    seen = (progress.log_end, progress.log_start, progress.leader_end, progress.fetch_ms, progress.caught_up_ms)
    assert seen == (6, 5, 9, 50, 3)
    progress.on_fetch(9, 6, 12, 70)
    seen = (progress.log_end, progress.log_start, progress.leader_end, progress.fetch_ms, progress.caught_up_ms)
    assert seen == (9, 6, 12, 70, 50), "at 70 ms it has the records that the leader had at 50 ms"


def test_follower_is_caught_up_at_the_log_end_or_within_the_lag_time() -> None:
    for log_end, caught_up_ms, now_ms, since_ms in product((4, 5), (0, 10), (99, 100, 101, 110, 111), (0, 5, 20)):
        progress = Progress(2, caught_up_ms, since_ms)
        progress.log_end = log_end
        assert progress.is_caught_up(5, now_ms, LAG_MS) is (log_end == 5 or now_ms - caught_up_ms <= LAG_MS)
        lag = 0 if log_end == 5 else now_ms - max(caught_up_ms, since_ms)
        assert progress.lag_ms(5, now_ms) == lag
    assert Progress(2, 50, 60).lag_ms(5, 40) == 0, "a clock behind the fetch"


def test_high_watermark_is_the_lowest_end_of_the_isr_and_of_eligible_followers_that_are_caught_up() -> None:
    for ends, in_isr, recent, alive in product(
        product((2, 5, 8), repeat=2), product((True, False), repeat=2), product((True, False), repeat=2), (True, False)
    ):
        isr = (1, *(node for node, inside in zip((2, 3), in_isr) if inside))
        leading = Leading(1, image(isr), 0, 0)
        brokers = BROKERS if alive else {1: BROKERS[1]}
        counted = [7]
        for node, end, inside, is_recent in zip((2, 3), ends, in_isr, recent):
            progress = leading.followers[node]
            progress.broker_epoch, progress.log_end = 10 + node, end
            progress.caught_up_ms = 950 if is_recent else 0
            if inside or (alive and (is_recent or end == 8)):
                counted.append(end)
        assert leading.high_watermark(7, 8, 1000, LAG_MS, brokers) == min(counted)


def test_follower_is_eligible_only_if_it_is_registered_unfenced_staying_and_of_the_same_incarnation() -> None:
    for known, fenced, stopping, epoch in product((True, False), (True, False), (True, False), (11, 12, 13)):
        progress = Progress(2, 0, 0)
        progress.broker_epoch = epoch
        broker = replace(BROKERS[2], fenced=fenced, in_controlled_shutdown=stopping)
        brokers = {1: BROKERS[1], **({2: broker} if known else {})}
        assert Leading.is_eligible(progress, brokers) is (known and not fenced and not stopping and epoch == 12)


def test_follower_may_join_only_if_every_condition_holds() -> None:
    for pending, inside, end, mark, start, alive in product(
        (False, True), (False, True), (3, 4, 5), (3, 4, 5), (3, 4, 5), (True, False)
    ):
        leading = Leading(1, image((1, 2, 3) if inside else (1, 3)), start, 0)
        if pending:
            leading.shrink([3], 11)
        progress = leading.followers[2]
        progress.broker_epoch, progress.log_end = 12, end
        expected = not pending and not inside and end >= mark and end >= start and alive
        assert leading.may_join(progress, mark, BROKERS if alive else {}) is expected


def test_laggards_are_members_of_the_isr_that_are_behind_for_too_long_unless_a_change_is_pending() -> None:
    for isr, late, pending in product([(1,), (1, 2), (2, 3, 1)], [(), (2,), (3,), (2, 3)], (False, True)):
        leading = Leading(1, image(isr), 0, 0)
        for node, progress in leading.followers.items():
            progress.caught_up_ms = 0 if node in late else 900
        if pending:
            leading.expand(3, 11)
        expected = [] if pending else [node for node in isr if node in late]
        assert leading.laggards(9, 1000, LAG_MS) == expected


def test_low_watermark_is_the_lowest_log_start_of_the_leader_and_the_live_followers() -> None:
    for own, starts, alive in product((2, 5), product((1, 4, 6), repeat=2), [(), (2,), (3,), (2, 3)]):
        leading = Leading(1, image(), 0, 0)
        for node, start in zip((2, 3), starts):
            leading.followers[node].log_start = start
        expected = min([own, *(start for node, start in zip((2, 3), starts) if node in alive)])
        assert leading.low_watermark(own, alive.__contains__) == expected


def test_proposals_name_the_members_with_their_broker_epochs_and_the_epochs_of_the_partition() -> None:
    leading = Leading(1, image((1, 2)), 0, 0)
    for node in (2, 3):
        leading.followers[node].broker_epoch = 10 + node
    assert leading.expand(3, 99) == Proposal((1, 2, 3), ((1, 99), (2, 12), (3, 13)), 5, 8, expands=True)
    assert leading.maximal_isr == {1, 2, 3}
    assert leading.accepted([1, 2, 3], 5, 9)
    assert (leading.proposal, leading.isr, leading.partition_epoch) == (None, (1, 2, 3), 9)
    assert leading.shrink([2], 99) == Proposal((1, 3), ((1, 99), (3, 13)), 5, 9, expands=False)
    assert leading.maximal_isr == {1, 2, 3}
    assert leading.isr == (1, 2, 3)
    gone = Leading(1, PartitionImage((1, 2), (1, 2, 4), 1, 5, partition_epoch=8), 0, 0)
    assert gone.shrink([2], 99).members == ((1, 99), (4, -1)), "a member that is no replica any more"


def test_image_ends_a_proposal_only_with_a_later_partition_epoch_and_never_undoes_a_later_answer() -> None:
    for epoch, pending in product((7, 8, 9), (False, True)):
        leading = Leading(1, image((1, 2)), 0, 0)
        if pending:
            leading.expand(3, 11)
        leading.follow(image((1,), partition_epoch=epoch), 0)
        adopts = epoch == 9 or (epoch == 8 and not pending)
        assert leading.isr == ((1,) if adopts else (1, 2))
        assert (leading.proposal is None) is (adopts or not pending)
        assert leading.partition_epoch == max(8, epoch)
        assert leading.maximal_isr == ({1} if adopts else {1, 2, 3} if pending else {1, 2})


def test_smaller_isr_counts_when_granted_only_without_a_new_partition_epoch() -> None:
    for expands, granted in product((True, False), (7, 8, 9, 10)):
        proposal = Proposal((1, 2), ((1, 11), (2, 12)), 5, 8, expands)
        assert proposal.counts_when_granted(granted) is (expands or granted <= 8)


def test_every_refusal_that_a_new_image_explains_waits_for_the_image() -> None:
    waits = {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.INELIGIBLE_REPLICA,
    }
    leading = Leading(1, image(), 0, 0)
    for code in ErrorCode:
        assert leading.refused(code) is (Verdict.WAIT if code in waits else Verdict.RETRY)


def test_new_followers_of_the_isr_start_caught_up_and_others_never_were() -> None:
    leading = Leading(1, image((1, 2)), 3, 500)
    assert list(leading.followers) == [2, 3]
    assert [each.is_caught_up(9, 500 + LAG_MS, LAG_MS) for each in leading.followers.values()] == [True, False]
    assert [each.since_ms for each in leading.followers.values()] == [500, 500]
    assert [each.is_caught_up(9, 501 + LAG_MS, LAG_MS) for each in leading.followers.values()] == [False, False]
    assert leading.epoch_start == 3


# Preferred replicas.


def test_preferred_replica_is_the_best_live_in_sync_follower_of_the_rack_that_has_the_offset() -> None:
    for ends, caught_up, racks, isr, fenced in product(
        product((4, 5, 6), repeat=2),
        product((1, 2), repeat=2),
        product(("near", "far"), repeat=3),
        [(1,), (1, 2), (1, 2, 3)],
        [(), (2,), (3,)],
    ):
        leading = Leading(1, image(isr), 0, 0)
        brokers = {
            node: replace(BROKERS[node], rack=rack, fenced=node in fenced) for node, rack in zip((1, 2, 3), racks)
        }
        fit = []
        for node, end, at_ms, rack in zip((2, 3), ends, caught_up, racks[1:]):
            progress = leading.followers[node]
            progress.log_start, progress.log_end, progress.caught_up_ms = 5, end, at_ms
            if node in isr and node not in fenced and rack == "near" and end >= 5:
                fit.append((end, at_ms, -node))
        for offset in (4, 5):
            expected = -max(fit)[2] if fit and racks[0] != "near" and offset == 5 else -1
            assert preferred_replica(leading, brokers, "near", offset) == expected


# Moves between directories.


def test_request_to_move_a_replica_is_checked_in_the_order_of_kafka() -> None:
    replicas = [None] + [
        Replica("/a", offline, moves_to, swapping)
        for offline, moves_to, swapping in product((False, True), (None, "/b", "/c"), (False, True))
        if moves_to is not None or not swapping
    ]
    for target, offline, replica, size, exists in product(
        (None, "/a", "/b"), (False, True), replicas, (MAX_NAME_BYTES, MAX_NAME_BYTES + 1), (False, True)
    ):
        if size > 255:
            expected = Decision(Action.NOTHING, ErrorCode.INVALID_TOPIC_EXCEPTION)
        elif target is None:
            expected = Decision(Action.NOTHING, ErrorCode.LOG_DIR_NOT_FOUND)
        elif offline or (replica is not None and replica.offline):
            expected = Decision(Action.NOTHING, ErrorCode.KAFKA_STORAGE_ERROR)
        elif replica is None:
            missing = ErrorCode.REPLICA_NOT_AVAILABLE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            expected = Decision(Action.REMEMBER, missing)
        elif replica.moves_to == target:
            expected = Decision(Action.NOTHING)
        elif replica.swapping:
            expected = Decision(Action.NOTHING, ErrorCode.KAFKA_STORAGE_ERROR)
        elif replica.moves_to is None:
            expected = Decision(Action.NOTHING if target == "/a" else Action.START)
        else:
            expected = Decision(Action.CANCEL if target == "/a" else Action.REPLACE)
        assert decide(target, offline, replica, size, exists=exists) == expected, (target, replica)


def test_every_state_but_the_last_ones_can_fail_and_only_a_swap_can_not_be_cancelled() -> None:
    last = {MoveState.DONE, MoveState.FAILED, MoveState.CANCELLED}
    for state in MoveState:
        events = {event for known, event in TRANSITIONS if known is state}
        assert (MoveEvent.FAILED in events) is (state not in last)
        assert (MoveEvent.CANCELLED in events) is (state not in last and state is not MoveState.SWAPPING)
    assert len(TRANSITIONS) == 12


def test_tail_is_a_quarter_of_the_log_between_its_limits() -> None:
    for size in (0, 4 * MIN_TAIL_BYTES - 1, 4 * MIN_TAIL_BYTES + 4, 40_000, 4 * MAX_TAIL_BYTES - 4, 8 * MAX_TAIL_BYTES):
        quarter = size // 4
        expected = quarter if MIN_TAIL_BYTES <= quarter <= MAX_TAIL_BYTES else None
        if expected is None:
            expected = MIN_TAIL_BYTES if quarter < MIN_TAIL_BYTES else MAX_TAIL_BYTES
        assert tail_bytes(size) == expected


def test_copy_rate_leaves_out_exactly_what_was_copied_ten_seconds_ago_or_earlier() -> None:
    rate = CopyRate()
    for quarter in range(41):
        rate.add(100, quarter / 4)
    assert rate.per_second(10.0) == 400.0
    assert (rate.copied, rate.per_second(20.0)) == (4100, 200.0)


def test_remaining_time_is_unknown_exactly_if_bytes_are_left_and_nothing_is_copied() -> None:
    for left, per_second in product((0, 1, 600), (0.0, 0.5, 300.0)):
        figures = MoveFigures("t", 0, "/a", "/b", MoveState.COPYING, 0, left, 0, per_second)
        expected = None if left and not per_second else left / per_second if left else 0.0
        assert figures.seconds_left == expected
