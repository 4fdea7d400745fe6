"""Compares leader epochs, for leaders, followers and clients (KIP-101, KIP-320)."""

from __future__ import annotations

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import NO_LEADER_EPOCH


def check_leader_epoch(asked: int, leader_epoch: int) -> None:
    """Raises KafkaError if a request names another leader epoch (`asked`) than the epoch of this leader.

    The sender's metadata is then older or newer. A request without a leader epoch is accepted.
    """
    if asked not in (NO_LEADER_EPOCH, leader_epoch):
        code = ErrorCode.FENCED_LEADER_EPOCH if asked < leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        raise KafkaError(code, f"The leader epoch is {leader_epoch}: refresh the metadata.")


def newest_epoch_end(epoch: int, leader_epoch: int, latest: int | None, log_end: int) -> tuple[int, int] | None:
    """Returns (epoch, log end) if the requested `epoch` ends at the log end; None otherwise.

    The returned epoch is the largest known epoch that is not above the requested epoch. `latest` is the last epoch in
    the leader epoch cache. The cache lacks the leader's own epoch until its first batch, so the cache alone could give
    a wrong end offset. If this function returns None, the caller searches the cache.
    """
    if epoch == leader_epoch:
        return epoch, log_end
    if latest is None and NO_LEADER_EPOCH != epoch < leader_epoch:
        return epoch, log_end
    if latest is not None and latest <= epoch < leader_epoch:
        return latest, log_end
    return None
