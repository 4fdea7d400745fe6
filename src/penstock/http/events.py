"""Returns the events that a node can show: its own events, and the cluster's events in the event topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.client.event_records import EventRow, EventRows, event_rows
from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

logger = logging.getLogger(__name__)

#: Events in one answer.
EVENTS_MAX = 500
#: Events that a node knows, the newest ones: some hundreds of each node, unless other clients write events.
KNOWN_MAX = 10_000
READ_S = 2.0


async def known_events(broker: Broker) -> EventRows:
    """Returns the last known events, newest first; only this node's events if the event topic can't be read."""
    values: list[bytes | None] = []
    if broker.event_topic is not None:
        try:
            async with asyncio.timeout(READ_S):
                values = await broker.event_topic.read()
        except (KafkaError, TimeoutError) as error:
            logger.debug("only events of this node are shown, because the event topic can't be read: %s", error)
    own = [entry.as_json() for entry in broker.events.entries]
    return await asyncio.to_thread(_merged, values, own)


def _merged(values: Sequence[bytes | None], own: Sequence[EventRow]) -> EventRows:
    kept = event_rows(values)
    found = {(row["at_ms"], row["node"], row["kind"], row["text"]): row for row in (*kept.rows, *own)}
    return EventRows([found[key] for key in sorted(found, reverse=True)[:KNOWN_MAX]], kept.left_out)
