"""DescribeQuorum v0-2: returns leader, epoch, high watermark and replicas of the metadata quorum.

v2 adds directory ids and listeners. Only the leader knows the progress of the voters; other voters return an error and
the leader's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from penstock.protocol.vocabulary import METADATA_TOPIC

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_parts import ControllerParts
    from penstock.broker.controlplane.metadata_log import QuorumView
    from penstock.broker.requests.context import RequestContext
    from penstock.raft.describe import ReplicaView

FIRST_VERSION_WITH_DIRECTORY = 2
NOT_HOSTED = "The request is not about partition 0 of __cluster_metadata alone: name only this partition."


def handle(broker: ControllerParts, ctx: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    quorum = broker.metadata.quorum()
    response = DescribeQuorumResponse()
    asked_for = [(topic.topic_name, asked.partition_index) for topic in request.topics for asked in topic.partitions]
    hosted = asked_for == [(METADATA_TOPIC, 0)]  # a request with more partitions is refused as a whole
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            if hosted:
                partitions.append(_describe(quorum, ctx))
            else:
                partitions.append(
                    DescribeQuorumResponsePartitionData(
                        partition_index=asked.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message=NOT_HOSTED,
                    )
                )
        response.topics.append(DescribeQuorumResponseTopicData(topic_name=topic.topic_name, partitions=partitions))
    if hosted and ctx.api_version >= FIRST_VERSION_WITH_DIRECTORY:
        response.nodes = [
            Node(
                node_id=voter.node_id,
                listeners=[Listener(name=name, host=host, port=port) for name, host, port in voter.endpoints],
            )
            for voter in quorum.voters
        ]
    return response


def _describe(quorum: QuorumView, ctx: RequestContext) -> DescribeQuorumResponsePartitionData:
    with_directory = ctx.api_version >= FIRST_VERSION_WITH_DIRECTORY
    if len(quorum.voters) > 1 or quorum.replicas:
        return _describe_several(quorum, with_directory)
    return DescribeQuorumResponsePartitionData(
        partition_index=0,
        leader_id=quorum.leader_id,
        leader_epoch=quorum.leader_epoch,
        high_watermark=quorum.high_watermark,
        current_voters=[
            ReplicaState(
                replica_id=voter.node_id,
                replica_directory_id=voter.directory_id if with_directory else bytes(16),
                log_end_offset=quorum.log_end_offset,
                # The leader is always caught up with itself.
                last_fetch_timestamp=ctx.now_ms,
                last_caught_up_timestamp=ctx.now_ms,
            )
            for voter in quorum.voters
        ],
    )


def _describe_several(quorum: QuorumView, with_directory: bool) -> DescribeQuorumResponsePartitionData:
    answer = DescribeQuorumResponsePartitionData(leader_id=quorum.leader_id, leader_epoch=quorum.leader_epoch)
    if not quorum.replicas:
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer.error_message = f"Node {quorum.leader_id} leads the quorum: send the request to that node."
        return answer
    answer.high_watermark = quorum.high_watermark
    answer.current_voters = [_replica(replica, with_directory) for replica in quorum.replicas]
    answer.observers = [_replica(replica, with_directory) for replica in quorum.observers]
    return answer


def _replica(replica: ReplicaView, with_directory: bool) -> ReplicaState:
    return ReplicaState(
        replica_id=replica.key.node_id,
        replica_directory_id=replica.key.directory_id if with_directory else bytes(16),
        log_end_offset=replica.log_end_offset,
        last_fetch_timestamp=replica.last_fetch_ms,
        last_caught_up_timestamp=replica.last_caught_up_ms,
    )
