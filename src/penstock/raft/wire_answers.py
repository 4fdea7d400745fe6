"""Converts the answers in `raft.messages` to response messages of Kafka's protocol, and back."""

from __future__ import annotations

from typing import Any

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_01_fetch as fetch
from penstock.protocol.messages import api_52_vote as vote
from penstock.protocol.messages import api_53_begin_quorum_epoch as begin
from penstock.protocol.messages import api_54_end_quorum_epoch as end
from penstock.protocol.messages import api_59_fetch_snapshot as snapshot
from penstock.protocol.messages import api_80_add_raft_voter as add
from penstock.protocol.messages import api_81_remove_raft_voter as remove
from penstock.protocol.messages import api_82_update_raft_voter as update
from penstock.protocol.uuid import METADATA_TOPIC_ID
from penstock.protocol.vocabulary import METADATA_TOPIC, NO_NODE
from penstock.raft.batches import parse_batches
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.messages import (
    AddVoter,
    Answer,
    BeginEpoch,
    EpochAnswer,
    FetchAnswer,
    RemoveVoter,
    Request,
    SnapshotChunk,
    VoteAnswer,
    VoterAnswer,
)
from penstock.raft.voters import Voter
from penstock.raft.wire_requests import only_partition

# --- out ----------------------------------------------------------------------------------------------------


def answer_to_wire(request: Request, answer: Answer, records: bytes, leader: Voter | None) -> Any:
    """Returns the answer as a message. `records` are the fetched bytes; `leader` has the endpoints of the leader that
    the answer names.
    """
    match answer:
        case VoteAnswer():
            voted = vote.VoteResponsePartitionData(
                error_code=answer.error,
                leader_id=answer.leader_id,
                leader_epoch=answer.epoch,
                vote_granted=answer.granted,
            )
            topics = [vote.VoteResponseTopicData(topic_name=METADATA_TOPIC, partitions=[voted])]
            return vote.VoteResponse(topics=topics, node_endpoints=_endpoints(vote.NodeEndpoint, leader))
        case EpochAnswer() if isinstance(request, BeginEpoch):
            began = begin.BeginQuorumEpochResponsePartitionData(
                error_code=answer.error, leader_id=answer.leader_id, leader_epoch=answer.epoch
            )
            begun = [begin.BeginQuorumEpochResponseTopicData(topic_name=METADATA_TOPIC, partitions=[began])]
            return begin.BeginQuorumEpochResponse(topics=begun, node_endpoints=_endpoints(begin.NodeEndpoint, leader))
        case EpochAnswer():
            ended = end.EndQuorumEpochResponsePartitionData(
                error_code=answer.error, leader_id=answer.leader_id, leader_epoch=answer.epoch
            )
            over = [end.EndQuorumEpochResponseTopicData(topic_name=METADATA_TOPIC, partitions=[ended])]
            return end.EndQuorumEpochResponse(topics=over, node_endpoints=_endpoints(end.NodeEndpoint, leader))
        case FetchAnswer():
            return _fetch_to_wire(answer, records, leader)
        case SnapshotChunk():
            return _chunk_to_wire(answer, leader)
        case VoterAnswer():
            return _voter_answer_to_wire(request, answer, leader)


def _endpoints(kind: Any, leader: Voter | None) -> list[Any]:
    if leader is None:
        return []
    return [kind(node_id=leader.node_id, host=host, port=port) for _, host, port in leader.endpoints[:1]]


def _fetch_to_wire(answer: FetchAnswer, records: bytes, leader: Voter | None) -> Any:
    data = fetch.PartitionData(
        error_code=answer.error,
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.high_watermark,
        log_start_offset=-1,
        current_leader=fetch.LeaderIdAndEpoch(leader_id=answer.leader_id, leader_epoch=answer.epoch),
        aborted_transactions=None,
        records=memoryview(records),
    )
    if answer.diverging is not None:
        data.diverging_epoch = fetch.EpochEndOffset(epoch=answer.diverging.epoch, end_offset=answer.diverging.offset)
    if answer.snapshot is not None:
        data.snapshot_id = fetch.SnapshotId(end_offset=answer.snapshot.offset, epoch=answer.snapshot.epoch)
    topic = fetch.FetchableTopicResponse(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[data])
    return fetch.FetchResponse(responses=[topic], node_endpoints=_endpoints(fetch.NodeEndpoint, leader))


