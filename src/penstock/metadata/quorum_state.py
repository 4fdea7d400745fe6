"""Reads and writes the `quorum-state` file: the state of a voter that must survive restarts.

The format is Kafka's JSON, data version 1.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.protocol.uuid import ZERO_UUID, uuid_from_str, uuid_to_str
from penstock.protocol.vocabulary import NO_NODE
from penstock.raft.states import MAX_EPOCH

QUORUM_STATE_FILE = "quorum-state"
DATA_VERSION = 1


class QuorumStateError(Exception):
    """Raised if this node cannot use the `quorum-state` file."""


@dataclass(frozen=True, slots=True)
class QuorumState:
    leader_id: int = NO_NODE
    leader_epoch: int = 0
    voted_id: int = NO_NODE
    voted_directory_id: bytes = ZERO_UUID

    def to_bytes(self) -> bytes:
        fields = {
            "leaderId": self.leader_id,
            "leaderEpoch": self.leader_epoch,
            "votedId": self.voted_id,
            "votedDirectoryId": uuid_to_str(self.voted_directory_id),
            "data_version": DATA_VERSION,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes) -> QuorumState:
        """Parses a `quorum-state` file of version 1, or of version 0, which has no directory ids."""
        try:
            fields = json.loads(data)
            version = fields["data_version"]
            if version not in (0, DATA_VERSION):
                raise QuorumStateError(f"data_version {version} is unknown; only 0 and {DATA_VERSION} are supported")
            epoch = int(fields["leaderEpoch"])
            if not 0 <= epoch <= MAX_EPOCH:
                raise QuorumStateError(f"epoch {epoch} is above the largest possible epoch, {MAX_EPOCH}")
            return QuorumState(
                int(fields["leaderId"]),
                epoch,
                int(fields["votedId"]),
                uuid_from_str(fields["votedDirectoryId"]) if version else ZERO_UUID,
            )
        except (ValueError, KeyError, TypeError) as error:
            raise QuorumStateError(f"the file can't be parsed: {error!r}") from None
