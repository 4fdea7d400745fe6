"""Pushes the node's metrics to an OpenTelemetry collector, by OTLP over HTTP, at an interval.

The metrics are the same as on the page /metrics, from the same list. They are collected in slices on the event loop;
conversion, encoding and transmission run in one thread, one export at a time. If a collector does not answer, the
thread waits for a few seconds at most. Counters are cumulative, so a later export makes up for a failed one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.http.exposition import Distribution, Family, Kind
from penstock.http.metrics_page import families
from penstock.http.pipelines import of_cluster
from penstock.node.listeners import ListenerError

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import HistogramDataPoint, Metric, MetricsData, NumberDataPoint

    from penstock.http.pipelines import Pipeline
    from penstock.http.view import View
    from penstock.metadata.configs.settings import Settings

logger = logging.getLogger(__name__)

ENDPOINT = "penstock.otel.endpoint"
INTERVAL = "penstock.otel.interval.ms"
PATH = "/v1/metrics"
#: Longest time of one export, with its retries.
EXPORT_MAX_S = 5


class OtelExport:
    """Exports metrics from `start` to `close` if the settings name a collector."""

    def __init__(self, settings: Settings) -> None:
        """Makes the exporter. Raises ListenerError if the endpoint is not a URL or OpenTelemetry is not installed."""
        self._interval_s = settings.int(INTERVAL) / 1000
        self._exporter: OTLPMetricExporter | None = None
        endpoint = settings.str(ENDPOINT).strip()
        if endpoint:
            self._exporter = _exporter(endpoint)
        self._threads: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    def start(self, view: View) -> None:
        """Begins to export metrics. Does nothing if no endpoint is set."""
        if self._exporter is not None:
            view.server.loop_delays.start()
            self._threads = ThreadPoolExecutor(1, thread_name_prefix="penstock-otel")
            self._task = asyncio.get_running_loop().create_task(
                self._run(view, self._exporter, self._threads), name="otel-export"
            )

    async def close(self) -> None:
        if self._task is None or self._threads is None or self._exporter is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        # A failing export waits between its retries; `shutdown` ends this wait. It may take the lock of the export.
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.get_running_loop().run_in_executor(None, self._exporter.shutdown)

    async def _run(self, view: View, exporter: OTLPMetricExporter, threads: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()

        async def pipelines() -> list[Pipeline]:
            return of_cluster(await loop.run_in_executor(threads, view.pipelines), view.broker)

        while True:
            await asyncio.sleep(self._interval_s)
            try:
                found = [family async for family in families(view, pipelines)]
                broker = view.broker
                work = (exporter, found, broker.node_id, broker.cluster_id, view.started_ms)
                sent = await loop.run_in_executor(threads, _export, *work)
            except Exception:
                logger.exception(
                    "the metrics could not be exported to the collector; the node retries at the next interval"
                )
                sent = False
            self._note(sent)

    def _note(self, sent: bool) -> None:
        """Logs the first failed export of an outage, and the end of the outage."""
        if sent and self._failing:
            logger.info("the OpenTelemetry collector accepts metrics again")
        elif not sent and not self._failing:
            logger.warning(
                "the collector that %s names did not accept the metrics; the node retries at each interval", ENDPOINT
            )
        self._failing = not sent


def _exporter(endpoint: str) -> OTLPMetricExporter:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ListenerError(f"{ENDPOINT}={endpoint} is not a URL: write it as http://host:4318.")
    if parts.path in ("", "/"):
        endpoint = parts._replace(path=PATH).geturl()
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError:
        raise ListenerError(
            f"{ENDPOINT} needs OpenTelemetry: install it with pip install 'penstock[otel]', or remove the property."
        ) from None
    return OTLPMetricExporter(endpoint=endpoint, timeout=EXPORT_MAX_S)


def _export(
    exporter: OTLPMetricExporter, found: Sequence[Family], node_id: int, cluster_id: str, started_ms: int
) -> bool:
    from opentelemetry.sdk.metrics.export import MetricExportResult

    data = metrics_data(found, node_id, cluster_id, started_ms * 1_000_000, time.time_ns())
    return exporter.export(data) is MetricExportResult.SUCCESS


def metrics_data(found: Sequence[Family], node_id: int, cluster_id: str, started_ns: int, now_ns: int) -> MetricsData:
    """Converts metric families to OpenTelemetry's data model, with the same names."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    attributes = {"service.name": "penstock", "service.instance.id": str(node_id), "penstock.cluster.id": cluster_id}
    metrics = [_metric(family, started_ns, now_ns) for family in found if family.samples]
    scope = ScopeMetrics(InstrumentationScope("penstock"), metrics, "")
    return MetricsData([ResourceMetrics(Resource(attributes), [scope], "")])


def _metric(family: Family, started_ns: int, now_ns: int) -> Metric:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Histogram, Metric, Sum

    points: list[Any] = [
        _histogram(dict(labels), value, started_ns, now_ns)
        if isinstance(value, Distribution)
        else _number(dict(labels), value, started_ns, now_ns)
        for labels, value in family.samples
    ]
    cumulative = AggregationTemporality.CUMULATIVE
    data: Gauge | Histogram | Sum
    match family.kind:
        case Kind.GAUGE:
            data = Gauge(points)
        case Kind.COUNTER:
            data = Sum(points, cumulative, is_monotonic=True)
        case Kind.HISTOGRAM:
            data = Histogram(points, cumulative)
    unit = "s" if family.name.endswith("_seconds") else "By" if "_bytes" in family.name else "1"
    return Metric(family.name, family.help, unit, data)


def _number(labels: dict[str, str], value: float, started_ns: int, now_ns: int) -> NumberDataPoint:
    from opentelemetry.sdk.metrics.export import NumberDataPoint

    return NumberDataPoint(labels, started_ns, now_ns, value)


def _histogram(labels: dict[str, str], value: Distribution, started_ns: int, now_ns: int) -> HistogramDataPoint:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    counts = list(value.counts)
    bounds = (0.0, *value.bounds)
    filled = [place for place, count in enumerate(counts) if count]
    # The smallest and the largest value are not kept: the bounds of their buckets stand for them.
    least = bounds[filled[0]] if filled else 0.0
    most = value.bounds[min(filled[-1], len(value.bounds) - 1)] if filled else 0.0
    return HistogramDataPoint(
        labels, started_ns, now_ns, sum(counts), value.total, counts, list(value.bounds), least, most
    )
