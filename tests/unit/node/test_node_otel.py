"""Tests the export of metrics to an OpenTelemetry collector, with failing collectors and bad endpoints."""

from __future__ import annotations

import gzip
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import HistogramDataPoint

from penstock.http.exposition import Distribution, counter, histogram
from penstock.node.listeners import ListenerError
from penstock.node.otel import metrics_data
from penstock.testing import Broker

LIMIT_S = 120.0


class Collector:
    """Replaces a collector: receives OTLP over HTTP, and answers with the status that the test sets."""

    def __init__(self) -> None:
        self.requests: queue.Queue[tuple[str, ExportMetricsServiceRequest]] = queue.Queue()
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.requests.put((self.path, ExportMetricsServiceRequest.FromString(body)))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        collector.server.server_close()
        thread.join(LIMIT_S)


def settings(endpoint: str) -> dict[str, str | int]:
    return {"penstock.otel.endpoint": endpoint, "penstock.otel.interval.ms": 1000}


def test_opentelemetry_collector_gets_the_same_metrics_as_the_metrics_page() -> None:
    with collecting() as collector, Broker(topics={"orders": 2}, config=settings(collector.url)) as broker:
        with broker.client() as client, client.producer() as producer:
            producer.send("orders", b"x", partition=0).result()
        path, request = collector.requests.get(timeout=LIMIT_S)
    assert path == "/v1/metrics"
    (resource,) = request.resource_metrics
    attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert attributes["service.name"] == "penstock"
    assert attributes["service.instance.id"] == "1"
    (scope,) = resource.scope_metrics
    found = {metric.name: metric for metric in scope.metrics}
    (partitions,) = found["penstock_cluster_partitions"].gauge.data_points
    assert partitions.as_int == 2
    requests = found["penstock_api_requests_total"].sum
    assert requests.is_monotonic
    produced = [each for each in requests.data_points if each.attributes[0].value.string_value == "Produce"]
    assert len(produced) == 1
    assert found["penstock_request_seconds"].histogram.data_points


def test_node_serves_and_stops_normally_while_the_opentelemetry_collector_fails() -> None:
    with collecting() as collector:
        collector.status = 503
        with Broker(topics={"orders": 1}, config=settings(collector.url)) as broker:
            collector.requests.get(timeout=LIMIT_S)
            with broker.client() as client, client.producer() as producer:
                assert producer.send("orders", b"x", partition=0).result().offset == 0
            collector.status = 200
            collector.requests.get(timeout=LIMIT_S)


def test_histograms_keep_their_buckets_and_labels_when_they_are_exported() -> None:
    times = histogram("penstock_request_seconds", "Times.")
    times.add(Distribution((0.1, 1.0), (2, 0, 3), 9.5), api="Produce")
    empty = counter("penstock_empty_total", "Nothing.")
    data = metrics_data([times, empty], 1, "c", 1, 2)
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    (point,) = metric.data.data_points
    assert isinstance(point, HistogramDataPoint)
    assert (point.count, point.sum) == (5, 9.5)
    assert (list(point.bucket_counts), list(point.explicit_bounds)) == ([2, 0, 3], [0.1, 1.0])
    assert point.attributes == {"api": "Produce"}


def test_opentelemetry_endpoint_that_is_not_a_url_is_refused() -> None:
    with (
        pytest.raises(ListenerError, match="is not a URL: write it as http://host:4318"),
        Broker(config=settings("collector")),
    ):
        pass


def test_error_about_the_missing_opentelemetry_package_contains_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with (
        pytest.raises(ListenerError, match=r"pip install 'penstock\[otel\]'"),
        Broker(config=settings("http://127.0.0.1:1")),
    ):
        pass
