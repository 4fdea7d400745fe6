"""Sends requests to the REST API of one node, for actions that Kafka's protocol does not have.

    rest(args).ask("POST", "/v1/cluster/compact-log", {})

The login and the TLS settings come from the same file of client properties (--command-config) as for Kafka's requests.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.cli.exit import Exit, Failure
from penstock.cli.options import credentials, positive_float

if TYPE_CHECKING:
    from penstock.client.credentials import Credentials

Shape = dict[str, Any]
DEFAULT_URL = "http://127.0.0.1:9644"
MAX_ANSWER_BYTES = 64 * 1024 * 1024
LOOK_EVERY_S = 0.3
CODES = {404: Exit.NOT_FOUND, 504: Exit.TIMEOUT}
#: Shapes of answers for `has_shape`: any JSON object, an operation in a list, and an operation with its result.
ANY_OBJECT: Shape = {}
SUMMARY: Shape = {"operation": int, "state": str, "error": object, "progress": {"done": object, "total": object}}
OPERATION: Shape = {**SUMMARY, "result": {}}


def rest_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--http",
        metavar="URL",
        default=os.environ.get("PENSTOCK_HTTP", DEFAULT_URL),
        help=f"penstock.http.listener of the node (default: PENSTOCK_HTTP, else {DEFAULT_URL})",
    )
    credentials(parser)
    parser.add_argument("--timeout", type=positive_float, default=30.0, metavar="SECONDS", help="default: %(default)s")


@dataclass(frozen=True, slots=True)
class Rest:
    """Sends requests to one node."""

    host: str
    port: int | None
    tls: ssl.SSLContext | None
    authorization: str = field(repr=False)
    timeout_s: float

    @property
    def address(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.host}{f':{self.port}' if self.port else ''}"

    def ask(self, method: str, path: str, body: Any = None, *, shape: Shape = ANY_OBJECT) -> dict[str, Any]:
        """Sends a request and returns the answer, a JSON object. `shape` names the fields that the object must have.

        Raises Failure if the node refuses the request, or if the server is not a Penstock node.
        """
        headers = {"Connection": "close"} | ({"Authorization": self.authorization} if self.authorization else {})
        sent = None
        if body is not None:
            headers["Content-Type"], sent = "application/json", json.dumps(body).encode()
        try:
            status, text = self._exchange(method, path, sent, headers)
        except ssl.SSLCertVerificationError as problem:
            raise Failure(
                f"{self.address} has a certificate that can't be trusted: {problem.verify_message}", Exit.CANNOT_CONNECT
            ) from None
        except TimeoutError:
            sentence = f"{self.address} did not answer within {self.timeout_s:g} s: give a longer --timeout"
            raise Failure(sentence, Exit.TIMEOUT) from None
        except (OSError, http.client.HTTPException) as problem:
            reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
            sentence = f"{self.address} can't be reached ({reason}): name the node's HTTP listener with --http"
            raise Failure(sentence, Exit.CANNOT_CONNECT) from problem
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if not 200 <= status < 300:
            detail = value["detail"] if has_shape(value, {"detail": str}) else ""
            raise Failure(detail or f"{self.address} answered with status {status}", CODES.get(status, Exit.FAILED))
        if not has_shape(value, shape):
            sentence = f"{self.address} is not a Penstock node's HTTP listener: name that listener with --http"
            raise Failure(sentence, Exit.CANNOT_CONNECT)
        found: dict[str, Any] = value
        return found

    def _exchange(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        if self.tls is None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        else:
            connection = http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout_s, context=self.tls)
        try:
            connection.request(method, path, body, headers)
            with connection.getresponse() as answer:
                return answer.status, answer.read(MAX_ANSWER_BYTES)
        finally:
            connection.close()

    def finished(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Waits until an operation of the node has ended, and returns it. Raises Failure if it did not succeed."""
        while operation["state"] == "running":
            time.sleep(LOOK_EVERY_S)
            operation = self.ask("GET", f"/v1/operations/{operation['operation']}", shape=OPERATION)
        if operation["state"] != "done":
            raise Failure(f"operation {operation['operation']} {operation['state']}: {operation['error'] or ''}")
        return operation


def has_shape(value: Any, shape: Any) -> bool:
    """Returns True if a JSON value fits `shape`.

    `shape` is a type, a list that holds the shape of each item, or a dict with the shapes of required fields.
    """
    match shape:
        case dict():
            return isinstance(value, dict) and all(
                name in value and has_shape(value[name], each) for name, each in shape.items()
            )
        case [every]:
            return isinstance(value, list) and all(has_shape(each, every) for each in value)
        case _:
            return isinstance(value, shape)


def rest(args: argparse.Namespace) -> Rest:
    """Returns a client of the node at --http. Raises Failure if the URL or the client properties can't be used."""
    from penstock.cli.connect import credentials_in
    from penstock.security.hosts import is_loopback

    if "@" in args.http:  # the URL is not printed, because it may contain a password
        raise Failure("--http takes no login in its URL: give the login in a file with --command-config", Exit.USAGE)
    try:
        parts = urlsplit(args.http)
        port = parts.port
    except ValueError:
        raise Failure(f"--http {args.http} is not a URL: write http://HOST:PORT", Exit.USAGE) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise Failure(f"--http takes http://HOST:PORT or https://HOST:PORT, not {args.http}", Exit.USAGE)
    found = credentials_in(args.command_config)
    authorization = _authorization(found)
    if authorization and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise Failure(f"--http {args.http} would send the login unprotected: use https://", Exit.USAGE)
    tls = (found.tls or ssl.create_default_context()) if parts.scheme == "https" else None
    return Rest(parts.hostname, port, tls, authorization, args.timeout)


def _authorization(found: Credentials) -> str:
    """Returns the Authorization header for a login; an empty string if there is no login."""
    from penstock.client.login import Login
    from penstock.net.web import FetchError

    match found.login:
        case None:
            return ""
        case Login(username=user, password=password):  # or the id of a delegation token, and its HMAC
            return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
        case login:
            try:
                return f"Bearer {login.source()}"
            except (FetchError, OSError, ValueError, LookupError) as problem:
                raise Failure(f"there is no access token: {problem}", Exit.FAILED) from problem
