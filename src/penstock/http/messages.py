"""Defines the requests and responses of pages, and the checks that refuse a request before any page runs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.http.address import Names

#: Limit of request line and headers together.
HEADER_MAX_BYTES = 16 * 1024
TARGET_MAX_BYTES = 2 * 1024
QUERY_MAX_FIELDS = 8
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
#: Limit of a body, which only changes have.
BODY_MAX_BYTES = 1024 * 1024

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

#: Browsers load nothing from other origins, don't allow framing and send no referrer. Without CORS headers, pages of
#: other origins can't read the answers.
SAFE_HEADERS: tuple[tuple[str, str], ...] = (
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""
    """The type of the body in lower case, without parameters."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    cache: str = "no-store"


def text(status: int, sentence: str, *headers: tuple[str, str]) -> Response:
    return Response(status, TEXT, f"{sentence}\n".encode(), headers)


def as_json(value: Any, status: int = 200) -> Response:
    return Response(status, JSON, json.dumps(value, separators=(",", ":")).encode())


NOT_FOUND = text(404, "There is nothing here: / is the console, /metrics the metrics, /api/ lists the rest.")
NOT_READY = text(503, "The broker is starting: try again in a moment.", ("Retry-After", "1"))
#: A node that reads its logs is alive: a restart would only make it read them again.
STARTING = as_json({"status": "starting"})
TOO_MANY = text(503, "Too many connections are open here: try again later.", ("Retry-After", "5"))
FAILED = text(500, "This page failed; the broker's log has the cause.")


def parse_request(
    method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], names: Names
) -> Request | Response:
    """Checks a request. Returns the request, or a response that refuses it.

    Header names are in lower case, as h11 returns them.
    """
    found = dict(headers)
    if not names.allow(found.get(b"host", b"").decode("latin-1")):
        return text(421, "This server does not have the requested host name: use its IP address, or localhost.")
    if method.decode("latin-1") not in METHODS:
        return text(405, f"Only {', '.join(METHODS)} are served here.", ("Allow", ", ".join(METHODS)))
    length = found.get(b"content-length", b"0")
    reads = method in (b"GET", b"HEAD")
    if b"transfer-encoding" in found or len(length) > 20 or int(length) > (0 if reads else BODY_MAX_BYTES):
        return text(413, f"The body is too long: GET has none, and other methods at most {BODY_MAX_BYTES} bytes.")
    if len(target) > TARGET_MAX_BYTES:
        return text(414, f"The URL is too long: the maximum is {TARGET_MAX_BYTES} bytes.")
    kind = found.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    return _parse_target(method.decode("latin-1"), target, kind)


def _parse_target(method: str, target: bytes, content_type: str) -> Request | Response:
    wrong = text(400, "The URL can't be parsed.")
    if not target.startswith(b"/") or target.startswith(b"//"):
        return wrong
    try:
        parts = urlsplit(target.decode("ascii"))
        path = unquote(parts.path, errors="strict")
        query = dict(parse_qsl(parts.query, max_num_fields=QUERY_MAX_FIELDS, errors="strict"))
    except ValueError:  # not ASCII, percent-encoded bytes that are not UTF-8, or too many fields
        return wrong
    return Request(method, path, query, content_type)
