"""Checks commits against the epochs in which a member got its partitions (KIP-1251).

A commit with an older epoch than the member's is accepted if the member has held the partitions since that epoch: no
other member can have committed them in the meantime. As in Kafka, the whole commit is refused if it contains a
partition that the member has not held since that epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.groups.turn import Turn
    from penstock.protocol.messages.api_08_offset_commit import OffsetCommitRequest
    from penstock.protocol.messages.api_28_txn_offset_commit import TxnOffsetCommitRequest

NO_EPOCH = -1
#: Returns, for the name of a topic, the partitions that a member holds or still has to revoke, and for each of them the
#: member epoch in which the member got it.
Held = Callable[[str], Mapping[int, int]]


def names_no_member(request: TxnOffsetCommitRequest) -> bool:
    """Returns True if a transactional commit has no member id, instance id and generation."""
    return request.generation_id == NO_EPOCH and not request.member_id and request.group_instance_id is None


def check_epoch(
    turn: Turn,
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    epoch: int,
    current: int,
    held: Held,
    code: ErrorCode,
) -> None:
    """Raises a KafkaError with `code` if `epoch`, the request's member epoch, does not allow this commit.

    `current` is the member's epoch. Offsets with too long metadata are not checked here: each gets its own error later.
    """
    if epoch == current:
        return
    if epoch > current:
        raise KafkaError(
            code, f"The commit has epoch {epoch}, but the member is in epoch {current}: send a heartbeat, then retry."
        )
    longest = turn.config.offset_metadata_max_bytes
    for topic in request.topics:
        since = held(topic.name)
        for each in topic.partitions:
            if len(each.committed_metadata or "") <= longest and since.get(each.partition_index, epoch + 1) > epoch:
                raise KafkaError(
                    code,
                    f"The member has not held {topic.name}-{each.partition_index} since epoch {epoch}, and is in epoch "
                    f"{current}: send a heartbeat, then retry.",
                )
