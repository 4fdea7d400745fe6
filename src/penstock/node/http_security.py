"""Reads the settings that protect HTTP connections: TLS, and the users that may log in.

HTTP counts as a listener with the name HTTP. `ssl.*` and `sasl.*` properties apply to it as to the listeners for
Kafka's protocol; with the prefix `listener.name.http.`, a property applies to HTTP alone. If HTTP has no mechanisms of
its own, it accepts the users of the first listener with SASL. So a cluster with users never shows its console without a
login.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker.requests.local_connection import LocalConnection
from penstock.http.address import LISTENER
from penstock.http.login import LoginRules, RequestLogin
from penstock.net.tls import TlsError, TlsSource
from penstock.node.listener_security import (
    PLAIN,
    CredentialShapes,
    enabled_mechanisms,
    jaas_entry,
    listener_value,
    mapping_rules,
    plain_users,
    renewed,
    tls_properties,
    token_listener,
)
from penstock.node.listeners import ALLOW_PLAINTEXT, ListenerError, ListenerPlan, is_sasl
from penstock.security.hosts import is_loopback
from penstock.security.oauthbearer import OAUTHBEARER
from penstock.security.passwords import PasswordUsers
from penstock.security.principals import certificate_principal
from penstock.security.scram import MECHANISMS

if TYPE_CHECKING:
    import ssl

    from penstock.broker.limits.audit import Audit
    from penstock.http.address import HttpAddress
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import ScramCredentials
    from penstock.node.token_users import TokenUsers

logger = logging.getLogger(__name__)

SECRET_BYTES = 32
CLIENT_AUTH = "ssl.client.auth"
ENABLED_MECHANISMS = "sasl.enabled.mechanisms"
FAILURE_DELAY = "connection.failed.authentication.delay.ms"


class HttpSecurity:
    """Holds the TLS context of the HTTP listener, and the logins that it accepts."""

    def __init__(
        self,
        settings: Settings,
        address: HttpAddress,
        plans: Sequence[ListenerPlan],
        credentials: Callable[[], ScramCredentials],
        secret_of_nobody: Callable[[], bytes],
        wall_ms: Callable[[], int],
        delegation_tokens: TokenUsers,
        audit: Audit | None = None,
    ) -> None:
        """Reads the settings. Raises ListenerError.

        `credentials` returns the SCRAM credentials by user and mechanism. `secret_of_nobody` returns the secret from
        which made-up credentials of unknown users are computed, so that a failed login does not show whether the user
        exists. If SCRAM is enabled, clients can also log in with delegation tokens, as on Kafka's listeners.
        """
        self._address = address
        self._tls: TlsSource | None = None
        sources = _user_sources(settings, plans)
        names = _mechanisms(settings, sources)
        map_certificate = None
        if address.tls:
            map_certificate = self._read_tls(settings, with_users=bool(names))
        self._tokens = token_listener(settings, sources[0], wall_ms) if OAUTHBEARER in names else None
        users = _password_users(settings, sources, names, credentials)
        delay_ms = listener_value(settings, LISTENER, FAILURE_DELAY)
        self.login = RequestLogin(
            LoginRules(
                secrets.token_bytes(SECRET_BYTES),
                secret_of_nobody,
                (settings.int(FAILURE_DELAY) if delay_ms is None else int(delay_ms)) / 1000,
                users,
                None if self._tokens is None else self._tokens.check,
                map_certificate,
                delegation_tokens.owner_of if MECHANISMS.keys() & names else None,
                None if audit is None else partial(_report, audit),
            )
        )
        self._asks_passwords = users is not None

    def _read_tls(self, settings: Settings, *, with_users: bool) -> Callable[[Mapping[str, Any]], str] | None:
        """Makes the TLS context. Returns a function that maps a client certificate to its user.

        Returns None if a certificate alone does not log a client in. This is so if HTTP has users with passwords or
        tokens, unless `ssl.client.auth` is set for HTTP itself.
        """
        try:
            self._tls = TlsSource(tls_properties(settings, LISTENER))
            rules = mapping_rules(settings, LISTENER)
        except (TlsError, ValueError) as problem:
            raise ListenerError(f"penstock.http.listener: {problem}") from None
        if with_users and settings.of_listener(LISTENER, CLIENT_AUTH) is None:
            return None

        def principal(certificate: Mapping[str, Any]) -> str:
            found = certificate_principal(dict(certificate), rules)
            assert found is not None, "the certificate is not empty"
            return found

        return principal

    async def start(self) -> None:
        """Reads the keys for access tokens, because they must be known before the listener opens. Raises
        ListenerError."""
        if self._tokens is not None:
            await self._tokens.start()

    def close(self) -> None:
        if self._tokens is not None:
            self._tokens.close()
        self.login.close()

    @property
    def tls(self) -> Callable[[], ssl.SSLContext] | None:
        """Returns a function that returns the current TLS context. Returns None if HTTP has no TLS."""
        source = self._tls
        return None if source is None else lambda: source.context

    def refresh(self, settings: Settings, own: Mapping[str, str] | None = None) -> None:
        """Uses renewed certificates for new connections. If they can't be used, keeps the old certificates.

        If `own` is given, uses these configs instead of the dynamic configs of this broker.
        """
        if self._tls is not None and renewed(self._tls, settings, own, LISTENER, "the HTTP listener"):
            logger.info("the HTTP listener uses the changed key store and trust store for new connections")

    def warnings(self, settings: Settings) -> list[str]:
        """Returns a warning if passwords or data travel unencrypted over the network."""
        host = self._address.host
        if self._address.tls or is_loopback(host) or settings.bool(ALLOW_PLAINTEXT):
            return []
        what = "passwords and data travel" if self._asks_passwords else "data travel"
        return [
            f"HTTP on {host} is not encrypted, and other machines can reach it: {what} in clear text. Write "
            f"penstock.http.listener=https://{host}:{self._address.port} (docs/security.md), listen on loopback, or "
            f"set {ALLOW_PLAINTEXT}=true if the network is trusted."
        ]


def _user_sources(settings: Settings, plans: Sequence[ListenerPlan]) -> list[str]:
    """Returns the names of the listeners from which HTTP takes its mechanisms and users, in order of precedence."""
    with_sasl = [plan for plan in plans if is_sasl(plan.security_protocol)]
    names = [plan.name for plan in sorted(with_sasl, key=lambda plan: plan.controller)]  # listeners for clients first
    return names if settings.of_listener(LISTENER, ENABLED_MECHANISMS) is None else [LISTENER, *names]


def _mechanisms(settings: Settings, sources: Sequence[str]) -> list[str]:
    """Returns the SASL mechanisms that HTTP accepts; an empty list if HTTP has no login."""
    own = settings.of_listener(LISTENER, ENABLED_MECHANISMS)
    if not sources or (own is not None and not own.strip()):
        return []
    return enabled_mechanisms(settings, sources[0])


def _password_users(
    settings: Settings, sources: Sequence[str], names: Sequence[str], credentials: Callable[[], ScramCredentials]
) -> Callable[[str], PasswordUsers] | None:
    """Returns a function that returns the credentials of a user. Returns None if no mechanism has passwords."""
    unknown = sorted(set(names) - {PLAIN, OAUTHBEARER} - MECHANISMS.keys())
    if unknown:
        raise ListenerError(
            f"listener.name.http.sasl.enabled.mechanisms has {', '.join(unknown)}: use {PLAIN}, {OAUTHBEARER}, "
            f"{', '.join(MECHANISMS)}, or leave it empty for HTTP without a login"
        )
    scram = [MECHANISMS[name] for name in names if name in MECHANISMS]
    if not scram and PLAIN not in names:
        return None
    passwords: Mapping[str, str] = {}
    if PLAIN in names:
        with_users = (each for each in sources if (entry := jaas_entry(settings, each, PLAIN)) and entry.passwords)
        passwords = plain_users(settings, next(with_users, sources[0]))
    shapes = CredentialShapes(credentials)

    def find(user: str) -> PasswordUsers:
        known = credentials()
        found = {mechanism: known.get((user, mechanism)) for mechanism in scram}
        return PasswordUsers(user, passwords.get(user), found, shapes())

    return find


def _report(audit: Audit, host: str, reason: str) -> None:
    audit.login_failed(LocalConnection(LISTENER, None, host), reason)
