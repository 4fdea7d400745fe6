"""Checks the access tokens of a listener with the keys of their issuer, and keeps these keys up to date.

The keys (a JWK set) are read from `sasl.oauthbearer.jwks.endpoint.url`: once before the listener opens, then every
`sasl.oauthbearer.jwks.endpoint.refresh.ms`, and also soon after a token names an unknown key. A thread reads the keys,
never the event loop. If the keys can't be read, the old keys stay in use and the node tries again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.net.web import Document, FetchError
from penstock.node.listeners import ListenerError
from penstock.security.bearer_tokens import BearerToken, TokenError, TokenRules, check_claims
from penstock.security.oauthbearer import OAUTHBEARER, OAuthBearerServer

if TYPE_CHECKING:
    from penstock.security.token_signatures import TokenKeys

logger = logging.getLogger(__name__)

MAX_KEY_SET_BYTES = 1 << 20
FETCH_TIMEOUT_S = 10.0
#: Time after which a read counts as failed, even if the issuer still sends bytes.
READ_TIMEOUT_S = 20.0
#: Shortest time between two reads of the keys that tokens with unknown keys cause, so that clients can't cause many.
UNKNOWN_KEY_PAUSE_S = 10.0
URL = "sasl.oauthbearer.jwks.endpoint.url"
Read = Callable[[str], str | None]


class KeySource:
    """Reads the keys of an issuer at intervals, until it is closed."""

    def __init__(self, document: Document, refresh_s: float, backoff_s: float, longest_backoff_s: float) -> None:
        from penstock.security.token_signatures import read_keys

        self._parse = read_keys
        self._document = document
        self._refresh_s = refresh_s
        self._backoff_s = backoff_s
        self._longest_backoff_s = max(backoff_s, longest_backoff_s)
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_read = 0.0
        self.keys: TokenKeys | None = None

    async def start(self) -> None:
        """Reads the keys for the first time. Raises FetchError or TokenError."""
        await self._read()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def want_new_keys(self) -> None:
        """Asks for a new read of the keys soon. Does nothing if the keys have just been read."""
        if asyncio.get_running_loop().time() - self._last_read >= UNKNOWN_KEY_PAUSE_S:
            self._wanted.set()

    async def _keep(self) -> None:
        pause_s, failures = self._refresh_s, 0
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass  # the time for the next read has come
            self._wanted.clear()
            try:
                await self._read()
            except (FetchError, TokenError) as problem:
                pause_s = min(self._longest_backoff_s, self._backoff_s * 2 ** min(failures, 30))
                failures += 1
                logger.error("the new keys for OAUTHBEARER can't be read, so the old keys stay in use: %s", problem)
            else:
                pause_s, failures = self._refresh_s, 0

    async def _read(self) -> None:
        self._last_read = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                keys = await asyncio.to_thread(lambda: self._parse(self._document.read()))
        except TimeoutError:
            raise FetchError(f"{self._document.url} did not answer within {READ_TIMEOUT_S:g} s.") from None
        if keys.skipped:
            logger.warning("%s has %d keys that this node can't use to verify tokens", self._document.url, keys.skipped)
        self.keys = keys


class TokenListener:
    """Makes the OAUTHBEARER exchanges of one listener."""

    def __init__(
        self, listener: str, read: Read, wall_ms: Callable[[], int], issuer_tls: ssl.SSLContext | None = None
    ) -> None:
        """Prepares the listener. `read` returns the value of a property. Raises ListenerError if the properties can't
        be used.
        """
        self._listener = listener
        self._wall_ms = wall_ms
        url = read(URL)
        if not url:
            raise ListenerError(f"listener {listener}: {OAUTHBEARER} needs the keys of the issuer: set {URL}.")
        try:
            self._source = KeySource(
                Document(url, MAX_KEY_SET_BYTES, FETCH_TIMEOUT_S, issuer_tls),
                _seconds(read, "sasl.oauthbearer.jwks.endpoint.refresh.ms"),
                _seconds(read, "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"),
                _seconds(read, "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"),
            )
        except ImportError:
            raise ListenerError(
                f"listener {listener}: {OAUTHBEARER} needs the package joserfc: install it with pip install "
                "'penstock[oauth]', or remove the mechanism from sasl.enabled.mechanisms."
            ) from None
        except ValueError as problem:
            raise ListenerError(f"listener {listener}: {URL} can't be used: {problem}.") from None
        audiences = (each.strip() for each in (read("sasl.oauthbearer.expected.audience") or "").split(","))
        self._rules = TokenRules(
            frozenset(filter(None, audiences)),
            read("sasl.oauthbearer.expected.issuer") or None,
            read("sasl.oauthbearer.scope.claim.name") or "scope",
            read("sasl.oauthbearer.sub.claim.name") or "sub",
            int(read("sasl.oauthbearer.clock.skew.seconds") or 30),
        )

    async def start(self) -> None:
        """Reads the keys of the issuer. Raises ListenerError if they can't be read."""
        try:
            await self._source.start()
        except (FetchError, TokenError) as problem:
            reason = str(problem).rstrip(".")
            raise ListenerError(f"listener {self._listener}: {URL} can't be used: {reason}.") from None

    def close(self) -> None:
        self._source.close()

    def exchange(self) -> OAuthBearerServer:
        return OAuthBearerServer(self.check)

    def check(self, token: str) -> BearerToken:
        """Verifies an access token. Returns its subject, its expiry time and its scopes. Raises TokenError."""
        from penstock.security.token_signatures import UnknownKeyError

        keys = self._source.keys
        if keys is None:
            raise TokenError("the keys of the token's issuer have not been read yet: retry soon")
        try:
            claims = keys.claims(token)
        except UnknownKeyError:
            self._source.want_new_keys()
            raise
        return check_claims(claims, self._rules, self._wall_ms() / 1000)


def _seconds(read: Read, name: str) -> float:
    milliseconds = int(read(name) or 0)
    if milliseconds <= 0:
        raise ValueError(f"{name} is 0 or less: set {name} to more than 0")
    return milliseconds / 1000
