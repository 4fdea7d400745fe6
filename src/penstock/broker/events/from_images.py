"""Derives events from two successive metadata images.

Only the active controller emits these events, so that an event does not appear once for each node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.events.kinds import (
    PARTITIONS_SHOWN,
    AclsChanged,
    BrokerUnfenced,
    BrokerUnregistered,
    ConfigChanged,
    IsrChanged,
    LeaderElected,
    NodeEvent,
    NodeQuarantined,
    NodeReleased,
    TopicsChanged,
)
from penstock.metadata.image import topic_changes
from penstock.metadata.quarantine import QUARANTINED
from penstock.protocol.vocabulary import ResourceType

if TYPE_CHECKING:
    from penstock.metadata.image import MetadataImage, PartitionImage, TopicChanges

NAMES_SHOWN = 20


class _Election(NamedTuple):
    old_leader: int
    new_leader: int
    unclean: bool


class _Isr(NamedTuple):
    old: tuple[int, ...]
    new: tuple[int, ...]
    reason: str


def events_between(old: MetadataImage, new: MetadataImage) -> Iterator[NodeEvent]:
    """Yields the events for the changes from one image to the next.

    Partitions that changed in the same way share one event, because the failure of one broker may change ten thousand
    partitions. Yields no `BrokerFenced`: the controller that fenced a broker emits this event itself, because only it
    knows the reason.
    """
    yield from _brokers(old, new)
    changes = topic_changes(old, new)
    yield from _topics(changes)
    yield from _partitions(new, changes)
    if new.configs is not old.configs:
        yield from _configs(old, new)
    if new.acls is not old.acls:
        yield from _acls(old, new)


def _brokers(old: MetadataImage, new: MetadataImage) -> Iterator[NodeEvent]:
    if old.brokers is new.brokers:
        return
    for broker_id in sorted(old.brokers.keys() | new.brokers.keys()):
        before, after = old.brokers.get(broker_id), new.brokers.get(broker_id)
        if after is None:
            yield BrokerUnregistered(broker_id)
        elif not after.fenced and (before is None or before.fenced):
            yield BrokerUnfenced(broker_id, after.epoch)


def _topics(changes: TopicChanges) -> Iterator[NodeEvent]:
    for change, topics in (("deleted", changes.deleted), ("created", changes.created)):
        if topics:
            yield TopicsChanged(tuple(each.name for each in topics[:PARTITIONS_SHOWN]), len(topics), change)


def _partitions(image: MetadataImage, changes: TopicChanges) -> Iterator[NodeEvent]:
    elections: dict[_Election, list[str]] = {}
    isr_changes: dict[_Isr, list[str]] = {}
    for before, after in changes.changed:
        for index, now in after.partitions.items():
            was = before.partitions.get(index)
            if was is None or was is now:
                continue
            if was.leader != now.leader:
                election = _Election(was.leader, now.leader, bool(now.leader_recovery_state))
                elections.setdefault(election, []).append(f"{after.name}-{index}")
            if set(was.isr) != set(now.isr):
                isr = _Isr(was.isr, now.isr, _reason(image, was, now))
                isr_changes.setdefault(isr, []).append(f"{after.name}-{index}")
    for election, names in elections.items():
        yield LeaderElected(tuple(names[:PARTITIONS_SHOWN]), len(names), *election)
    for isr, names in isr_changes.items():
        yield IsrChanged(tuple(names[:PARTITIONS_SHOWN]), len(names), *isr)


def _reason(image: MetadataImage, was: PartitionImage, now: PartitionImage) -> str:
    """Returns why an in-sync set changed, as far as the image shows it."""
    if now.leader_recovery_state and now.leader != was.leader:
        return "an unclean election"
    reasons = []
    for broker_id in sorted(set(was.isr) - set(now.isr)):
        broker = image.brokers.get(broker_id)
        if broker is None:
            reasons.append(f"broker {broker_id} was removed from the cluster")
        elif broker.fenced:
            reasons.append(f"broker {broker_id} is fenced")
        elif broker.in_controlled_shutdown:
            reasons.append(f"broker {broker_id} shuts down")
        elif broker_id not in now.replicas:
            reasons.append(f"broker {broker_id} is no longer a replica")
        elif not broker.has_online(now.directory(broker_id)):
            reasons.append(f"the log directory of broker {broker_id} failed")
        else:
            reasons.append(f"broker {broker_id} fell behind")
    reasons += [f"broker {broker_id} caught up" for broker_id in sorted(set(now.isr) - set(was.isr))]
    return ", ".join(reasons)


def _configs(old: MetadataImage, new: MetadataImage) -> Iterator[NodeEvent]:
    exact = new.changes.base_version == old.version
    keys = new.changes.configs if exact else old.configs.keys() | new.configs.keys()
    for kind, name in sorted(keys):
        before, after = old.config(kind, name), new.config(kind, name)
        if before != after:
            if kind == ResourceType.BROKER and name.isdecimal():
                yield from _quarantine(int(name), before.get(QUARANTINED), after.get(QUARANTINED))
            names = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
            yield ConfigChanged(_resource(kind, name), tuple(names[:NAMES_SHOWN]))


def _quarantine(node_id: int, before: str | None, after: str | None) -> Iterator[NodeEvent]:
    if after and not before:
        yield NodeQuarantined(node_id, after)
    elif before and not after:
        yield NodeReleased(node_id)


def _resource(kind: int, name: str) -> str:
    try:
        label = ResourceType(kind).name.lower()
    except ValueError:
        label = f"resource of type {kind}"
    return f"{label} {name}" if name else f"every {label}"


def _acls(old: MetadataImage, new: MetadataImage) -> Iterator[NodeEvent]:
    added = [acl for key, acl in new.acls.items() if key not in old.acls]
    removed = [acl for key, acl in old.acls.items() if key not in new.acls]
    if added or removed:
        principals = sorted({acl.principal for acl in (*added, *removed)})
        yield AclsChanged(len(added), len(removed), tuple(principals[:NAMES_SHOWN]))
