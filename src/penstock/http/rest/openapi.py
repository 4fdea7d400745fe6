"""Makes the OpenAPI 3.1 document from the table of routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.http.rest.fields import object_schema
from penstock.http.rest.problems import BODY_TYPE, PROBLEM
from penstock.http.rest.routes import Route
from penstock.http.streams import EVENT_STREAM

PROBLEM_SCHEMA = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "kafka_error": {"type": "string", "description": "the name of Kafka's error code"},
        "limit": {"type": "string", "description": "the name of the limit that is reached"},
        "allowed": {"type": "integer", "description": "the value of this limit"},
    },
    "required": ["type", "title", "status", "detail"],
}


#: The logins that a node may be configured to accept.
SECURITY_SCHEMES = {
    "password": {"type": "http", "scheme": "basic", "description": "A user of SCRAM or PLAIN."},
    "token": {"type": "http", "scheme": "bearer", "description": "An access token of OAUTHBEARER's issuer."},
    "certificate": {"type": "mutualTLS", "description": "A client certificate, mapped to a user."},
}


def document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": version},
        "paths": paths,
        "components": {"schemas": {"Problem": PROBLEM_SCHEMA}, "securitySchemes": SECURITY_SCHEMES},
        "security": [*({name: []} for name in SECURITY_SCHEMES), {}],
    }


def _operation(route: Route) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    failed = {"description": "problem details", "content": {PROBLEM: {"schema": schema}}}
    kind = EVENT_STREAM if route.streams else BODY_TYPE
    told: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": {str(route.status): {"description": "done", "content": {kind: {}}}, "default": failed},
    }
    if route.need is None:
        told["security"] = []
    else:
        told["description"] = f"Needs the role {route.need.role.name.lower()}, if penstock.http.roles is set."
    parameters = [
        {"name": name, "in": where, "required": where == "path" or each.required, "schema": each.schema()}
        for where, fields in (("path", route.path), ("query", route.query))
        for name, each in fields.items()
    ]
    if parameters:
        told["parameters"] = parameters
    if route.body is not None:
        needed = any(each.required for each in route.body.values())
        told["requestBody"] = {"required": needed, "content": {BODY_TYPE: {"schema": object_schema(route.body)}}}
    return told
