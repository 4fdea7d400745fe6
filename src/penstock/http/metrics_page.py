"""Collects all metrics of a node in small slices; renders the page /metrics and caches it.

`families` is the only list of metrics: every exporter reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.http.exposition import rendered
from penstock.http.node_metrics import node_families, pipeline_families, traffic_families
from penstock.http.partition_metrics import partition_families
from penstock.http.view import Cached, cached_s

if TYPE_CHECKING:
    from penstock.http.exposition import Family
    from penstock.http.pipelines import Pipeline
    from penstock.http.view import View

#: Pages for chosen topics that are cached at a time.
CHOICES_MAX = 16

ReadPipelines = Callable[[], Awaitable[list["Pipeline"]]]


async def families(view: View, pipelines: ReadPipelines, topics: frozenset[str] | None = None) -> AsyncIterator[Family]:
    """Yields all metrics of the node. With `topics`, only partitions of these topics have their own series."""
    for family in node_families(view):
        yield family
    for family in await traffic_families(view.server):
        yield family
    of_partitions = await partition_families(view.broker, topics)
    of_partitions.reverse()
    while of_partitions:  # each family is freed on its own: to free so many objects at once takes long, too
        yield of_partitions.pop()
    for family in pipeline_families(await pipelines()):
        yield family


class MetricsPage:
    """Renders pages one at a time, so that many clients with different topics do not slow the node down."""

    def __init__(self, view: View, pipelines: ReadPipelines) -> None:
        self._view = view
        self._pipelines = pipelines
        self._pages: dict[frozenset[str] | None, Cached[bytes]] = {}
        self._rendering = asyncio.Lock()

    async def get(self, choice: str = "") -> bytes:
        """Returns the page. `choice` lists topics, separated by commas: only their partitions get their own series."""
        topics = self._existing(choice) if choice else None
        page = self._pages.get(topics)
        if page is None:
            page = self._pages[topics] = Cached(
                partial(self._render, topics),
                lambda: cached_s(len(self._view.broker.partitions)),
                cancel_if_abandoned=True,
            )
            for oldest in list(self._pages)[:-CHOICES_MAX]:
                del self._pages[oldest]
        return await page.get()

    def cancel(self) -> None:
        for page in self._pages.values():
            page.cancel()

    def _existing(self, choice: str) -> frozenset[str]:
        """Returns the chosen topics that exist. Other names are dropped, so that they don't fill the cache of pages."""
        known = self._view.broker.metadata.image.topics
        return frozenset(name for name in choice.split(",") if name in known)

    async def _render(self, topics: frozenset[str] | None) -> bytes:
        parts = []
        async with self._rendering:
            async for family in families(self._view, self._pipelines, topics):
                for part in rendered(family):
                    parts.append(part)
                    await asyncio.sleep(0)
        return b"".join(parts)
