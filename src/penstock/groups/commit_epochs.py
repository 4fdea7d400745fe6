"""Decides whether a member may commit offsets with an older member epoch (KIP-1251).

Such a commit is accepted if the member has held all partitions of the commit since that epoch: no other member can have
committed their offsets since then. As in Kafka, the whole commit is refused if this is not true for one of the
partitions.
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
    """Returns True if a transactional commit has no member id, no instance id and no generation."""
    return request.generation_id == NO_EPOCH and not request.member_id and request.group_instance_id is None


def check_epoch(
    turn: Turn,
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    epoch: int,
    current: int,
    held: Held,
    code: ErrorCode,
) -> None:
    """Raises a KafkaError with `code` if the commit's member epoch (`epoch`) does not allow the commit.

    `current` is the member's present epoch. Offsets with too much metadata are not checked here: each of them gets its
    own error later.
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
                    f"The member has not held {topic.name}-{each.partition_index} since the commit's epoch {epoch}, "
                    f"and is now in epoch {current}: send a heartbeat, then retry.",
                )
