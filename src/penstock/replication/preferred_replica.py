"""Chooses the replica that a consumer should read from: a replica in the consumer's own rack (KIP-392)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.vocabulary import NO_REPLICA

if TYPE_CHECKING:
    from penstock.replication.leader import Brokers, Leading


def preferred_replica(leading: Leading, brokers: Brokers, rack: str, offset: int) -> int:
    """Returns the in-sync follower with the longest log in the consumer's rack; NO_REPLICA if the consumer should read
    from the leader.

    The consumer should read from the leader if the leader is in the consumer's rack, or if no live in-sync follower in
    this rack has the offset.
    """
    if _rack_of(brokers, leading.node_id) == rack:
        return NO_REPLICA
    fit = [
        follower
        for follower in leading.followers.values()
        if follower.broker_id in leading.isr
        and _is_alive_in(brokers, follower.broker_id, rack)
        and follower.log_start <= offset <= follower.log_end
    ]
    return max(fit, key=lambda each: (each.log_end, each.caught_up_ms)).broker_id if fit else NO_REPLICA


def _rack_of(brokers: Brokers, broker_id: int) -> str | None:
    broker = brokers.get(broker_id)
    return None if broker is None else broker.rack


def _is_alive_in(brokers: Brokers, broker_id: int, rack: str) -> bool:
    broker = brokers.get(broker_id)
    return broker is not None and not broker.fenced and broker.rack == rack
