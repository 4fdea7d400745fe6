"""Converts the quorum's requests to Kafka's messages and back. All of them are about one partition,
`__cluster_metadata-0`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from penstock.protocol.vocabulary import METADATA_TOPIC
from penstock.raft.batches import MAX_KRAFT_VERSION, MIN_KRAFT_VERSION
from penstock.raft.log_view import OffsetAndEpoch
from penstock.raft.messages import (
    AddVoter,
    BeginEpoch,
    EndEpoch,
    Fetch,
    FetchSnapshot,
    RemoveVoter,
    Request,
    UpdateVoter,
    Vote,
)
from penstock.raft.voters import ReplicaKey, Voter

# --- out ----------------------------------------------------------------------------------------------------


def request_to_wire(request: Request, cluster_id: str, me: Voter) -> Any:
    match request:
        case Vote():
            asked = vote.PartitionData(
                replica_epoch=request.epoch,
                replica_id=request.candidate.node_id,
                replica_directory_id=request.candidate.directory_id,
                voter_directory_id=request.voter.directory_id,
                last_offset_epoch=request.last_epoch,
                last_offset=request.end_offset,
                pre_vote=request.pre_vote,
            )
            topics = [vote.TopicData(topic_name=METADATA_TOPIC, partitions=[asked])]
            return vote.VoteRequest(cluster_id=cluster_id, voter_id=request.voter.node_id, topics=topics)
        case BeginEpoch():
            began = begin.PartitionData(
                voter_directory_id=request.voter.directory_id, leader_id=request.leader_id, leader_epoch=request.epoch
            )
            return begin.BeginQuorumEpochRequest(
                cluster_id=cluster_id,
                voter_id=request.voter.node_id,
                topics=[begin.TopicData(topic_name=METADATA_TOPIC, partitions=[began])],
                leader_endpoints=[begin.LeaderEndpoint(name=n, host=h, port=p) for n, h, p in me.endpoints],
            )
        case EndEpoch():
            return _end_to_wire(request, cluster_id, me)
        case Fetch():
            return _fetch_to_wire(request, cluster_id)
        case FetchSnapshot():
            part = snapshot.PartitionSnapshot(
                current_leader_epoch=request.epoch,
                snapshot_id=snapshot.SnapshotId(end_offset=request.snapshot.offset, epoch=request.snapshot.epoch),
                position=request.position,
                replica_directory_id=request.replica.directory_id,
            )
            return snapshot.FetchSnapshotRequest(
                cluster_id=cluster_id,
                replica_id=request.replica.node_id,
                max_bytes=request.max_bytes,
                topics=[snapshot.TopicSnapshot(name=METADATA_TOPIC, partitions=[part])],
            )
        case UpdateVoter():
            return update.UpdateRaftVoterRequest(
                cluster_id=cluster_id,
                current_leader_epoch=request.epoch,
                voter_id=request.voter.node_id,
                voter_directory_id=request.voter.directory_id,
                listeners=[update.Listener(name=n, host=h, port=p) for n, h, p in request.voter.endpoints],
                kraft_version_feature=update.KRaftVersionFeature(
                    min_supported_version=MIN_KRAFT_VERSION, max_supported_version=MAX_KRAFT_VERSION
                ),
            )
        case AddVoter():
            return add.AddRaftVoterRequest(
                cluster_id=cluster_id,
                timeout_ms=request.timeout_ms,
                voter_id=request.voter.node_id,
                voter_directory_id=request.voter.directory_id,
                listeners=[add.Listener(name=n, host=h, port=p) for n, h, p in request.voter.endpoints],
                ack_when_committed=request.ack_when_committed,
            )
        case RemoveVoter():
            return remove.RemoveRaftVoterRequest(
                cluster_id=cluster_id,
                voter_id=request.voter.node_id,
                voter_directory_id=request.voter.directory_id,
            )


def _end_to_wire(request: EndEpoch, cluster_id: str, me: Voter) -> Any:
    ended = end.PartitionData(
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_successors=[key.node_id for key in request.successors],
        preferred_candidates=[
            end.ReplicaInfo(candidate_id=key.node_id, candidate_directory_id=key.directory_id)
            for key in request.successors
        ],
    )
    return end.EndQuorumEpochRequest(
        cluster_id=cluster_id,
        topics=[end.TopicData(topic_name=METADATA_TOPIC, partitions=[ended])],
        leader_endpoints=[end.LeaderEndpoint(name=n, host=h, port=p) for n, h, p in me.endpoints],
    )


def _fetch_to_wire(request: Fetch, cluster_id: str) -> Any:
    wanted = fetch.FetchPartition(
        current_leader_epoch=request.epoch,
        fetch_offset=request.offset,
        last_fetched_epoch=request.last_epoch,
        partition_max_bytes=request.max_bytes,
        replica_directory_id=request.replica.directory_id,
        high_watermark=request.high_watermark,
    )
    return fetch.FetchRequest(
        cluster_id=cluster_id,
        replica_state=fetch.ReplicaState(replica_id=request.replica.node_id),
        max_wait_ms=request.max_wait_ms,
        max_bytes=request.max_bytes,
        session_epoch=-1,
        topics=[fetch.FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[wanted])],
    )


# --- in -----------------------------------------------------------------------------------------------------


def request_from_wire(message: Any, me: ReplicaKey) -> Request:
    """Returns the request in a message. Raises KafkaError if the message is about any partition but the metadata
    partition.
    """
    match message:
        case vote.VoteRequest():
            asked = only_partition(message.topics)
            return Vote(
                _addressee(message.voter_id, asked.voter_directory_id, me),
                ReplicaKey(asked.replica_id, asked.replica_directory_id),
                asked.replica_epoch,
                asked.last_offset_epoch,
                asked.last_offset,
                asked.pre_vote,
            )
        case begin.BeginQuorumEpochRequest():
            began = only_partition(message.topics)
            voter = _addressee(message.voter_id, began.voter_directory_id, me)
            return BeginEpoch(voter, began.leader_id, began.leader_epoch)
        case end.EndQuorumEpochRequest():
            ended = only_partition(message.topics)
            keys = [ReplicaKey(one.candidate_id, one.candidate_directory_id) for one in ended.preferred_candidates]
            keys = keys or [ReplicaKey(one) for one in ended.preferred_successors]
            return EndEpoch(ended.leader_id, ended.leader_epoch, tuple(keys))
        case fetch.FetchRequest():
            wanted = only_partition(message.topics)
            replica_id = max(message.replica_id, message.replica_state.replica_id)
            return Fetch(
                ReplicaKey(replica_id, wanted.replica_directory_id),
                wanted.current_leader_epoch,
                wanted.fetch_offset,
                wanted.last_fetched_epoch,
                wanted.high_watermark,
                message.max_wait_ms,
                message.max_bytes,
            )
        case snapshot.FetchSnapshotRequest():
            part = only_partition(message.topics)
            snapshot_id = OffsetAndEpoch(part.snapshot_id.end_offset, part.snapshot_id.epoch)
            replica = ReplicaKey(message.replica_id, part.replica_directory_id)
            return FetchSnapshot(replica, part.current_leader_epoch, snapshot_id, part.position, message.max_bytes)
        case add.AddRaftVoterRequest():
            return AddVoter(_voter_in(message), message.timeout_ms, message.ack_when_committed)
        case remove.RemoveRaftVoterRequest():
            return RemoveVoter(ReplicaKey(message.voter_id, message.voter_directory_id))
        case update.UpdateRaftVoterRequest():
            return UpdateVoter(message.current_leader_epoch, _voter_in(message))
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"{type(message).__name__} is not a request of the quorum. Send it to a broker."
    )


def _addressee(voter_id: int, directory_id: bytes, me: ReplicaKey) -> ReplicaKey:
    """Returns the replica that the request is for. Requests of version 0 name no voter and are for this node, `me`."""
    return ReplicaKey(voter_id if voter_id >= 0 else me.node_id, directory_id)


def _voter_in(message: Any) -> Voter:
    listeners = tuple((one.name, one.host, one.port) for one in message.listeners)
    return Voter(message.voter_id, message.voter_directory_id, listeners)


def only_partition(topics: Sequence[Any]) -> Any:
    """Returns the only partition of the request. Messages use different field names for topics and partitions."""
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        topic, partition = topics[0], topics[0].partitions[0]
        names = [getattr(topic, name, "") for name in ("topic_name", "name", "topic")]
        index = next(getattr(partition, n) for n in ("partition_index", "partition", "index") if hasattr(partition, n))
        if (METADATA_TOPIC in names or getattr(topic, "topic_id", None) == METADATA_TOPIC_ID) and index == 0:
            return partition
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"The request must name partition {METADATA_TOPIC}-0 and no other.")
