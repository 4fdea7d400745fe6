"""Finds the brokers that are in quarantine.

The quarantine of a broker is a dynamic config of that broker, so it is in the metadata log and in its snapshots, and
Kafka's tools show it. It survives restarts, new controllers and new registrations of the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.metadata.image import MetadataImage

QUARANTINED = "penstock.guard.quarantined"


def quarantine_reason(image: MetadataImage, broker_id: int) -> str | None:
    """Returns why the broker is in quarantine; None if it is not."""
    return image.broker_config(broker_id).get(QUARANTINED) or None


def quarantined(image: MetadataImage) -> dict[int, str]:
    """Returns the reasons of all registered brokers in quarantine, by broker id."""
    found = {broker_id: quarantine_reason(image, broker_id) for broker_id in sorted(image.brokers)}
    return {broker_id: reason for broker_id, reason in found.items() if reason is not None}
