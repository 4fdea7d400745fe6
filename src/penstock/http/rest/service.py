"""What the operations of the REST API work with: the node's parts, and a client of the whole cluster.

Changes are requests of Kafka's protocol, which the client sends over the inter-broker listener with this node's own
credentials. So each change is decided where Kafka's tools have it decided, and no logic exists twice. HTTP has no users
yet: on a node with an authorizer, HTTP changes nothing.
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

    def refusal(self, request: Request) -> Response | None:
        """Returns the answer to a change that is not allowed; None if it is allowed.

        A page of another origin can't send JSON without asking first, which this server never answers. So the check of
        the body's type also keeps web pages from changing anything.
        """
        if request.content_type != BODY_TYPE:
            return problem(415, f"A change has to have the header Content-Type: {BODY_TYPE}.")
        if self.broker.access is not None:
            return problem(403, "HTTP changes nothing on a node with an authorizer: use Kafka's protocol.")
        return None
