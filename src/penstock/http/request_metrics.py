"""Collects metrics of requests by API: the number of requests, and how long each phase of a request took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.broker.requests.request_times import PHASES
from penstock.http.exposition import Distribution, Family, counter, histogram

if TYPE_CHECKING:
    from penstock.broker.requests.request_times import RequestTimes


def request_families(times: RequestTimes) -> Iterator[Family]:
    """Yields metrics of the APIs that clients have used. A phase that took no time in any request has no series."""
    requests = counter("penstock_api_requests_total", "Requests by API.")
    for name, count in sorted(times.requests().items()):
        requests.add(count, api=name)
    yield requests
    phases = histogram("penstock_request_seconds", "How long requests took, by API and phase, estimated by sampling.")
    for name, api in sorted(times.by_api().items()):
        for phase, found in zip(PHASES, api):
            if found.total:
                phases.add(Distribution.in_seconds(found, 1_000_000_000), api=name, phase=phase)
    yield phases
