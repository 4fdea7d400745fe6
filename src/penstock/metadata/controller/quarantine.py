"""Decides whether a broker is put in quarantine. A broker in quarantine is fenced until an operator releases it.

The guard, which finds replicas with damaged or wrong data, requests a quarantine. A quarantine never costs
availability: at most a minority of the brokers is in quarantine, and no partition loses a replica that it needs for
min.insync.replicas. Otherwise a node could use the guard to harm the cluster.
"""

from __future__ import annotations

from typing import Any

from penstock.metadata.controller.broker_states import fence_broker
from penstock.metadata.controller.partition_change import DEFAULT_RULES, Rules, partitions_where
from penstock.metadata.decision import Decision
from penstock.metadata.image import MetadataImage
from penstock.metadata.quarantine import QUARANTINED, quarantine_reason, quarantined
from penstock.protocol.persisted.metadata.config_record import ConfigRecord
from penstock.protocol.vocabulary import ResourceType

MAX_REASON_CHARS = 500


def quarantine_broker(
    image: MetadataImage, broker_id: int, reason: str, rules: Rules = DEFAULT_RULES
) -> Decision[str | None]:
    """Puts the broker in quarantine: records the reason, and fences the broker in the same commit.

    The reply is None, or the reason why the broker can't be put in quarantine.
    """
    if quarantine_reason(image, broker_id) is not None:
        return Decision([], None)
    refusal = quarantine_refusal(image, broker_id, rules)
    if refusal is not None:
        return Decision([], refusal)
    config = ConfigRecord(
        resource_type=ResourceType.BROKER,
        resource_name=str(broker_id),
        name=QUARANTINED,
        value=reason[:MAX_REASON_CHARS],
    )
    records: list[Any] = [config, *fence_broker(image, broker_id, rules).records]
    return Decision(records, None)


def quarantine_refusal(image: MetadataImage, broker_id: int, rules: Rules) -> str | None:
    """Returns the reason why the cluster needs the broker; None if the broker can be put in quarantine."""
    if broker_id not in image.brokers:
        return f"broker {broker_id} is not registered"
    count = len(image.brokers)
    others = len(quarantined(image))
    if 2 * (others + 1) >= count:
        return f"{others} of {count} brokers are in quarantine, and a majority has to stay in use"
    usable = [each for each in image.brokers.values() if each.usable and each.broker_id != broker_id]
    if 2 * len(usable) <= count:
        return f"without it, only {len(usable)} of {count} brokers are in use"
    for topic, index in partitions_where(image, lambda partition: broker_id in partition.isr):
        left = len(topic.partitions[index].isr) - 1
        need = rules.min_isr(image, topic)
        if left < need:
            return f"{topic.name}-{index} would have {left} replicas in sync, but min.insync.replicas={need}"
    return None
