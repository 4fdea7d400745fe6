"""Holds what the operations of the REST API need: the node's parts, and a client of the whole cluster.

Each change is a request of Kafka's protocol. The client sends it over the inter-broker listener, with this node's own
credentials. So brokers and controllers decide on it exactly as on a request of Kafka's tools, and no rule is
implemented twice. HTTP requests have no authenticated user yet. So on a node with an authorizer, HTTP changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.http.rest.problems import BODY_TYPE, problem

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.client.client import AsyncClient
    from penstock.client.cluster_facts import Facts
    from penstock.client.event_records import EventRow
    from penstock.http.messages import Request, Response
    from penstock.http.overview import Overview


@dataclass(frozen=True, slots=True)
class Service:
    broker: Broker
    client: Callable[[], Awaitable[AsyncClient]]
    state: Callable[[], Awaitable[tuple[Facts, Overview]]]
    events: Callable[[], Awaitable[list[EventRow]]]

    def refusal(self, request: Request, *, changes: bool, guarded: bool) -> Response | None:
        """Returns the answer that refuses a request; None if the request is allowed.

        `guarded` is True if the answer has data that ACLs protect. The check of Content-Type also stops changes by web
        pages of other origins: a browser sends JSON to another origin only after a successful preflight request (CORS),
        and this server refuses preflight requests.
        """
        if changes and request.content_type != BODY_TYPE:
            return problem(415, f"A change has to have the header Content-Type: {BODY_TYPE}.")
        if (changes or guarded) and self.broker.access is not None:
            return problem(403, "HTTP has no users, so a node with an authorizer refuses this: use Kafka's protocol.")
        return None
