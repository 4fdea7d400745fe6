"""The table of routes: finds the route of a request, checks its input, and turns every failure into problem details."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.http.messages import Request, Response
from penstock.http.rest.fields import Field, FieldError, check_object, parse_texts
from penstock.http.rest.problems import Problem, kafka_problem, problem
from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.http.rest.service import Service

CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class Call:
    """A request whose input has been checked."""

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
    guarded: bool = False
    """True if the answer has data that ACLs protect, although the route changes nothing."""

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.template.split("/")[1:])

    @property
    def name(self) -> str:
        """The operationId in the OpenAPI document."""
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

    async def serve(self, service: Service, request: Request) -> Response | Any:
        """Returns (status, JSON value) if the operation succeeded; otherwise a response with problem details."""
        parts = request.path.split("/")[1:]
        matches = [(each, found) for each in self.routes if (found := each.match(parts)) is not None]
        if not matches:
            return problem(404, f"There is no resource {request.path}: /v1/openapi.json lists all of them.")
        method = "GET" if request.method == "HEAD" else request.method
        for route, found in matches:
            if route.method == method:
                return await self._run(service, request, route, found)
        allowed = ", ".join(sorted({each.method for each, _ in matches}))
        return problem(405, f"{request.path} takes {allowed}.", ("Allow", allowed))

    async def _run(self, service: Service, request: Request, route: Route, found: Mapping[str, str]) -> Any:
        refusal = service.refusal(request, changes=route.method in CHANGES, guarded=route.guarded)
        if refusal is not None:
            return refusal
        try:
            call = Call(
                {name: route.path[name].parse(name, text) for name, text in found.items()},
                parse_texts(route.query, request.query),
                {} if route.body is None else check_object(route.body, _body(request)),
            )
            answer = await route.operation(service, call)
        except FieldError as error:
            return problem(400, str(error))
        except Problem as error:
            return problem(error.status, error.detail, **error.more)
        except KafkaError as error:
            return kafka_problem(error)
        except TimeoutError:
            return problem(504, "The node did not answer in time: try again.")
        return (route.status, answer)


def _body(request: Request) -> Any:
    if not request.body:
        return {}
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise FieldError(f"the body is not JSON: {error}") from error