def _chunk_to_wire(answer: SnapshotChunk, leader: Voter | None) -> Any:
    part = snapshot.FetchSnapshotResponsePartitionSnapshot(
        error_code=answer.error,
        current_leader=snapshot.LeaderIdAndEpoch(leader_id=answer.leader_id, leader_epoch=answer.epoch),
        size=answer.size,
        position=answer.position,
        unaligned_records=memoryview(answer.data),
    )
    if answer.snapshot is not None:
        part.snapshot_id = snapshot.SnapshotId(end_offset=answer.snapshot.offset, epoch=answer.snapshot.epoch)
    topics = [snapshot.FetchSnapshotResponseTopicSnapshot(name=METADATA_TOPIC, partitions=[part])]
    return snapshot.FetchSnapshotResponse(topics=topics, node_endpoints=_endpoints(snapshot.NodeEndpoint, leader))


def _voter_answer_to_wire(request: Request, answer: VoterAnswer, leader: Voter | None) -> Any:
    if isinstance(request, AddVoter):
        return add.AddRaftVoterResponse(error_code=answer.error, error_message=answer.message)
    if isinstance(request, RemoveVoter):
        return remove.RemoveRaftVoterResponse(error_code=answer.error, error_message=answer.message)
    host, port = (leader.endpoints[0][1:]) if leader is not None and leader.endpoints else ("", 0)
    current = update.CurrentLeader(leader_id=answer.leader_id, leader_epoch=answer.epoch, host=host, port=port)
    return update.UpdateRaftVoterResponse(error_code=answer.error, current_leader=current)


# --- in -----------------------------------------------------------------------------------------------------


def answer_from_wire(message: Any) -> Answer:
    """Returns the answer in a message. Raises KafkaError if the message refuses the whole request or cannot be used."""
    if getattr(message, "topics", None) is not None or isinstance(message, fetch.FetchResponse):
        if message.error_code:
            raise KafkaError(_code(message.error_code), "The peer refused the whole request. Its log states the cause.")
        return _partition_answer(message)
    if isinstance(message, update.UpdateRaftVoterResponse):
        leader = message.current_leader
        return VoterAnswer(_code(message.error_code), leader.leader_epoch, leader.leader_id)
    return VoterAnswer(_code(message.error_code), -1, NO_NODE, message.error_message)


def _partition_answer(message: Any) -> Answer:
    part = only_partition(message.responses if isinstance(message, fetch.FetchResponse) else message.topics)
    error = _code(part.error_code)
    match message:
        case vote.VoteResponse():
            return VoteAnswer(error, part.leader_epoch, part.leader_id, part.vote_granted)
        case begin.BeginQuorumEpochResponse() | end.EndQuorumEpochResponse():
            return EpochAnswer(error, part.leader_epoch, part.leader_id)
        case fetch.FetchResponse():
            diverging = OffsetAndEpoch(part.diverging_epoch.end_offset, part.diverging_epoch.epoch)
            snapshot_id = OffsetAndEpoch(part.snapshot_id.end_offset, part.snapshot_id.epoch)
            return FetchAnswer(
                error,
                part.current_leader.leader_epoch,
                part.current_leader.leader_id,
                part.high_watermark,
                diverging if diverging.epoch >= 0 else None,
                snapshot_id if snapshot_id.offset >= 0 else None,
                batches=parse_batches(part.records) if part.records else (),
            )
        case _:
            chunk_of = OffsetAndEpoch(part.snapshot_id.end_offset, part.snapshot_id.epoch)
            leader = part.current_leader
            data = bytes(part.unaligned_records)
            return SnapshotChunk(
                error, leader.leader_epoch, leader.leader_id, chunk_of, part.position, 0, part.size, data
            )


def _code(value: int) -> ErrorCode:
    try:
        return ErrorCode(value)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def endpoints_in(message: Any, listener: str | None = None) -> dict[int, tuple[str, int]]:
    """Returns the addresses in a request or an answer: node id → (host, port).

    A message may have several endpoints of the leader. Then the endpoint of `listener` is used; if it is missing, the
    first endpoint.
    """
    found = {one.node_id: (one.host, one.port) for one in getattr(message, "node_endpoints", [])}
    listeners = getattr(message, "leader_endpoints", [])
    if listeners and message.topics and message.topics[0].partitions:
        leader_id = message.topics[0].partitions[0].leader_id
        chosen = next((one for one in listeners if one.name == listener), listeners[0])
        found[leader_id] = (chosen.host, chosen.port)
    return found
