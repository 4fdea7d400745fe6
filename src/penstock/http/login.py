"""Authenticates HTTP requests by password or delegation token (Basic), access token (Bearer) or client certificate.

There are no sessions and no cookies: each request carries its credential. A password check takes milliseconds, so a
correct password is remembered as a keyed digest until the user's credential changes. All other passwords are checked
one after the other in one thread. The thread pauses after a wrong password, so that attackers use at most a fifth of
one core. The answer to a wrong credential is delayed, and then the connection is closed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.broker.requests.context import ANONYMOUS
from penstock.http.messages import Request, Response
from penstock.http.rest.problems import problem
from penstock.net.limits import LimitedLog
from penstock.security.bearer_tokens import BearerToken, TokenError
from penstock.security.passwords import PasswordUsers

logger = logging.getLogger(__name__)

BASIC, BEARER = "basic", "bearer"
MAX_USER, MAX_PASSWORD = 1_024, 4_096
#: Passwords that are remembered. Beyond, the oldest one is forgotten.
MAX_REMEMBERED = 1_000
#: Passwords of one host that are checked, or wait for their check, at the same time.
MAX_CHECKS_OF_HOST = 4
#: The thread pauses after a wrong password for this multiple of the time that the check took.
PAUSE_SHARE = 4
NO_LOGIN_SENTENCE = "This request needs a login."
WRONG = "Invalid credentials."
OnFailure = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class LoginRules:
    """Holds the kinds of login that the HTTP listener accepts. A kind that is None is refused."""

    secret: bytes = field(repr=False)
    """A random secret of this process."""
    secret_of_nobody: Callable[[], bytes]
    """Returns the secret with which credentials of missing users are made up."""
    failure_delay_s: float
    users: Callable[[str], PasswordUsers] | None = None
    """Returns the current credentials of a user name."""
    check_token: Callable[[str], BearerToken] | None = None
    """Checks an access token. Raises TokenError."""
    certificate_user: Callable[[Mapping[str, Any]], str] | None = None
    """Returns the principal of a client certificate. Raises ValueError."""
    token_owner: Callable[[str, str], str | None] | None = None
    """Returns the owner of a delegation token, given its id and its HMAC; None if they are wrong."""
    on_failure: OnFailure | None = None
    """Is called for a failed login, with the peer's host and the reason."""

    @property
    def schemes(self) -> list[str]:
        """Returns the values of the header WWW-Authenticate: one for each accepted scheme."""
        found = []
        if self.users is not None:
            found.append('Basic realm="Penstock", charset="UTF-8"')
        if self.check_token is not None:
            found.append('Bearer realm="Penstock"')
        return found


@dataclass(frozen=True, slots=True)
class _Remembered:
    digest: bytes
    credentials: PasswordUsers


class WrongCredentialError(Exception):
    """Raised for a refused credential. The message tells the operator the reason and contains no secret."""


class TooManyChecksError(Exception):
    """Raised if one host has too many password checks in progress, which would delay the logins of other hosts."""


class RequestLogin:
    """Authenticates requests: finds the principal of each request's sender."""

    def __init__(self, rules: LoginRules) -> None:
        self._rules = rules
        self._remembered: dict[str, _Remembered] = {}
        #: Passwords of each host that are being checked.
        self._checks: dict[str, int] = {}
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="penstock-http-login")
        self._log = LimitedLog(logger, time.monotonic)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def identify(self, request: Request) -> str | Response:
        """Returns the principal of the request's sender, or the response that refuses the request."""
        rules = self._rules
        try:
            if request.authorization and rules.schemes:
                return await self._by_header(request.authorization, request.peer.host)
            if rules.certificate_user is not None and request.peer.certificate is not None:
                return _by_certificate(rules.certificate_user, request.peer.certificate)
        except WrongCredentialError as error:
            return self._refuse(request, str(error))
        except TooManyChecksError:
            return problem(429, "Too many logins of this host are being checked: try again.", ("Retry-After", "1"))
        return _challenge(rules, NO_LOGIN_SENTENCE) if rules.schemes else ANONYMOUS

    async def _by_header(self, header: str, host: str) -> str:
        rules = self._rules
        scheme, _, credential = header.partition(" ")
        match scheme.lower():
            case "basic" if rules.users is not None:
                user, password = _parse_basic(credential.strip())
                owner = None if rules.token_owner is None else rules.token_owner(user, password)
                if owner is not None:
                    return owner
                if not await self._accepts(rules.users(user), password, host):
                    raise WrongCredentialError("invalid username or password")
                return f"User:{user}"
            case "bearer" if rules.check_token is not None:
                try:
                    return f"User:{rules.check_token(credential.strip()).subject}"
                except TokenError as error:
                    raise WrongCredentialError(f"invalid access token: {error}") from None
            case _:
                raise WrongCredentialError("the Authorization header has a scheme that this listener does not accept")

    async def _accepts(self, known: PasswordUsers, password: str, host: str) -> bool:
        user = known.user
        digest = hmac.digest(self._rules.secret, f"{user}\0{password}".encode(), "sha256")
        before = self._remembered.get(user)
        if before is not None and before.credentials == known and hmac.compare_digest(before.digest, digest):
            return True
        if self._checks.get(host, 0) >= MAX_CHECKS_OF_HOST:
            raise TooManyChecksError
        self._checks[host] = self._checks.get(host, 0) + 1
        try:
            secret, loop = self._rules.secret_of_nobody(), asyncio.get_running_loop()
            if not await loop.run_in_executor(self._threads, _check, known, password, secret):
                return False
        finally:
            self._checks[host] -= 1
            if not self._checks[host]:
                del self._checks[host]
        self._remembered.pop(user, None)
        if len(self._remembered) >= MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[user] = _Remembered(digest, known)
        return True

    def _refuse(self, request: Request, reason: str) -> Response:
        host = request.peer.host
        self._log.info("login", lambda: f"HTTP login from {host} failed: {reason}")
        if self._rules.on_failure is not None:
            self._rules.on_failure(host, reason)
        answer = _challenge(self._rules, WRONG)
        return replace(answer, headers=(*answer.headers, ("Connection", "close")), delay_s=self._rules.failure_delay_s)


def _challenge(rules: LoginRules, sentence: str) -> Response:
    return problem(401, sentence, *(("WWW-Authenticate", scheme) for scheme in rules.schemes))


def _by_certificate(user_of: Callable[[Mapping[str, Any]], str], certificate: Mapping[str, Any]) -> str:
    try:
        return user_of(certificate)
    except ValueError as error:
        raise WrongCredentialError(f"the certificate names no user: {error}") from None


def _parse_basic(text: str) -> tuple[str, str]:
    """Returns the user and the password from a Basic credential. Raises WrongCredentialError."""
    wrong = WrongCredentialError("the Basic credential can't be parsed")
    try:
        user, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise wrong from None
    if not colon or not user or not password or len(user) > MAX_USER or len(password) > MAX_PASSWORD:
        raise wrong
    return user, password


def _check(known: PasswordUsers, password: str, secret: bytes) -> bool:
    """Returns True if the password is right. Runs in a thread.

    Sleeps after a wrong password, so that somebody who guesses passwords uses little processor time.
    """
    began = time.monotonic()
    right = known.accept(password, secret)
    if not right:
        time.sleep(PAUSE_SHARE * (time.monotonic() - began))
    return right
