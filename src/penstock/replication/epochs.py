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
    """Returns the largest epoch at or below `epoch` and its end, if that epoch ends at the end of the leader's log.

    `latest` is the last epoch in the log's list of epochs. The leader's own epoch begins with its leadership, but
    enters the list only with its first batch. Returns None if the list itself has the answer.
    """
    if epoch == leader_epoch:
        return epoch, log_end
    if latest is None and NO_LEADER_EPOCH != epoch < leader_epoch:
        return epoch, log_end
    if latest is not None and latest <= epoch < leader_epoch:
        return latest, log_end
    return None
