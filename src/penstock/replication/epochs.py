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
    """Returns (epoch, log end) if the asked `epoch` ends at the log end; None otherwise.

    The returned epoch is the largest known epoch that is not above the asked `epoch`. `latest` is the last epoch in the
    leader epoch cache. This cache has the leader's own epoch only after the first batch of the epoch, so a search in
    the cache alone can give a wrong end offset. After None, the caller searches the cache.
    """
    if epoch == leader_epoch:
        return epoch, log_end
    if latest is None and NO_LEADER_EPOCH != epoch < leader_epoch:
        return epoch, log_end
    if latest is not None and latest <= epoch < leader_epoch:
        return latest, log_end
    return None
