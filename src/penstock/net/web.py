"""Fetches small documents over HTTPS or from files: the keys of an issuer, and access tokens.

The functions block, so call them in a thread. They follow no redirects, use no proxy, and read a limited number of
bytes. Plain HTTP is accepted only for loopback addresses: whoever could change a key set on its way could log in as any
user.
"""

from __future__ import annotations

import http.client
import ipaddress
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

_CHUNK_BYTES = 65_536


class FetchError(Exception):
    """Raised if a document can't be fetched. The message is one sentence without secrets."""


@dataclass(frozen=True, slots=True)
class Document:
    """Describes how to read a small document: its URL, its maximum size, and the timeout for reading it."""

    url: str
    max_bytes: int
    timeout_s: float = 10.0
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises ValueError if the URL can't be used. The message has no subject: the caller puts a property's name
        before it.
        """
        parts = self._parts()
        if parts.scheme not in ("file", "https", "http"):
            raise ValueError("is not a file:// or https:// URL")
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost") or not parts.path:
                raise ValueError("names no file: use file:///path")
        elif not parts.hostname or parts.username is not None:
            raise ValueError("names no host, or has a user name")
        elif parts.scheme == "http" and not _is_loopback(parts.hostname):
            raise ValueError("is not protected: use https://")

    @property
    def in_file(self) -> bool:
        return self._parts().scheme == "file"

    def read(self, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> bytes:
        """Returns the document. If `body` is given, sends `body` in a POST request and returns the response.

        Raises FetchError.
        """
        try:
            content = self._from_file() if self.in_file else self._from_server(body, dict(headers or {}))
        except ssl.SSLCertVerificationError as problem:
            raise FetchError(f"{self.url} can't be trusted: {problem.verify_message}.") from None
        except (OSError, http.client.HTTPException) as problem:
            reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
            raise FetchError(f"{self.url} can't be read: {reason}.") from None
        if len(content) > self.max_bytes:
            raise FetchError(f"{self.url} has more than {self.max_bytes} bytes.")
        return content

    def _parts(self) -> SplitResult:
        return urlsplit(self.url)

    def _from_file(self) -> bytes:
        with open(unquote(self._parts().path), "rb") as file:
            return file.read(self.max_bytes + 1)

    def _from_server(self, body: bytes | None, headers: dict[str, str]) -> bytes:
        parts, deadline = self._parts(), time.monotonic() + self.timeout_s
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = self.tls or ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, parts.port, timeout=self.timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=self.timeout_s)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("GET" if body is None else "POST", target, body, {"Connection": "close", **headers})
            content = bytearray()
            with connection.getresponse() as answer:
                while len(content) <= self.max_bytes and (part := answer.read1(_CHUNK_BYTES)):
                    content += part
                    if time.monotonic() > deadline:
                        raise FetchError(f"{self.url} did not answer within {self.timeout_s:g} s.")
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise FetchError(f"{self.url} answered with status {answer.status}.")
        return bytes(content)


def _is_loopback(host: str) -> bool:
    """Returns True for `localhost` and loopback addresses. Other names are refused: DNS decides where they lead."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
