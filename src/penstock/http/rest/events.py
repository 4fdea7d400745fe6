"""Implements operations on events: list events, and follow them as server-sent events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from penstock.http.events import EVENTS_MAX
from penstock.http.rest.fields import Field
from penstock.http.rest.routes import Call, Route
from penstock.http.streams import HEARTBEAT, HEARTBEAT_S, message

if TYPE_CHECKING:
    from penstock.client.event_records import EventRow
    from penstock.http.rest.service import Service
    from penstock.http.streams import Chunks

#: Pause between two looks at the events. The looks of all streams share one read of the topic of events.
LOOK_EVERY_S = 1.0


async def list_events(service: Service, call: Call) -> Any:
    known = await service.events()
    found = _matching(known.rows, call)
    shown = found[: call.query.get("limit", EVENTS_MAX)]
    return {"total": len(found), "events": shown, "left_out": known.left_out}


async def stream_events(service: Service, call: Call) -> Any:
    """Sends the newest events in the order of time, and then each new event of the cluster."""
    return service.streams.open(service.caller.user, lambda _slot: _events(service, call))


async def _events(service: Service, call: Call) -> Chunks:
    yield HEARTBEAT
    known = _matching((await service.events()).rows, call)
    for row in reversed(known[: call.query.get("last", 20)]):
        yield message("event", row)
    seen = set(map(_key, known))
    silent_s, left_out = 0.0, 0
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        silent_s += LOOK_EVERY_S
        rows, now_left_out = await service.events()
        if now_left_out != left_out:
            left_out = now_left_out
            yield message("left_out", {"records": left_out})
        found = _matching(rows, call)
        for row in reversed(found):
            if _key(row) not in seen:
                yield message("event", row)
                silent_s = 0.0
        seen = set(map(_key, found))  # events that the topic no longer has don't come back
        if silent_s >= HEARTBEAT_S:
            yield HEARTBEAT
            silent_s = 0.0


def _matching(rows: list[EventRow], call: Call) -> list[EventRow]:
    kind, node = call.query.get("kind", ""), call.query.get("node")
    return [row for row in rows if row["kind"].startswith(kind) and node in (None, row["node"])]


def _key(row: EventRow) -> tuple[Any, ...]:
    return row["at_ms"], row["node"], row["kind"], row["text"]


FILTER = {
    "kind": Field("string", "only kinds that begin with this text"),
    "node": Field("integer", "only events of this node", low=0),
}
ROUTES = (
    Route(
        "GET",
        "/v1/events",
        "Lists what happened, the newest first",
        list_events,
        query={**FILTER, "limit": Field("integer", low=1, high=EVENTS_MAX)},
    ),
    Route(
        "GET",
        "/v1/events/stream",
        "Sends events as they happen, as server-sent events",
        stream_events,
        query={**FILTER, "last": Field("integer", "earlier events to send first; default: 20", low=0, high=EVENTS_MAX)},
        streams=True,
    ),
)
