"""Checks share groups: a record that is done is never delivered again, and every other record is delivered.

A record is done if it is accepted, rejected or archived.

The rules compare times. If a fetch is sent after the answer to an acknowledgement has arrived, the fetch acquires its
records after the acknowledgement took effect. A power loss may erase states that were not synced.

Two members may both complete the same record. For records before the start offset, a leader accepts acknowledgements
from any member, even if the member's lock has expired, as in Kafka. For all other records, `share_states` checks that
the member has the lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from penstock.protocol.vocabulary import Acknowledge, TopicPartition
from penstock.share.states import ShareLimits
from penstock.sim.checks.history import FinalView, History, Outcome, ShareAnswer, ShareDelivery
from penstock.sim.plan.plan import Plan
from penstock.sim.plan.workloads.share import LOCK_MS, MAX_DELIVERIES

DONE = (Acknowledge.ACCEPT, Acknowledge.REJECT)
Place = tuple[str, TopicPartition, int]
#: A record is held too long if at least so many later records were delivered, over at least this time.
HELD_WHILE = 4
HELD_FOR_S = 10.0
DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
RETRY, MAX_RETRY = "penstock.share.retry.backoff.ms", "penstock.share.retry.backoff.max.ms"


def done_records_stay_done(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each record that was delivered again after the leader had confirmed its acceptance or rejection."""
    answers = _answers(history)
    for delivery in history.share_deliveries:
        for answer in answers.get(_place(delivery), ()):
            if answer.kind in DONE and answer.ended < delivery.began and not _excused(plan, history, answer, delivery):
                yield f"{_name(delivery)} was done at {answer.ended:.3f} and delivered again at {delivery.ended:.3f}"
                break


def deliveries_are_limited_and_counted(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each delivery with a wrong delivery count: a count above the limit, or a count that did not increase after
    a release."""
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

    Each record stored after the group's first delivery must be delivered. A delivered record that is not accepted,
    rejected or archived must be delivered again.
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
    """Yields each record that stayed locked for too long after a member got it and did not acknowledge it.

    Available records are delivered in the order of their offsets. So if later records are delivered again and again,
    this record is still locked. A few deliveries of later records prove nothing: the record may have been sent once
    more, to a member that did not receive it, and may be locked for this reason.
    """
    answered = {(each.member, each.group, each.partition, each.offset) for each in history.share_answers}
    by_partition: dict[tuple[str, TopicPartition], list[ShareDelivery]] = defaultdict(list)
    times: dict[Place, list[ShareDelivery]] = defaultdict(list)
    for delivery in history.share_deliveries:
        by_partition[delivery.group, delivery.partition].append(delivery)
        times[_place(delivery)].append(delivery)
    # With a back-off, later records come first, and each new leader begins the back-off anew.
    backing_off = {group for group, configs in _configs(plan).items() if RETRY in configs}
    for place, deliveries in times.items():
        if len(deliveries) < 2 or not _is_final(deliveries[-1]) or place[0] in backing_off:
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


def records_given_up_have_dead_letters(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each record that a group with a dead-letter topic gave up without a dead letter.

    A group gives up a record in two cases: a member has rejected the record, or the record was delivered, was not
    accepted, and is not delivered again.
    """
    groups = {group for group, configs in _configs(plan).items() if configs.get(DEAD_LETTER_TOPIC)}
    if not groups or (history.power_losses and not plan.fsync_everywhere):
        return
    dead = {(each.group, each.partition, each.offset) for each in view.dead_letters}
    rejected = {
        (each.group, each.partition, each.offset)
        for each in history.share_answers
        if each.kind == Acknowledge.REJECT and each.outcome is Outcome.DONE
    }
    accepted = {
        (each.group, each.partition, each.offset)
        for each in history.share_answers
        if each.kind == Acknowledge.ACCEPT  # also if its outcome is unknown
    }
    delivered = {_place(each) for each in history.share_deliveries}
    final = {_place(each) for each in history.share_deliveries if _is_final(each)}
    for place in sorted((rejected | (delivered - final)) - accepted - dead):
        group, partition, offset = place
        if group in groups and offset >= view.log_start.get(partition, 0) and partition not in history.damaged:
            yield f"{group} {partition[0]}-{partition[1]} offset {offset} was given up and has no dead letter"


def dead_letters_are_right(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each dead letter with a wrong number of deliveries, and each dead letter of a record that a member has
    accepted.

    Only the member that has the lock can accept a record. But if the record is already done, other members also get
    answers without an error. `_is_certain` finds the answers that prove an acceptance.
    """
    answers = _answers(history)
    deliveries: dict[Place, list[ShareDelivery]] = defaultdict(list)
    for delivery in history.share_deliveries:
        deliveries[_place(delivery)].append(delivery)
    rejections: dict[Place, set[int]] = defaultdict(set)
    for answer in history.share_answers:
        if answer.kind == Acknowledge.REJECT:
            rejections[answer.group, answer.partition, answer.offset].add(answer.deliveries)
    forgotten = bool(history.power_losses) and not plan.fsync_everywhere
    for letter in view.dead_letters:
        place = (letter.group, letter.partition, letter.offset)
        name = f"{letter.group} {letter.partition[0]}-{letter.partition[1]} offset {letter.offset}"
        told = {MAX_DELIVERIES} if "exceeded" in letter.message else rejections[place]
        if letter.deliveries not in told:
            yield f"the dead letter of {name} tells {letter.deliveries} deliveries instead of {sorted(told)}"
        for answer in answers.get(place, ()):
            if answer.kind == Acknowledge.ACCEPT and _is_certain(answer, deliveries[place]) and not forgotten:
                yield f"{name} was accepted by {answer.member} at {answer.ended:.3f} and has a dead letter"


def _is_certain(answer: ShareAnswer, deliveries: list[ShareDelivery]) -> bool:
    """Returns True if `answer` proves that this member completed the record.

    Two conditions must hold: the member's lock had not expired before the answer, and no other member got the record
    after its last delivery to this member began.
    """
    own = [each for each in deliveries if each.member == answer.member and each.ended <= answer.began]
    if not own:
        return False
    last = own[-1]
    others = any(each is not last and each.ended >= last.began for each in deliveries)
    return not others and answer.ended < last.began + LOCK_MS / 1000


def back_offs_are_kept(plan: Plan, history: History, view: FinalView) -> Iterator[str]:
    """Yields each released record that was delivered again before its group's back-off had passed."""
    limits = {
        group: ShareLimits(retry_ms=int(configs[RETRY]), max_retry_ms=int(configs[MAX_RETRY]))
        for group, configs in _configs(plan).items()
        if RETRY in configs
    }
    answers = _answers(history)
    for delivery in history.share_deliveries:
        if delivery.group not in limits:
            continue
        for answer in answers.get(_place(delivery), ()):
            backoff_s = limits[delivery.group].backoff_ms(answer.deliveries) / 1000
            later = answer.ended < delivery.began and not _excused(plan, history, answer, delivery)
            if answer.kind == Acknowledge.RELEASE and later and delivery.ended < answer.began + backoff_s:
                yield f"{_name(delivery)} was released at {answer.ended:.3f} and came at {delivery.ended:.3f}"
                break


def _configs(plan: Plan) -> dict[str, Mapping[str, str]]:
    """Returns the configs of the share groups."""
    members = [actor.params for actor in plan.actors if actor.kind == "share member"]
    return {params["group"]: params["configs"] for params in members}


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
    ("records given up have dead letters", records_given_up_have_dead_letters),
    ("dead letters are right", dead_letters_are_right),
    ("share back-offs are kept", back_offs_are_kept),
)
