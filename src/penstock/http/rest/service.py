"""Holds the objects that REST operations need: the node's parts, the caller, and a client of the whole cluster.

Each change is a request of Kafka's protocol. The client sends the request over the inter-broker listener, and the
authorizer uses the caller's ACLs. So brokers and controllers treat the request exactly as a request of Kafka's tools,
and no rule is implemented twice. `http/guard.py` has already checked the caller's login and role.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.broker.limits.audit import OK
from penstock.broker.requests.access_control import visible_topics
from penstock.http.guard import NOBODY, Caller, deny_role
from penstock.http.rest.problems import Problem
from penstock.http.roles import Role
from penstock.security.vocabulary import CLUSTER_NAME, AclResource
from penstock.security.vocabulary import Operation as AclOperation

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.client.client import AsyncClient
    from penstock.client.cluster_facts import Facts
    from penstock.client.event_records import EventRows
    from penstock.http.history import History
    from penstock.http.operations import Operation, Operations, Work
    from penstock.http.overview import Overview
    from penstock.http.pipelines import Pipeline
    from penstock.http.rest.bodies import BodyReader
    from penstock.http.rest.record_decoder import RecordDecoder
    from penstock.http.rest.record_rows import RecordViews
    from penstock.http.streams import Streams
    from penstock.log.cleaner import Cleaner
    from penstock.metadata.image import MetadataImage, TopicImage

T = TypeVar("T")


class Aside(Protocol):
    """Runs a long function in the thread that all HTTP requests share, and returns the function's result."""

    def __call__(self, work: Callable[..., T], *args: Any) -> Awaitable[T]: ...


CATCH_UP_S, LOOK_AGAIN_S = 2.0, 0.01
#: Descriptions of groups that run at a time: a group with thousands of topics takes many steps of the event loop.
DESCRIPTIONS = 2


@dataclass(frozen=True, slots=True)
class Service:
    broker: Broker
    client: Callable[[], Awaitable[AsyncClient]]
    """Returns a client whose requests are checked with the caller's ACLs."""
    state: Callable[[], Awaitable[tuple[Facts, Overview]]]
    events: Callable[[], Awaitable[EventRows]]
    pipelines: Callable[[], Awaitable[list[Pipeline]]]
    aside: Aside
    operations: Operations
    streams: Streams
    decoder: RecordDecoder
    views: RecordViews
    bodies: BodyReader
    history: History
    cleaner: Cleaner | None = None
    warnings: Sequence[str] = ()
    caller: Caller = NOBODY
    describing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DESCRIPTIONS))
    """Limits the descriptions of groups that run at a time."""

    def begin(self, kind: str, about: str, work: Work, *, unit: str = "", total: int | None = None) -> dict[str, Any]:
        """Starts an operation of the caller and returns its description. Raises LimitReachedError."""
        return self.operations.start(self.caller, kind, about, work, unit=unit, total=total).as_json()

    def may_see(self, operation: Operation) -> bool:
        """Returns True if the caller started the operation, or is an administrator.

        The result of an operation may contain records. If an authorizer is set, only principals that may create ACLs
        count as administrators.
        """
        if operation.principal == self.caller.principal:
            return True
        access = self.broker.access
        ruling = access is None or access.sees(
            self.caller.context(self.broker), AclOperation.ALTER, AclResource.CLUSTER, CLUSTER_NAME
        )
        return ruling and self.caller.role >= Role.ADMIN

    def require(self, role: Role) -> None:
        """Raises Problem if the caller does not have this role. The denial gets an audit line."""
        if self.caller.role < role:
            raise Problem(403, deny_role(self.broker, self.caller, role))

    def visible_topics(self) -> Callable[[str], bool]:
        """Returns a function that takes a topic name and returns True if the caller may describe the topic.

        The topic does not have to exist.
        """
        return visible_topics(self.broker.access, self.caller.context(self.broker))

    def topic(self, name: str) -> TopicImage:
        """Returns the topic from this node's metadata image.

        Raises Problem with 403 if the caller may not describe the topic, with 404 if there is no such topic.
        The authorizer logs the denial and writes its audit line.
        """
        access, context = self.broker.access, self.caller.context(self.broker)
        if access is not None and not access.allows(context, AclOperation.DESCRIBE, AclResource.TOPIC, name):
            raise Problem(403, f"{self.caller.principal} has no ACL for DESCRIBE on topic {name!r}.")
        found = self.broker.metadata.image.topics.get(name)
        if found is None:
            raise Problem(404, f"There is no topic {name!r}.")
        return found

    def partition(self, topic: str, index: int) -> None:
        """Raises Problem if the caller may not describe the topic, or if the partition does not exist."""
        if index not in self.topic(topic).partitions:
            raise Problem(404, f"There is no partition {topic}-{index}.")

    async def caught_up(self, reached: Callable[[MetadataImage], bool]) -> None:
        """Waits until this node's metadata has a committed change, so that the caller's next request sees the change.

        Gives up after CATCH_UP_S: the controller has committed the change in any case.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_S):
                while not reached(self.broker.metadata.image):  # noqa: ASYNC110 - checked only after changes
                    await asyncio.sleep(LOOK_AGAIN_S)

    def note_change(self, operation: str) -> None:
        """Writes an audit line about a change of this node that was made without a Kafka request."""
        if self.broker.audit is not None:
            context = self.caller.context(self.broker)
            self.broker.audit.changed(context, operation, AclResource.CLUSTER.name, [], OK)
