"""Finds the route of a request, checks the request's input, and turns every failure into problem details."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.http.guard import Need
from penstock.http.messages import CHANGES, Request, Response
from penstock.http.rest.fields import Field, FieldError, parse_texts
from penstock.http.rest.problems import Problem, kafka_problem, problem
from penstock.http.roles import Role
from penstock.http.shares import LimitReachedError
from penstock.http.streams import EVENT_STREAM, EventStream
from penstock.protocol.errors import KafkaError
from penstock.security.vocabulary import Operation as AclOperation

if TYPE_CHECKING:
    from penstock.http.rest.service import Service


@dataclass(frozen=True, slots=True)
class Call:
    """Holds a request whose input has been checked."""

    path: Mapping[str, Any]
    query: Mapping[str, Any]
    body: Mapping[str, Any]


Operation = Callable[["Service", Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    template: str
    summary: str
    operation: Operation
    path: Mapping[str, Field] = field(default_factory=dict)
    query: Mapping[str, Field] = field(default_factory=dict)
    body: Mapping[str, Field] | None = None
    status: int = 200
    role: Role | None = None
    """The role that the caller needs; by default VIEW for a route that reads, and OPERATE for one that changes."""
    own_acls: bool = False
    """True if the operation itself keeps the caller to its ACLs: it sends Kafka requests for the caller, or uses
    `Service.topic`. Otherwise the caller needs DESCRIBE on the cluster for a route that reads, and ALTER for a change.
    """
    public: bool = False
    """True if the route needs no login."""
    streams: bool = False
    """True if the answer is a stream of server-sent events."""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.template.split("/")[1:])

    @property
    def need(self) -> Need | None:
        """Returns the role and operation that the route requires; None for a public route."""
        changes = self.method in CHANGES
        on_cluster = AclOperation.ALTER if changes else AclOperation.DESCRIBE
        role = self.role or (Role.OPERATE if changes else Role.VIEW)
        return None if self.public else Need(role, None if self.own_acls else on_cluster)

    @property
    def name(self) -> str:
        """Returns the operationId in the OpenAPI document."""
        return self.operation.__name__

    def match(self, parts: Sequence[str]) -> dict[str, str] | None:
        own = self.parts
        if len(own) != len(parts):
            return None
        found: dict[str, str] = {}
        for mine, other in zip(own, parts):
            if mine.startswith("{"):
                found[mine[1:-1]] = other
            elif mine != other:
                return None
        return found


class Router:
    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = tuple(routes)

    def find(self, request: Request) -> Match | Response:
        """Returns the route of the request, or a response with problem details if no route matches."""
        matches = [(each, found) for each in self.routes if (found := each.match(request.parts)) is not None]
        if not matches:
            return problem(404, f"There is no resource {request.path}: /v1/openapi.json lists all of them.")
        method = "GET" if request.method == "HEAD" else request.method
        for route, found in matches:
            if route.method == method:
                return Match(route, found)
        allowed = ", ".join(sorted({each.method for each, _ in matches}))
        return problem(405, f"{request.path} takes {allowed}.", ("Allow", allowed))


@dataclass(frozen=True, slots=True)
class Match:
    """Holds the route of a request, and the values of the route's path parameters."""

    route: Route
    found: Mapping[str, str]

    async def serve(self, service: Service, request: Request) -> Response | Any:
        """Returns (status, JSON value) if the operation succeeded; otherwise a response with problem details."""
        route = self.route
        try:
            call = Call(
                {name: route.path[name].parse(name, text) for name, text in self.found.items()},
                parse_texts(route.query, request.query),
                {} if route.body is None else await service.bodies.read(route.body, request.body),
            )
            answer = await route.operation(service, call)
        except FieldError as error:
            return problem(400, str(error))
        except Problem as error:
            return problem(error.status, error.detail, **error.more)
        except KafkaError as error:
            return kafka_problem(error)
        except LimitReachedError as error:
            status = 429 if error.of_user else 503
            return problem(status, str(error), limit=error.limit, allowed=error.allowed)
        except TimeoutError:
            return problem(504, "The node did not answer in time: try again.")
        if isinstance(answer, EventStream):
            return Response(route.status, EVENT_STREAM, b"", stream=answer)
        return (route.status, answer)
