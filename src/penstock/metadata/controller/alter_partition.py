"""Decides AlterPartition (a leader requests a new ISR, KIP-497) and AssignReplicasToDirs requests (KIP-858).

With AssignReplicasToDirs, a broker reports the directories of its replicas.

A request for a new ISR is granted only if three conditions hold: the broker still leads the partition in the leader
epoch of the request; the partition epoch of the request is current; and each replica in the new ISR is alive, in the
incarnation that caught up (KIP-903).
"""

from __future__ import annotations

from typing import Any

from penstock.metadata.apply import apply, changed_partition
from penstock.metadata.controller.broker_states import registered_broker
from penstock.metadata.controller.partition_change import (
    DEFAULT_RULES,
    RECOVERED,
    RECOVERING,
    Change,
    Election,
    Rules,
    leader_and_isr_changes,
)
from penstock.metadata.decision import Decision
from penstock.metadata.image import MetadataImage, PartitionImage, TopicImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_56_alter_partition as isr_change
from penstock.protocol.messages import api_73_assign_replicas_to_dirs as directories
from penstock.protocol.persisted.metadata.partition_change_record import PartitionChangeRecord
from penstock.protocol.vocabulary import NO_LEADER_CHANGE

ANY_EPOCH = -1


def alter_partition(
    image: MetadataImage, request: isr_change.AlterPartitionRequest, rules: Rules = DEFAULT_RULES
) -> Decision[isr_change.AlterPartitionResponse]:
    registered_broker(image, request.broker_id, request.broker_epoch)
    records: list[Any] = []
    response = isr_change.AlterPartitionResponse()
    for asked in request.topics:
        results: list[isr_change.AlterPartitionResponsePartitionData] = []
        response.topics.append(isr_change.AlterPartitionResponseTopicData(topic_id=asked.topic_id, partitions=results))
        topic = image.topics_by_id.get(asked.topic_id)
        for wish in asked.partitions:
            if topic is None:
                code: ErrorCode = ErrorCode.UNKNOWN_TOPIC_ID
            else:
                code = refusal(image, request.broker_id, topic.partitions.get(wish.partition_index), wish)
            if code is ErrorCode.INELIGIBLE_REPLICA:
                records.append(_next_epoch(asked.topic_id, wish.partition_index))
            if topic is None or code is not ErrorCode.NONE:
                results.append(_refused(wish, code))
                continue
            change = _change(image, topic, wish, rules).record()
            if change is not None:
                records.append(change)
            if change is not None and change.leader not in (NO_LEADER_CHANGE, request.broker_id):
                results.append(_refused(wish, ErrorCode.NEW_LEADER_ELECTED))  # the change completed a reassignment
            else:
                results.append(_changed(topic, wish.partition_index, change))
    return Decision(records, response)


def _change(image: MetadataImage, topic: TopicImage, wish: isr_change.PartitionData, rules: Rules) -> Change:
    unclean = rules.allows_unclean(image, topic.name)
    return Change(
        image,
        topic,
        wish.partition_index,
        rules,
        Election.UNCLEAN if unclean else Election.ONLINE,
        isr=[broker_id for broker_id, _ in requested_isr(wish)],
        recovery_state=wish.leader_recovery_state,
    )


def requested_isr(wish: isr_change.PartitionData) -> list[tuple[int, int]]:
    """Returns (broker id, broker epoch) for each replica of the requested ISR. Requests before version 3 have no
    epochs.
    """
    if wish.new_isr_with_epochs:
        return [(one.broker_id, one.broker_epoch) for one in wish.new_isr_with_epochs]
    return [(broker_id, ANY_EPOCH) for broker_id in wish.new_isr]


def refusal(
    image: MetadataImage, broker_id: int, partition: PartitionImage | None, wish: isr_change.PartitionData
) -> ErrorCode:
    """Returns the error code for an AlterPartition request that is refused; NONE if it is granted."""
    if partition is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    stale = _stale(broker_id, partition, wish)
    if stale is not ErrorCode.NONE:
        return stale
    isr = [replica for replica, _ in requested_isr(wish)]
    if not isr or len(set(isr)) < len(isr) or not set(isr) <= set(partition.replicas) or partition.leader not in isr:
        return ErrorCode.INVALID_REQUEST
    recovering = wish.leader_recovery_state == RECOVERING
    if wish.leader_recovery_state not in (RECOVERED, RECOVERING):
        return ErrorCode.INVALID_REQUEST
    if recovering and (len(isr) > 1 or partition.leader_recovery_state == RECOVERED):
        return ErrorCode.INVALID_REQUEST
    if not all(is_eligible(image, replica, epoch) for replica, epoch in requested_isr(wish)):
        return ErrorCode.INELIGIBLE_REPLICA
    return ErrorCode.NONE


