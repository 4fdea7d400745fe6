"""Rules for share groups: a record that is accepted, rejected or archived (done) is never delivered again; every other
record is delivered.

A member's request for records begins before the records are acquired. If the request began after an acknowledgement was
answered, its records were acquired after that acknowledgement. A power loss may erase states that were not synced. Two
members may both get the answer that the same record is done: for records before its start offset, a leader accepts
acknowledgements from any member, also from one whose lock has expired. Kafka's leader does so too. For other records,
`share_states` requires the lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from penstock.protocol.vocabulary import Acknowledge, TopicPartition
from penstock.sim.checks.history import FinalView, History, Outcome, ShareAnswer, ShareDelivery
from penstock.sim.plan.plan import Plan
from penstock.sim.plan.workloads.share import LOCK_MS, MAX_DELIVERIES

DONE = (Acknowledge.ACCEPT, Acknowledge.REJECT)
Place = tuple[str, TopicPartition, int]
#: A record is held too long if at least so many later records were delivered, over at least this time.
HELD_WHILE = 4
HELD_FOR_S = 10.0


def done_records_stay_done(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each record that was delivered again after a member had accepted or rejected it and got the answer."""
    answers = _answers(history)
    for delivery in history.share_deliveries:
        for answer in answers.get(_place(delivery), ()):
            if answer.kind in DONE and answer.ended < delivery.began and not _excused(plan, history, answer, delivery):
                yield f"{_name(delivery)} was done at {answer.ended:.3f} and delivered again at {delivery.ended:.3f}"
                break


def deliveries_are_limited_and_counted(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each delivery above the delivery limit, and each delivery count that is lower than after the last known
    release."""
    answers = _answers(history)
    for delivery in history.share_deliveries:
        if not 1 <= delivery.deliveries <= MAX_DELIVERIES:
            yield f"{_name(delivery)} was delivered as number {delivery.deliveries} of {MAX_DELIVERIES}"
        for answer in answers.get(_place(delivery), ()):
            later = answer.ended < delivery.began and not _excused(plan, history, answer, delivery)
            if answer.kind == Acknowledge.RELEASE and later and delivery.deliveries <= answer.deliveries:
                yield f"{_name(delivery)} was released as number {answer.deliveries} and came as {delivery.deliveries}"
                break


def every_record_is_delivered(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each record that a group should have got but did not get.

    Each record stored after the group's first delivery must be delivered. A delivered record that is not done must be
    delivered again.
    """
    got: dict[tuple[str, TopicPartition], set[int]] = defaultdict(set)
    for delivery in history.share_deliveries:
        got[delivery.group, delivery.partition].add(delivery.offset)
    # A power loss may erase records and keep their states: then the next records at these offsets are not delivered.
    forgotten = bool(history.power_losses) and not plan.fsync_everywhere
    archived = {place for place, count in history.share_counts.items() if count >= MAX_DELIVERIES}
    for (group, partition), offsets in got.items():
        first = max(min(offsets), view.log_start.get(partition, 0))
        for offset in view.records.get(partition, {}):
            if offset >= first and offset not in offsets and not forgotten:
                yield f"{group} {partition[0]}-{partition[1]} offset {offset} was never delivered"
    final = {_place(delivery) for delivery in history.share_deliveries if _is_final(delivery)}
    answered = {(each.group, each.partition, each.offset) for each in history.share_answers if each.kind in DONE}
    for place in {_place(delivery) for delivery in history.share_deliveries} - final - answered - archived:
        if place[2] >= view.log_start.get(place[1], 0) and not forgotten:
            yield f"{place[0]} {place[1][0]}-{place[1][1]} offset {place[2]} is not done and did not come back"


def locks_run_out(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each record that a member kept unacknowledged for so long that its lock should have expired.

    The rule sees this from later records: available records are delivered in the order of their offsets. A delivery
    that its member never saw also takes a lock, but only for a moment, and not again and again.
    """
    answered = {(each.member, each.group, each.partition, each.offset) for each in history.share_answers}
    by_partition: dict[tuple[str, TopicPartition], list[ShareDelivery]] = defaultdict(list)
    times: dict[Place, list[ShareDelivery]] = defaultdict(list)
    for delivery in history.share_deliveries:
        by_partition[delivery.group, delivery.partition].append(delivery)
        times[_place(delivery)].append(delivery)
    for place, deliveries in times.items():
        if len(deliveries) < 2 or not _is_final(deliveries[-1]):
            continue
        held = deliveries[-2]
        free = held.ended + LOCK_MS / 1000
        later = [
            each.began
            for each in by_partition[place[:2]]
            if each.offset > place[2] and each.began > free and not _is_final(each)
        ]
        if (held.member, *place) not in answered and len(later) >= HELD_WHILE and max(later) - free >= HELD_FOR_S:
            yield f"{_name(held)} was held from {held.ended:.3f} on, while {len(later)} later records were delivered"


def _is_final(delivery: ShareDelivery) -> bool:
    return delivery.member.startswith("final-")


def _answers(history: History) -> dict[Place, list[ShareAnswer]]:
    found: dict[Place, list[ShareAnswer]] = defaultdict(list)
    for answer in history.share_answers:
        if answer.outcome is Outcome.DONE:
            found[answer.group, answer.partition, answer.offset].append(answer)
    return found


def _excused(plan: Plan, history: History, answer: ShareAnswer, delivery: ShareDelivery) -> bool:
    lost = history.power_lost_within(answer.began, delivery.ended) and not plan.fsync_everywhere
    return lost or delivery.partition in history.damaged


def _place(delivery: ShareDelivery) -> Place:
    return delivery.group, delivery.partition, delivery.offset


def _name(delivery: ShareDelivery) -> str:
    partition = delivery.partition
    return f"{delivery.group} {partition[0]}-{partition[1]} offset {delivery.offset} for {delivery.member}"


SHARE_RULES = (
    ("shared records stay done", done_records_stay_done),
    ("share deliveries are counted", deliveries_are_limited_and_counted),
    ("shared records are delivered", every_record_is_delivered),
    ("share locks run out", locks_run_out),
)
