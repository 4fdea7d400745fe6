"""Fetches small documents over HTTPS or from files: the keys of an issuer, access tokens, and schemas of a registry.

The functions block, so call them in a thread. They follow no redirects, use no proxy, and read a limited number of
bytes. By default, plain HTTP is accepted only for loopback addresses: an attacker who changed a key set in transit
could log in as any user.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.security.hosts import is_loopback

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CHUNK_BYTES = 65_536


class FetchError(Exception):
    """Raised if a document can't be fetched. The message is one sentence without secrets."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The status of the server's answer; None if there was no complete answer."""


@dataclass(frozen=True, slots=True)
class Document:
    """Describes how to read a small document: its URL, its maximum size, and the timeout for reading it."""

    url: str
    max_bytes: int
    timeout_s: float = 10.0
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    plain: bool = False
    """True accepts http:// for every host: the document is no secret and decides about no login."""

    def __post_init__(self) -> None:
        """Raises ValueError if the URL can't be used. The message does not name the property: the caller adds its
        name."""
        parts = self._parts()
        if parts.scheme not in ("file", "https", "http"):
            raise ValueError("the URL is not a file:// or https:// URL")
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost") or not parts.path:
                raise ValueError("the URL names no file: use file:///path")
        elif not parts.hostname or parts.username is not None:
            raise ValueError("the URL names no host, or has a user name: use https://host/path")
        elif parts.scheme == "http" and not self.plain and not is_loopback(parts.hostname):
            raise ValueError("the URL is not protected: use https://")

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
            raise FetchError(f"{self.url} has more than {self.max_bytes} bytes.", 200)
        return content

    def _parts(self) -> SplitResult:
        return urlsplit(self.url)

    def _from_file(self) -> bytes:
        with open(unquote(self._parts().path), "rb") as file:
            return file.read(self.max_bytes + 1)

    def _from_server(self, body: bytes | None, headers: dict[str, str]) -> bytes:
        parts, deadline_s = self._parts(), time.monotonic() + self.timeout_s
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
            connection.connect()
            with connection.sock as connected:
                connection.sock = _LentSocket(connected, deadline_s)
                connection.request("GET" if body is None else "POST", target, body, {"Connection": "close", **headers})
                content = bytearray()
                with connection.getresponse() as answer:
                    while len(content) <= self.max_bytes and (part := answer.read1(_CHUNK_BYTES)):
                        content += part
        except TimeoutError:
            raise FetchError(f"{self.url} did not answer within {self.timeout_s:g} s.") from None
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise FetchError(f"{self.url} answered with status {answer.status}.", answer.status)
        return bytes(content)


class _LentSocket:
    """Gives http.client a socket, with one deadline for all bytes of the request and of the response.

    A socket's own timeout starts again with each byte: a server that sends its headers slowly would block the caller's
    thread for hours.
    """

    def __init__(self, connected: socket.socket, deadline_s: float) -> None:
        self.connected = connected
        self._deadline_s = deadline_s

    def sendall(self, content: Buffer) -> None:
        self.set_timeout()
        self.connected.sendall(content)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Does nothing, because http.client calls this method before the body is read. The owner closes the socket."""

    def set_timeout(self) -> None:
        """Sets the timeout of the next call to the time that is left. Raises TimeoutError if no time is left."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self.connected.settimeout(left_s)


class _Reader(io.RawIOBase):
    """Reads from a `_LentSocket`, within its deadline."""

    def __init__(self, lent: _LentSocket) -> None:
        self._lent = lent

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        self._lent.set_timeout()
        return self._lent.connected.recv_into(buffer)
