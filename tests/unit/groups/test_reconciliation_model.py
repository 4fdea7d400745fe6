"""Compares the reconciliation of members, their epochs and their timers with plain models, for all small cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain, combinations, product
from random import Random

import pytest

from penstock.groups.config import GroupConfig
from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember
from penstock.groups.reconciliation import MemberState, check_member_epoch, reconcile
from penstock.groups.shard import GroupShard
from penstock.groups.timers import NEVER, Timer, TimerKind, Timers
from penstock.groups.timing import Limits, arm_revocation, may_assign
from penstock.protocol.errors import ErrorCode, KafkaError

T, U = b"t" * 16, b"u" * 16
Slot = tuple[bytes, int]
SLOTS: list[Slot] = [(T, 0), (T, 1), (U, 0)]
EPOCH = 5


def subsets(slots: list[Slot]) -> list[frozenset[Slot]]:
    return [
        frozenset(some) for some in chain.from_iterable(combinations(slots, size) for size in range(len(slots) + 1))
    ]


def wanted(slots: Iterable[Slot]) -> dict[bytes, frozenset[int]]:
    slots = frozenset(slots)
    return {topic: frozenset(index for each, index in slots if each == topic) for topic, _ in slots}


def held(epochs: Mapping[Slot, int]) -> dict[bytes, dict[int, int]]:
    return {topic: {index: since for (each, index), since in epochs.items() if each == topic} for topic, _ in epochs}


def flat(assigned: Mapping[bytes, Mapping[int, int]]) -> dict[Slot, int]:
    return {(topic, index): since for topic, some in assigned.items() for index, since in some.items()}


def expected(
    member: ConsumerMember,
    target_epoch: int,
    target: frozenset[Slot],
    owned: frozenset[Slot] | None,
    taken: frozenset[Slot],
) -> ConsumerMember:
    """Applies the rules: revoke first, advance when nothing revoked is reported, then add what nobody else holds."""
    assigned, pending = flat(member.assigned), flat(member.pending_revocation)
    epoch = member.epoch
    if member.state is MemberState.STABLE and epoch == target_epoch:
        return member
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or owned & pending.keys():
            return member
        epoch += 1
    kept = {slot: since for slot, since in assigned.items() if slot in target}
    revoked = {slot: since for slot, since in assigned.items() if slot not in target}
    if revoked and (owned is None or owned & revoked.keys()):
        state = MemberState.UNREVOKED_PARTITIONS
    else:
        missing = target - assigned.keys()
        kept |= dict.fromkeys(missing - taken, target_epoch)
        state = MemberState.UNRELEASED_PARTITIONS if missing & taken else MemberState.STABLE
        epoch, revoked = target_epoch, {}
    return replace(
        member,
        epoch=epoch,
        previous_epoch=member.previous_epoch if epoch == member.epoch else member.epoch,
        state=state,
        assigned=held(kept),
        pending_revocation=held(revoked),
    )


@pytest.mark.parametrize("state", MemberState)
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_each_step_towards_the_target_follows_the_rules(state: MemberState, ahead: int) -> None:
    pending = {(U, 7): 2, (T, 7): 3} if state is MemberState.UNREVOKED_PARTITIONS else {}
    reports = [*subsets(SLOTS), None, frozenset({(U, 7)}), frozenset({(T, 0), (T, 7)})]
    for assigned, target, owned, taken in product(subsets(SLOTS), subsets(SLOTS), reports, subsets(SLOTS)[::3]):
        since = {slot: 2 + number for number, slot in enumerate(sorted(assigned))}
        member = ConsumerMember(
            "m", epoch=EPOCH, previous_epoch=3, state=state, assigned=held(since), pending_revocation=held(pending)
        )
        others = taken - assigned
        stepped = reconcile(
            member,
            EPOCH + ahead,
            wanted(target),
            wanted(owned) if owned is not None else None,
            lambda topic, index, others=others: (topic, index) in others,  # type: ignore[misc]
        )
        wished = expected(member, EPOCH + ahead, target, owned, others)
        assert flat(stepped.assigned) == flat(wished.assigned)
        assert flat(stepped.pending_revocation) == flat(wished.pending_revocation)
        same = replace(stepped, assigned={}, pending_revocation={})
        assert same == replace(wished, assigned={}, pending_revocation={})


def test_member_epoch_is_accepted_if_it_is_current_or_its_response_was_lost() -> None:
    for previous, epoch, assigned in product(range(6), range(-1, 8), subsets(SLOTS)):
        member = ConsumerMember("m", epoch=EPOCH, previous_epoch=previous, assigned=held(dict.fromkeys(assigned, 1)))
        for owned in (*subsets(SLOTS), None):
            lost = epoch == previous and epoch < EPOCH and owned is not None and owned <= assigned
            try:
                check_member_epoch(member, epoch, wanted(owned) if owned is not None else None)
                code = ErrorCode.NONE
            except KafkaError as error:
                code = error.code
            assert (code is ErrorCode.NONE) == (epoch in (0, EPOCH) or lost), (previous, epoch, owned)
            assert code in (ErrorCode.NONE, ErrorCode.FENCED_MEMBER_EPOCH)


# --- time


def test_group_may_be_assigned_again_after_the_interval_or_if_the_clock_was_set_back() -> None:
    limits = Limits(1, 1, assignment_interval_ms=10)
    shard = GroupShard(GroupConfig(), Random(1))
    assert [may_assign(shard.turn(0, wall_ms), 100, limits) for wall_ms in (99, 100, 101, 109, 110)] == [
        *(True, False, False),
        *(False, True),
    ]


@pytest.mark.parametrize(("timeout_ms", "waits_ms"), [(-1, 0), (0, 0), (7, 7)])
def test_rebalance_timeout_begins_with_the_revocation_and_ends_with_it(timeout_ms: int, waits_ms: int) -> None:
    group = ConsumerGroup("g")
    shard = GroupShard(GroupConfig(), Random(1))
    revoking = ConsumerMember("m", rebalance_timeout_ms=timeout_ms, state=MemberState.UNREVOKED_PARTITIONS)
    arm_revocation(shard.turn(100, 0), group, replace(revoking, state=MemberState.STABLE))
    assert not group.revocations
    for now_ms in (100, 103):
        arm_revocation(shard.turn(now_ms, 0), group, revoking)
        assert group.revocations["m"].deadline_ms == 100 + waits_ms, "a later heartbeat does not extend it"
    for state in (MemberState.STABLE, MemberState.UNRELEASED_PARTITIONS):
        arm_revocation(shard.turn(104, 0), group, revoking)
        arm_revocation(shard.turn(104, 0), group, replace(revoking, state=state))
        assert not group.revocations["m"].armed


@pytest.mark.parametrize("seed", range(30))
def test_timers_fire_once_at_their_last_deadline_and_in_order(seed: int) -> None:
    random = Random(seed)
    timers = Timers()
    some = [Timer(TimerKind.SESSION, "g", str(number)) for number in range(4)]
    deadlines: dict[Timer, int] = {}
    now_ms = 0
    for _ in range(80):
        timer = random.choice(some)
        match random.randint(0, 3):
            case 0 | 1:
                deadlines[timer] = now_ms + random.randint(0, 12)
                timers.set(timer, deadlines[timer])
            case 2:
                deadlines.pop(timer, None)
                timer.cancel()
            case _:
                now_ms += random.randint(0, 5)
                fired = timers.due(now_ms)
                due = {each: deadline for each, deadline in deadlines.items() if deadline <= now_ms}
                assert len(fired) == len(due)
                assert set(fired) == due.keys()
                deadlines = {each: deadline for each, deadline in deadlines.items() if deadline > now_ms}
        assert [each.deadline_ms for each in some] == [deadlines.get(each, NEVER) for each in some]
        next_ms = timers.next_deadline()
        if deadlines:
            assert next_ms is not None
            assert next_ms <= min(deadlines.values())
        assert len(timers) <= 80
    timers.due(now_ms + 100)
    assert len(timers) == 0
    assert timers.next_deadline() is None
