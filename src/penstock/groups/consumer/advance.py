"""Increments the group epoch after a change of the group, and computes a new target assignment."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from penstock.groups.consumer import journal
from penstock.groups.consumer.assignors import ASSIGNORS, MemberSpec
from penstock.groups.consumer.group import ConsumerGroup, ConsumerMember, Partitions, ResolvedRegex
from penstock.groups.consumer.subscribe import metadata_hash, refresh_regexes, subscribed, topic_specs
from penstock.groups.timing import may_assign

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.groups.timing import Limits
    from penstock.groups.turn import Turn
    from penstock.metadata.image import MetadataImage

FIRST_EPOCH = 1


class Target(NamedTuple):
    epoch: int
    partitions: Partitions


def advance(
    turn: Turn,
    image: MetadataImage,
    group: ConsumerGroup,
    member: ConsumerMember,
    updated: ConsumerMember,
    replaced: str | None,
    limits: Limits,
    sees: Callable[[str], bool] | None = None,
) -> Target:
    """Records the member's new state, and returns its target assignment.

    Increments the group epoch if the group has changed, and computes a new target assignment if one is due. `sees`
    limits the topics that patterns can match: see `refresh_regexes`.
    """
    member_id = updated.member_id
    if updated != member or member_id not in group.members:
        journal.record_member(turn, group.group_id, updated)
    changed = (updated.topics, updated.regex) != (member.topics, member.regex)
    members = {key: value for key, value in group.members.items() if key != replaced}
    members[member_id] = updated
    epoch, regexes = _group_epoch(turn, image, group, members, changed, sees)
    if epoch > group.assignment_epoch and may_assign(turn, group.assignment_ms, limits):
        target = compute_target(turn, image, members, regexes, group.target, replaced, member_id)
        for each, partitions in target.items():
            if partitions != group.target.get(each):
                journal.record_target(turn, group.group_id, each, partitions)
        journal.record_target_epoch(turn, group.group_id, epoch)
        return Target(epoch, target[member_id])
    inherited = group.target.get(replaced, {}) if replaced is not None else {}
    return Target(group.assignment_epoch, group.target.get(member_id, inherited))


def _group_epoch(
    turn: Turn,
    image: MetadataImage,
    group: ConsumerGroup,
    members: Mapping[str, ConsumerMember],
    changed: bool,
    sees: Callable[[str], bool] | None,
) -> tuple[int, Mapping[str, ResolvedRegex]]:
    epoch = max(group.epoch, FIRST_EPOCH)
    if not changed and not group.metadata_changed:
        return epoch, group.regexes
    regexes = refresh_regexes(turn, image, group, members, sees)
    topics = frozenset().union(*(subscribed(each, regexes) for each in members.values()))
    digest = metadata_hash(image, topics)
    group.metadata_changed = sees is None and bool(regexes)  # a heartbeat then resolves the patterns again
    if changed or digest != group.metadata_hash:
        epoch += 1
    if epoch != group.epoch:
        journal.record_epoch(turn, group.group_id, epoch, digest)
    return epoch, regexes


def compute_target(
    turn: Turn,
    image: MetadataImage,
    members: Mapping[str, ConsumerMember],
    regexes: Mapping[str, ResolvedRegex],
    before: Mapping[str, Partitions],
    replaced: str | None,
    member_id: str,
) -> dict[str, Partitions]:
    names = {each: subscribed(member, regexes) for each, member in members.items()}
    topics = topic_specs(image, frozenset().union(*names.values()))
    specs = {
        each: MemberSpec(
            frozenset(image.topics[name].topic_id for name in names[each] if name in image.topics),
            member.rack_id,
            member.instance_id,
        )
        for each, member in members.items()
    }
    previous = dict(before)
    if replaced is not None and replaced in previous:
        previous[member_id] = previous.pop(replaced)
    assign = ASSIGNORS[preferred_assignor(turn, members)]
    return assign(specs, topics, previous)


def preferred_assignor(turn: Turn, members: Mapping[str, ConsumerMember]) -> str:
    """Returns the assignor that most members prefer; if no member has a preference, the first configured assignor."""
    votes = Counter(member.server_assignor for member in members.values() if member.server_assignor)
    if votes:
        [(name, _)] = votes.most_common(1)
        if name in ASSIGNORS:
            return name
    return next((name for name in turn.config.consumer_assignors if name in ASSIGNORS), "uniform")
