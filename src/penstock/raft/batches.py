"""Converts batches of the metadata log: from bytes in files and fetch answers to the Raft machine's objects, and
back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.raft.events import LeaderChange, VotersChange
from penstock.raft.log_view import Batch
from penstock.raft.voters import Voter, VoterSet
from penstock.records.batches import check_crc, iter_batches
from penstock.records.control import ControlType, build_control, parse_control
from penstock.records.record import read_records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Buffer

#: The versions of `kraft.version` that this node supports; the set of voters records them.
MIN_KRAFT_VERSION = 0
MAX_KRAFT_VERSION = 1


def parse_batches(data: Buffer) -> tuple[Batch, ...]:
    """Parses and checks the complete batches in `data`; ignores an incomplete batch at the end. Raises KafkaError if a
    batch is damaged."""
    found = []
    for header, view in iter_batches(data, allow_partial=True):
        check_crc(view)
        voters = None
        if header.is_control:
            for kind, message in filter(None, map(parse_control, read_records(view))):
                if kind is ControlType.KRAFT_VOTERS:
                    voters = voter_set_of(message)
        epoch = header.partition_leader_epoch
        found.append(Batch(header.base_offset, header.last_offset, epoch, view, voters))
    return tuple(found)


def encode_own(content: LeaderChange | VotersChange, *, epoch: int, timestamp: int) -> bytes:
    """Returns the bytes of a control batch that the leader writes itself. The append sets the batch's offsets."""
    from penstock.protocol.persisted.raft.kraft_version_record import KRaftVersionRecord

    messages: list[Any]
    if isinstance(content, VotersChange):
        messages = [voters_record(content.voters)]
    else:
        messages = [_leader_change(content)]
        if content.bootstrap is not None:
            messages += [
                KRaftVersionRecord(version=0, kraft_version=MAX_KRAFT_VERSION),
                voters_record(content.bootstrap),
            ]
    return build_control(messages, timestamp=timestamp, leader_epoch=epoch)


def _leader_change(content: LeaderChange) -> Any:
    from penstock.protocol.persisted.raft.leader_change_message import LeaderChangeMessage
    from penstock.protocol.persisted.raft.leader_change_message import Voter as VoterMessage

    return LeaderChangeMessage(
        version=0,
        leader_id=content.leader_id,
        voters=[VoterMessage(voter_id=one) for one in content.voters],
        granting_voters=[VoterMessage(voter_id=one) for one in content.granted_by],
    )


def voters_record(voters: Iterable[Voter]) -> Any:
    from penstock.protocol.persisted.raft.voters_record import Endpoint, KRaftVersionFeature, VotersRecord
    from penstock.protocol.persisted.raft.voters_record import Voter as VoterMessage

    return VotersRecord(
        version=0,
        voters=[
            VoterMessage(
                voter_id=voter.node_id,
                voter_directory_id=voter.directory_id,
                endpoints=[Endpoint(name=name, host=host, port=port) for name, host, port in voter.endpoints],
                kraft_version_feature=KRaftVersionFeature(
                    min_supported_version=MIN_KRAFT_VERSION, max_supported_version=MAX_KRAFT_VERSION
                ),
            )
            for voter in voters
        ],
    )


def voter_set_of(message: Any) -> VoterSet:
    """Returns the set of voters that a VotersRecord contains."""
    return VoterSet.of(
        Voter(
            one.voter_id,
            one.voter_directory_id,
            tuple((endpoint.name, endpoint.host, endpoint.port) for endpoint in one.endpoints),
        )
        for one in message.voters
    )
