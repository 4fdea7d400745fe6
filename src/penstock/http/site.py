"""Which page answers which address."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.http.exposition import CONTENT_TYPE, render
from penstock.http.messages import NOT_FOUND, Request, Response
from penstock.http.node_metrics import node_families, pipeline_families
from penstock.http.partition_metrics import partition_families
from penstock.http.view import Shared, View

if TYPE_CHECKING:
    from penstock.http.pipelines import Pipeline


class Site:
    def __init__(self, view: View) -> None:
        self._view = view
        self._pipelines: Shared[list[Pipeline]] = Shared(lambda: asyncio.to_thread(view.pipelines))
        self._metrics: Shared[bytes] = Shared(self._render_metrics)

    async def __call__(self, request: Request) -> Response:
        match request.path:
            case "/metrics":
                return Response(200, CONTENT_TYPE, await self._metrics.get())
            case _:
                return NOT_FOUND

    async def close(self) -> None:
        for shared in (self._pipelines, self._metrics):
            shared.cancel()

    async def _render_metrics(self) -> bytes:
        partitions = await partition_families(self._view.broker)
        pipelines = await self._pipelines.get()
        rendered = []
        for family in (*node_families(self._view), *partitions, *pipeline_families(pipelines)):
            rendered.append(render([family]))
            await asyncio.sleep(0)  # one has up to a few thousand series
        return b"".join(rendered)
