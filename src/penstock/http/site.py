"""Finds the page for each request's path, and answers the request with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

from penstock.http.cluster import ClusterFacts
from penstock.http.events import known_events
from penstock.http.exposition import CONTENT_TYPE
from penstock.http.guard import NOBODY, VIEW_CLUSTER, VIEW_CONSOLE, AdmittedStream, Caller, Guard, Need
from penstock.http.messages import PROBES, READS, Request, Response, as_json, text
from penstock.http.metrics_page import MetricsPage
from penstock.http.on_behalf import CallerClient
from penstock.http.operations import Operations
from penstock.http.overview import Overview, overview, topic_sums
from penstock.http.pipelines import of_cluster
from penstock.http.rates import Rates
from penstock.http.rest.api import ROUTES
from penstock.http.rest.bodies import BodyReader
from penstock.http.rest.problems import problem
from penstock.http.rest.record_decoder import RecordDecoder
from penstock.http.rest.record_rows import RecordViews
from penstock.http.rest.routes import Match, Router
from penstock.http.rest.service import Service
from penstock.http.static_files import INDEX, is_static, static_file
from penstock.http.streams import Streams
from penstock.http.view import Cached, View, cached_s

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.client.cluster_facts import Facts
    from penstock.client.event_records import EventRows
    from penstock.http.pipelines import Pipeline

T = TypeVar("T")

#: Paths of earlier versions, and the routes of the REST API that have replaced them.
MOVED = {
    "/api": "/v1/openapi.json",
    "/api/": "/v1/openapi.json",
    "/api/cluster": "/v1/cluster/overview",
    "/api/topics": "/v1/topics",
    "/api/events": "/v1/events",
    "/api/share": "/v1/share-windows",
    "/api/pipelines": "/v1/pipelines",
}
REST_PREFIX = "/v1/"


@dataclass(frozen=True, slots=True)
class _ClusterState:
    facts: Facts
    overview: Overview


class Site:
    def __init__(self, view: View) -> None:
        self._view = view
        self._cluster = ClusterFacts(view)
        self._rates = Rates()
        # One thread for long work and file reads: however many clients ask, one thread competes with the broker's loop.
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="penstock-http")
        self._pipelines: Cached[list[Pipeline]] = Cached(self._read_pipelines)
        self._events: Cached[EventRows] = Cached(lambda: known_events(view.broker))
        broker = view.broker
        self._metrics = MetricsPage(view, self._pipelines.get)
        self._state: Cached[_ClusterState] = Cached(
            self._read_cluster, lambda: cached_s(broker.metadata.image.partition_count)
        )

        self._guard = Guard(broker, view.roles, view.login)
        self._router = Router(ROUTES)
        self._operations = Operations(broker.clock.wall_ms)
        self._decoder = RecordDecoder()
        self._bodies = BodyReader()
        self._views = RecordViews(view.schemas)
        self._service = Service(
            broker,
            partial(self._client, NOBODY),
            self._facts_and_overview,
            self._events.get,
            self._pipelines.get,
            self._aside,
            self._operations,
            Streams(),
            self._decoder,
            self._views,
            self._bodies,
            view.history,
            view.cleaner,
            view.warnings,
        )

    async def __call__(self, request: Request) -> Response:
        """Answers a request, if the guard admits it."""
        path = request.path
        route = self._router.find(request) if path.startswith(REST_PREFIX) or path in PROBES else None
        caller = await self._guard.admit(request, route.route.need if isinstance(route, Match) else _need(path))
        if isinstance(caller, Response):
            return caller
        if route is not None:
            return route if isinstance(route, Response) else await self._rest(route, request, caller)
        if request.method not in READS:
            return problem(405, f"{path} takes GET.", ("Allow", ", ".join(READS)))
        return await self._serve_page(path, request.query)

    async def _serve_page(self, path: str, query: Mapping[str, str]) -> Response:
        match path:
            case "/":
                return static_file(INDEX)
            case "/metrics":
                return Response(200, CONTENT_TYPE, await self._metrics.get(query.get("partitions", "")))
        if path in MOVED:
            target = f"{MOVED[path]}?{urlencode(query)}" if query else MOVED[path]
            return text(308, f"This is at {target} now.", ("Location", target))
        return static_file(path)

    async def _rest(self, match: Match, request: Request, caller: Caller) -> Response:
        service = replace(self._service, caller=caller, client=partial(self._client, caller))
        answer = await match.serve(service, request)
        if isinstance(answer, Response):
            if answer.stream is None:
                return answer

            async def is_admitted() -> bool:
                return isinstance(await self._guard.admit(request, match.route.need), Caller)

            return replace(answer, stream=AdmittedStream(answer.stream, is_admitted))
        status, value = answer
        return await self._aside(as_json, value, status)

    async def _facts_and_overview(self) -> tuple[Facts, Overview]:
        state = await self._state.get()
        return state.facts, state.overview

    async def _client(self, caller: Caller) -> AsyncClient:
        shared, broker = self._cluster.client(), self._view.broker
        if broker.access is None and broker.audit is None:
            return shared
        return CallerClient(shared, broker, caller)

    async def close(self) -> None:
        for shared in (self._pipelines, self._metrics, self._state, self._events):
            shared.cancel()
        await self._operations.close()
        self._decoder.close()
        self._views.close()
        self._bodies.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._cluster.close()

    async def _aside(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)

    # --- pages

    async def _read_pipelines(self) -> list[Pipeline]:
        """Returns the pipelines of this cluster. Leaves out pipelines of other clusters on the same machine."""
        return of_cluster(await self._aside(self._view.pipelines), self._view.broker)

    async def _read_cluster(self) -> _ClusterState:
        facts = await self._cluster()
        at_s = asyncio.get_running_loop().time()
        sums = await self._aside(topic_sums, facts)
        rates = self._rates.add_sample(at_s, sums)
        return _ClusterState(facts, await self._aside(overview, facts, sums, rates))


def _need(path: str) -> Need | None:
    """Returns the role and operation that a page requires; None for the console's static files, which need no login.

    The console's page contains no data, but needs a login. The browser then sends this login with REST requests, too.
    """
    if is_static(path):
        return None
    return VIEW_CONSOLE if path == "/" else VIEW_CLUSTER
