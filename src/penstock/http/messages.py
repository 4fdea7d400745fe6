"""Defines HTTP requests and responses, and the checks that refuse a request before a page runs. Pure code."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.http.address import Names

#: Limit of request line and headers together.
HEADER_MAX_BYTES = 16 * 1024
TARGET_MAX_BYTES = 2 * 1024
QUERY_MAX_FIELDS = 8
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
READS = ("GET", "HEAD")
CHANGES = frozenset(METHODS) - frozenset(READS)
#: Paths that need no login, and that are answered even if the server is full.
PROBES = ("/livez", "/readyz")
#: Limit of a body, which only changes have.
BODY_MAX_BYTES = 1024 * 1024

#: Items of a list, and characters of a text, that are encoded as JSON in one call. No other thread runs meanwhile.
JSON_ITEMS = 100
JSON_CHARACTERS = 256 * 1024

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
class Peer:
    """Describes the other end of a connection."""

    host: str = ""
    tls: bool = False
    certificate: Mapping[str, Any] | None = None
    """The verified client certificate, as `net.tls.peer_certificate` returns it."""


NO_PEER = Peer()


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    content_type: str = ""
    """The type of the body in lower case, without parameters."""
    body: bytes = b""
    host: str = ""
    origin: str = ""
    site: str = ""
    """The value of Sec-Fetch-Site: whose page caused the request, as the browser says."""
    authorization: str = field(default="", repr=False)
    peer: Peer = NO_PEER
    parts: tuple[str, ...] = ()
    """The parts of the path between slashes, each percent-decoded on its own: a part may contain a slash."""


class BodyStream(Protocol):
    """Defines the interface of a response body that is produced in parts while it is sent.

    The connection always calls `aclose` at the end.
    """

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    cache: str = "no-store"
    stream: BodyStream | None = None
    """If set, the body comes from this stream, and `body` is empty."""
    delay_s: float = 0.0
    """The answer is sent when this time has passed since the request arrived, as Kafka delays failed logins."""


def text(status: int, sentence: str, *headers: tuple[str, str]) -> Response:
    return Response(status, TEXT, f"{sentence}\n".encode(), headers)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Holds a part of a response that a thread has already encoded as JSON."""

    json: bytes


def as_json(value: Any, status: int = 200) -> Response:
    return Response(status, JSON, encoded(value).json)


def encoded(value: Any) -> Encoded:
    """Encodes a value as JSON in parts, because the encoder holds Python's GIL for a whole part."""
    return value if isinstance(value, Encoded) else Encoded(b"".join(_json_parts(value)))


def _json_parts(value: Any) -> Iterator[bytes]:
    """Yields the JSON of a value in parts of a limited size: slices of long lists and of long texts."""
    match value:
        case Encoded(json=done):
            yield done
        case dict() if value:
            before = b"{"
            for name, each in value.items():
                yield before + _dumped(str(name)) + b":"
                yield from _json_parts(each)
                before = b","
            yield b"}"
        case [Encoded(), *_]:
            yield b"[" + b",".join(each.json for each in value) + b"]"
        case list() | tuple() if len(value) > JSON_ITEMS:
            before = b"["
            for start in range(0, len(value), JSON_ITEMS):
                yield before + _dumped(value[start : start + JSON_ITEMS])[1:-1]
                before = b","
            yield b"]"
        case str() if len(value) > JSON_CHARACTERS:
            yield b'"'
            for start in range(0, len(value), JSON_CHARACTERS):
                yield _dumped(value[start : start + JSON_CHARACTERS])[1:-1]
            yield b'"'
        case _:
            yield _dumped(value)


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


NOT_FOUND = text(404, "There is nothing here: / is the console, /metrics the metrics, /api/ lists the rest.")
NOT_READY = text(503, "The broker is starting: try again in a moment.", ("Retry-After", "1"))
#: A node that reads its logs is alive: a restart would only make it read them again.
STARTING = as_json({"status": "starting"})
_LATER = ("Retry-After", "5")
TOO_MANY = text(503, "Too many connections are open here: try again later.", _LATER)
TOO_MANY_OF_HOST = text(
    503,
    "Too many connections of your address are open here (penstock.http.max.connections.per.ip): close some.",
    _LATER,
)
TOO_MUCH_UNREAD = text(503, "The connections of your address leave too many bytes unread: read or close them.", _LATER)
FAILED = text(500, "This page failed; the broker's log has the cause.")


#: Headers that decide about a request: a second one could contradict the first.
_ONCE = (b"host", b"origin", b"authorization", b"content-type", b"sec-fetch-site")


def parse_request(
    method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], names: Names, peer: Peer = NO_PEER
) -> Request | Response:
    """Checks a request. Returns the request, or a response that refuses it.

    Header names are in lower case, as h11 returns them.
    """
    all_headers = list(headers)
    found = {name: value.decode("latin-1") for name, value in all_headers}
    if any([name for name, _ in all_headers].count(once) > 1 for once in _ONCE):
        return text(400, "The request has a header twice that it may have once.")
    if not names.allow(found.get(b"host", "")):
        return text(421, "This server does not have the requested host name: use its IP address, or localhost.")
    if method.decode("latin-1") not in METHODS:
        return text(405, f"Only {', '.join(METHODS)} are served here.", ("Allow", ", ".join(METHODS)))
    length = found.get(b"content-length", "0")
    reads = method.decode("latin-1") in READS
    if b"transfer-encoding" in found or len(length) > 20 or int(length) > (0 if reads else BODY_MAX_BYTES):
        return text(413, f"The body is too long: GET has none, and other methods at most {BODY_MAX_BYTES} bytes.")
    if len(target) > TARGET_MAX_BYTES:
        return text(414, f"The URL is too long: the maximum is {TARGET_MAX_BYTES} bytes.")
    parsed = _parse_target(target)
    if parsed is None:
        return text(400, "The URL can't be parsed.")
    parts, query = parsed
    return Request(
        method.decode("latin-1"),
        "/" + "/".join(parts),
        query,
        found.get(b"content-type", "").partition(";")[0].strip().lower(),
        host=found.get(b"host", "").strip(),
        origin=found.get(b"origin", "").strip(),
        site=found.get(b"sec-fetch-site", "").strip(),
        authorization=found.get(b"authorization", "").strip(),
        peer=peer,
        parts=parts,
    )


def _parse_target(target: bytes) -> tuple[tuple[str, ...], dict[str, str]] | None:
    """Returns the parts of the path and the query; None if the target can't be parsed."""
    if not target.startswith(b"/") or target.startswith(b"//"):
        return None
    try:
        parts = urlsplit(target.decode("ascii"))
        names = tuple(unquote(each, errors="strict") for each in parts.path.split("/")[1:])
        return names, dict(parse_qsl(parts.query, max_num_fields=QUERY_MAX_FIELDS, errors="strict"))
    except ValueError:  # not ASCII, percent-encoded bytes that are not UTF-8, or too many fields
        return None
