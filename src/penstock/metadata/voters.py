"""The quorum's voters and its own version, as control records hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.metadata.features import SUPPORTED_FEATURES
from penstock.metadata.image import KRAFT_VERSION
from penstock.raft.voters import Voter

__all__ = ["Voter", "leader_change", "voter_messages", "voters_of"]


def voter_messages(kraft_version: int, voters: Sequence[Voter]) -> list[Any]:
    """The control records that say who votes. None before dynamic voters, when every node's properties say it."""
    from penstock.protocol.persisted.raft.kraft_version_record import KRaftVersionRecord
    from penstock.protocol.persisted.raft.voters_record import Endpoint, KRaftVersionFeature, VotersRecord
    from penstock.protocol.persisted.raft.voters_record import Voter as VoterMessage

    if not kraft_version:
        return []
    low, high = SUPPORTED_FEATURES[KRAFT_VERSION]
    listed = [
        VoterMessage(
            voter_id=voter.node_id,
            voter_directory_id=voter.directory_id,
            endpoints=[Endpoint(name=name, host=host, port=port) for name, host, port in voter.endpoints],
            kraft_version_feature=KRaftVersionFeature(min_supported_version=low, max_supported_version=high),
        )
        for voter in voters
    ]
    return [
        KRaftVersionRecord(version=0, kraft_version=kraft_version),
        VotersRecord(version=0, voters=listed),
    ]


def leader_change(leader_id: int, voters: Sequence[Voter]) -> Any:
    """The first record of an epoch: who leads, and by whose votes."""
    from penstock.protocol.persisted.raft.leader_change_message import LeaderChangeMessage
    from penstock.protocol.persisted.raft.leader_change_message import Voter as VoterMessage

    listed = [VoterMessage(voter_id=voter.node_id) for voter in voters]
    return LeaderChangeMessage(
        version=0, leader_id=leader_id, voters=listed, granting_voters=[VoterMessage(voter_id=leader_id)]
    )


def voters_of(message: Any) -> tuple[Voter, ...]:
    """From a VotersRecord."""
    return tuple(
        Voter(
            one.voter_id,
            one.voter_directory_id,
            tuple((endpoint.name, endpoint.host, endpoint.port) for endpoint in one.endpoints),
        )
        for one in message.voters
    )