def _stale(broker_id: int, partition: PartitionImage, wish: isr_change.PartitionData) -> ErrorCode:
    if wish.leader_epoch > partition.leader_epoch or wish.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader has seen a later epoch, so there is a newer controller
    if wish.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if wish.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return ErrorCode.NONE


def is_eligible(image: MetadataImage, broker_id: int, epoch: int) -> bool:
    """Returns True if the broker may be in sync: alive, not shutting down, and still the incarnation that caught up."""
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.usable and epoch in (ANY_EPOCH, broker.epoch)


def _next_epoch(topic_id: bytes, index: int) -> PartitionChangeRecord:
    """Returns a record that only increments the partition epoch. Used after a request that named an ineligible replica.

    The leader may have sent the refused request twice. The second copy may arrive when the replica is eligible again,
    but the leader no longer wants this replica in its ISR. The new partition epoch makes the controller refuse the
    second copy. (Kafka does not increment the epoch, and would grant the copy.)
    """
    return PartitionChangeRecord(partition_id=index, topic_id=topic_id)


def _refused(wish: isr_change.PartitionData, code: ErrorCode) -> isr_change.AlterPartitionResponsePartitionData:
    return isr_change.AlterPartitionResponsePartitionData(partition_index=wish.partition_index, error_code=code)


def _changed(topic: TopicImage, index: int, change: Any) -> isr_change.AlterPartitionResponsePartitionData:
    after = topic.partitions[index]
    if change is not None:
        after = changed_partition(after, change)
    return isr_change.AlterPartitionResponsePartitionData(
        partition_index=index,
        leader_id=after.leader,
        leader_epoch=after.leader_epoch,
        isr=list(after.isr),
        leader_recovery_state=after.leader_recovery_state,
        partition_epoch=after.partition_epoch,
    )


# --- directories ------------------------------------------------------------------------------------


def assign_replicas(
    image: MetadataImage, request: directories.AssignReplicasToDirsRequest, rules: Rules = DEFAULT_RULES
) -> Decision[directories.AssignReplicasToDirsResponse]:
    """Records the directories of a broker's replicas. If a directory has failed meanwhile, its replicas leave the
    ISR."""
    broker = registered_broker(image, request.broker_id, request.broker_epoch)
    records: list[Any] = []
    lost: list[tuple[bytes, int]] = []
    response = directories.AssignReplicasToDirsResponse()
    for directory in request.directories:
        topics: list[directories.AssignReplicasToDirsResponseTopicData] = []
        response.directories.append(
            directories.AssignReplicasToDirsResponseDirectoryData(id=directory.id, topics=topics)
        )
        for asked in directory.topics:
            results: list[directories.AssignReplicasToDirsResponsePartitionData] = []
            topics.append(
                directories.AssignReplicasToDirsResponseTopicData(topic_id=asked.topic_id, partitions=results)
            )
            for one in asked.partitions:
                code = ErrorCode.NONE
                try:
                    topic = _assignable(image, asked.topic_id, one.partition_index, request.broker_id)
                    change = Change(
                        image, topic, one.partition_index, rules, directories={request.broker_id: directory.id}
                    )
                    record = change.record()
                    if record is not None:
                        records.append(record)
                    if not broker.has_online(directory.id):
                        lost.append((asked.topic_id, one.partition_index))
                except KafkaError as error:
                    code = error.code
                results.append(
                    directories.AssignReplicasToDirsResponsePartitionData(
                        partition_index=one.partition_index, error_code=code
                    )
                )
    if lost:
        after = apply(image, records)
        affected = [(after.topics_by_id[topic_id], index) for topic_id, index in lost]
        records += leader_and_isr_changes(after, rules, affected, leaving=request.broker_id)
    return Decision(records, response)


def _assignable(image: MetadataImage, topic_id: bytes, index: int, broker_id: int) -> TopicImage:
    topic = image.topics_by_id.get(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    partition = topic.partitions.get(index)
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if broker_id not in partition.replicas:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return topic
