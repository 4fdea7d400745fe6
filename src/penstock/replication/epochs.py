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
    """Returns (known epoch, log end) if the largest known epoch up to the requested `epoch` ends at the log end.

    Returns None otherwise: then the caller searches the leader epoch cache. `latest` is the last epoch in this cache.
    The cache lacks the leader's own epoch until the leader has appended its first batch, so a search of the cache alone
    could give a wrong end offset for the newest epoch.
    """
    if epoch == leader_epoch:
        return epoch, log_end
    if latest is None and NO_LEADER_EPOCH != epoch < leader_epoch:
        return epoch, log_end
    if latest is not None and latest <= epoch < leader_epoch:
        return latest, log_end
    return None
