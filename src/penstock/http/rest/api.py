"""Lists all routes of the REST API, and the route that serves their OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock.http.rest import (
    access,
    cluster,
    events,
    groups,
    health,
    moves,
    operations,
    record_search,
    records,
    share,
    topics,
    transactions,
)
from penstock.http.rest.openapi import document
from penstock.http.rest.routes import Call, Route

if TYPE_CHECKING:
    from penstock.http.rest.service import Service


async def openapi(service: Service, call: Call) -> Any:
    return document(ROUTES, __version__)


ROUTES: tuple[Route, ...] = (
    *health.ROUTES,
    *cluster.ROUTES,
    *moves.ROUTES,
    *operations.ROUTES,
    *events.ROUTES,
    *topics.ROUTES,
    *groups.ROUTES,
    *records.ROUTES,
    *record_search.ROUTES,
    *share.ROUTES,
    *transactions.ROUTES,
    *access.ROUTES,
    Route("GET", "/v1/openapi.json", "This document", openapi, own_acls=True),
)
