"""Compares leader epochs, for leaders, followers and clients (KIP-101, KIP-320)."""

from __future__ import annotations

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import NO_LEADER_EPOCH


def check_leader_epoch(asked: int, leader_epoch: int) -> None:
    """Raises KafkaError if the leader epoch in a request (`asked`) differs from this leader's epoch: the sender's
    metadata is older or newer."""
    if asked not in (NO_LEADER_EPOCH, leader_epoch):
        code = ErrorCode.FENCED_LEADER_EPOCH if asked < leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        raise KafkaError(code, f"The leader epoch is {leader_epoch}: refresh the metadata.")


def newest_epoch_end(epoch: int, leader_epoch: int, latest: int | None, log_end: int) -> tuple[int, int] | None:
    """Returns the largest epoch at or below `epoch` with the log end as its end offset.

    Returns None if this epoch does not end at the log end; the caller then looks into the leader epoch cache. `latest`
    is the last epoch in that cache. The leader's own epoch is in the cache only after its first batch, so the cache
    alone can't answer for the newest epoch.
    """
    if epoch == leader_epoch:
        return epoch, log_end
    if latest is None and NO_LEADER_EPOCH != epoch < leader_epoch:
        return epoch, log_end
    if latest is not None and latest <= epoch < leader_epoch:
        return latest, log_end
    return None
