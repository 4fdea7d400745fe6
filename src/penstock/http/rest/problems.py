"""Builds responses with problem details (RFC 9457), and maps Kafka's error codes to HTTP statuses."""

from __future__ import annotations

import json
from typing import Any

from penstock.http.messages import Response
from penstock.protocol.errors import ErrorCode, KafkaError

PROBLEM = "application/problem+json"
BODY_TYPE = "application/json"

#: HTTP statuses of Kafka's error codes; other errors of a request are 409, because the cluster's state refused it.
_STATUSES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.UNKNOWN_TOPIC_ID: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.RESOURCE_NOT_FOUND: 404,
    ErrorCode.LOG_DIR_NOT_FOUND: 404,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: 404,
    ErrorCode.INVALID_TOPIC_EXCEPTION: 400,
    ErrorCode.INVALID_REQUEST: 400,
    ErrorCode.INVALID_CONFIG: 400,
    ErrorCode.INVALID_PARTITIONS: 400,
    ErrorCode.INVALID_REPLICATION_FACTOR: 400,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: 400,
    ErrorCode.OFFSET_OUT_OF_RANGE: 400,
    ErrorCode.POLICY_VIOLATION: 400,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 403,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: 403,
    ErrorCode.REQUEST_TIMED_OUT: 504,
    ErrorCode.NETWORK_EXCEPTION: 502,
    ErrorCode.BROKER_NOT_AVAILABLE: 502,
}
TITLES = {
    400: "The request is not valid",
    401: "The request needs a login",
    403: "The request is not allowed",
    404: "There is no such thing",
    405: "The method is not allowed here",
    409: "The cluster refused the request",
    415: "The body has the wrong type",
    429: "There are too many requests",
    502: "A node can't be reached",
    503: "The node is not ready",
    504: "A node did not answer in time",
}


class Problem(Exception):
    """Raised by an operation to answer with problem details (RFC 9457)."""

    def __init__(self, status: int, detail: str, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.more = more


def problem(status: int, detail: str, *headers: tuple[str, str], **more: Any) -> Response:
    told = {"type": "about:blank", "title": TITLES[status], "status": status, "detail": detail, **more}
    return Response(status, PROBLEM, json.dumps(told).encode(), headers)


def kafka_status(code: ErrorCode) -> int:
    """Returns the HTTP status for an error code of Kafka's protocol."""
    return _STATUSES.get(code, 409)


def kafka_problem(error: KafkaError) -> Response:
    """Returns the HTTP response for an error code of Kafka's protocol."""
    return problem(kafka_status(error.code), error.message or error.code.name, kafka_error=error.code.name)
