"""Collects the figures of one partition's replication, for `penstock cluster status` and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.replicas.partition_host import now_ms
from penstock.replication.leader import Figures, effective_min_isr

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition


def figures_of(partition: Partition) -> Figures:
    """Returns the replication figures of a partition, including its followers if this node leads.

    Raises KafkaError if the log is offline.
    """
    log, leading, image = partition.log, partition.leading, partition.image
    followers = leading.followers if leading is not None else {}
    end, isr, now = log.log_end_offset, partition.isr, now_ms() if followers else 0
    need = effective_min_isr(log.config.min_insync_replicas, image.replicas)
    return Figures(
        topic=partition.topic,
        partition=partition.index,
        leader_epoch=image.leader_epoch,
        log_start=log.log_start_offset,
        log_end=end,
        high_watermark=log.high_watermark,
        isr=isr,
        replicas=image.replicas,
        lag_records={each: end - max(follower.log_end, 0) for each, follower in followers.items()},
        lag_ms={each: follower.lag_ms(end, now) for each, follower in followers.items()},
        under_replicated=len(isr) < len(image.replicas),
        under_min_isr=len(isr) < need,
        isr_change_pending=leading is not None and leading.proposal is not None,
    )
