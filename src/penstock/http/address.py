"""Parses the address that HTTP listens on, and checks the host names in requests. Pure code."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

PROPERTY = "penstock.http.listener"
#: The name of HTTP among the listeners: in audit lines, and after `listener.name.` in properties.
LISTENER = "HTTP"
LOOPBACK = "127.0.0.1"
LOCAL_NAMES = frozenset({"localhost", LOOPBACK, "::1"})
_PATTERN = re.compile(r"(?:(?P<scheme>https?)://)?(?:(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]/@\s]*):)?(?P<port>\d{1,5})")
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class HttpAddress:
    host: str
    port: int
    """The port to listen on; 0 chooses a free port."""
    tls: bool = False

    @property
    def is_any(self) -> bool:
        """Returns True if the host is a wildcard, which stands for every address of the machine."""
        return self.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not bound

    def url(self, port: int) -> str:
        """Returns the URL for clients on this machine. `port` is the bound port."""
        host = "localhost" if self.is_any else self.host
        scheme = "https" if self.tls else "http"
        return f"{scheme}://[{host}]:{port}/" if ":" in host else f"{scheme}://{host}:{port}/"


def parse_address(text: str) -> HttpAddress | None:
    """Parses `host:port`. A port alone means the loopback address, and `https://` at the start means TLS.

    Returns None for empty text. Raises ValueError.
    """
    if not text.strip():
        return None
    match = _PATTERN.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65_535:
        raise ValueError(
            f"{PROPERTY} can't be {text.strip()!r}: write host:port, such as 127.0.0.1:9644, or https://host:port."
        )
    return HttpAddress((match["host"] or LOOPBACK).strip("[]"), int(match["port"]), match["scheme"] == "https")


class Names:
    """Holds the host names that a request's Host header may contain.

    A web page can make its own host name resolve to this machine (DNS rebinding) and could then read every response.
    Such a request has the page's host name and is refused. IP addresses can't be rebound, so a wildcard listener
    accepts all of them.
    """

    __slots__ = ("_any_address", "_names")

    def __init__(self, address: HttpAddress, more: Iterable[str] = ()) -> None:
        self._any_address = address.is_any
        own = () if address.is_any else (address.host,)
        self._names = LOCAL_NAMES | {name.lower().rstrip(".") for name in (*own, *more) if name}

    def allow(self, header: str) -> bool:
        match = _HOST.fullmatch(header.strip())
        if match is None:
            return False
        host = match["host"].strip("[]").lower().rstrip(".")
        return host in self._names or (self._any_address and _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
