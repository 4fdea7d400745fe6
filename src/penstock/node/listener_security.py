"""Reads how each listener protects its connections, and how this node authenticates to the listeners of other nodes.

As in Kafka, `ssl.*` and `sasl.*` properties apply to all listeners. With the prefix `listener.name.<name>.` they apply
to one listener, and with `listener.name.<name>.<mechanism>.` to one mechanism of this listener. The node refuses to
start if a listener's protocol needs properties that are missing or wrong. The error names the cause.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.requests.authentication import SESSION, OnFailure, SaslRules, SaslSession
from penstock.client.login import LOGIN_MECHANISMS
from penstock.client.token_sources import endpoint_tls
from penstock.metadata.pattern_groups import GroupPattern
from penstock.net.tls import TlsError, TlsSource
from penstock.node.listeners import ListenerError, ListenerPlan, is_sasl, is_tls
from penstock.node.oauth_listener import TokenListener
from penstock.node.token_users import token_users
from penstock.security.delegation_tokens import TokenLookup
from penstock.security.jaas import JaasEntry, parse_jaas
from penstock.security.oauthbearer import OAUTHBEARER
from penstock.security.plain import PlainServer
from penstock.security.principals import certificate_principal, parse_mapping_rules
from penstock.security.sasl_server import Exchange
from penstock.security.scram import MECHANISMS, ScramMechanism, ScramServer, secret_of_nobody

if TYPE_CHECKING:
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.metadata.configs.settings import Settings
    from penstock.metadata.image import ScramCredentials
    from penstock.net.connection import Connection

logger = logging.getLogger(__name__)

PLAIN = "PLAIN"
NONCE_BYTES = 24
#: Time from the acceptance of a connection to its authentication.
AUTHENTICATION_DEADLINE_S = 30.0
_TLS_PROPERTIES = (
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
)


class ListenerSecurity:
    """Holds the protection of one listener: TLS, SASL, both or none."""

    def __init__(
        self,
        settings: Settings,
        plan: ListenerPlan,
        credentials: Callable[[], ScramCredentials],
        secret: Callable[[], bytes],
        wall_ms: Callable[[], int],
        find_token: Callable[[ScramMechanism, str], TokenLookup | None],
        on_failure: OnFailure | None = None,
    ) -> None:
        """Reads the listener's settings. Raises ListenerError.

        `credentials` returns the SCRAM credentials by user and mechanism; `find_token` returns a delegation token.
        `secret` returns the secret from which made-up credentials of unknown users are computed.
        """
        self.name = plan.name
        self.tls: TlsSource | None = None
        self.sasl: SaslRules | None = None
        self._tokens: TokenListener | None = None
        if is_tls(plan.security_protocol):
            try:
                self.tls = TlsSource(tls_properties(settings, plan.name))
                self._map_name = mapping_rules(settings, plan.name)
            except (TlsError, ValueError) as problem:
                raise ListenerError(f"listener {plan.name}: {problem}") from None
        if is_sasl(plan.security_protocol):
            enabled = enabled_mechanisms(settings, plan.name)
            if OAUTHBEARER in enabled:
                self._tokens = token_listener(settings, plan.name, wall_ms)
            mechanisms = _mechanisms(settings, plan.name, enabled, credentials, secret, self._tokens, find_token)
            self.sasl = _sasl_rules(settings, plan.name, mechanisms, wall_ms, on_failure)

    async def start(self) -> None:
        """Reads the keys for OAUTHBEARER, because they must be known before the listener opens. Raises
        ListenerError."""
        if self._tokens is not None:
            await self._tokens.start()

    def close(self) -> None:
        if self._tokens is not None:
            self._tokens.close()

    @property
    def scram(self) -> bool:
        """Returns True if clients may log in with SCRAM."""
        return self.sasl is not None and not MECHANISMS.keys().isdisjoint(self.sasl.mechanisms)

    @property
    def open(self) -> bool:
        """Returns True if the listener accepts connections without TLS and without SASL."""
        return self.tls is None and self.sasl is None

    def accept(self, connection: Connection) -> None:
        """Sets the principal of a new connection from its client certificate, or begins its SASL session."""
        if self.sasl is not None:
            connection.state[SESSION] = SaslSession(connection, self.sasl)
        elif self.tls is not None:
            try:
                connection.principal = certificate_principal(connection.peer_certificate(), self._map_name)
            except ValueError as problem:
                connection.close(f"its certificate names no user: {problem}", "certificate")

    def refresh(self, settings: Settings, own: Mapping[str, str] | None = None) -> None:
        """Uses renewed certificates for new connections. If they can't be used, keeps the old certificates.

        If `own` is given, uses these configs instead of the dynamic configs of this broker.
        """
        if self.tls is not None and renewed(self.tls, settings, own, self.name, f"listener {self.name}"):
            logger.info("listener %s uses the changed key store and trust store for new connections", self.name)


def renewed(source: TlsSource, settings: Settings, own: Mapping[str, str] | None, listener: str, who: str) -> bool:
    """Reads changed TLS settings and files.

    Returns True if there is a new TLS context. If the new settings can't be used, logs the reason and returns False.
    """
    try:
        return source.reconfigure(tls_properties(settings, listener, own)) or source.refresh()
    except TlsError as problem:
        logger.error("%s keeps its old certificates, because the new ones can't be used: %s", who, problem)
        return False


def listener_value(settings: Settings, listener: str, name: str, own: Mapping[str, str] | None = None) -> str | None:
    """Returns the property's value for this listener, or else its value for all listeners; None if neither is set.

    If `own` is given, uses these configs instead of the dynamic configs of this broker.
    """
    found = settings.of_listener(listener, name, own)
    if found is None:
        found = settings.static.get(name)
    return None if found is None else found.strip()


def mapping_rules(settings: Settings, listener: str) -> Callable[[str], str]:
    """Returns the function that maps the subject of a certificate to a user. Raises ValueError."""
    return parse_mapping_rules(
        listener_value(settings, listener, "ssl.principal.mapping.rules") or "DEFAULT", GroupPattern
    )


def tls_properties(settings: Settings, listener: str, own: Mapping[str, str] | None = None) -> dict[str, str]:
    found = {name: listener_value(settings, listener, name, own) for name in _TLS_PROPERTIES}
    return {name: value for name, value in found.items() if value is not None}


# --- servers ----------------------------------------------------------------------------------------


def enabled_mechanisms(settings: Settings, listener: str) -> list[str]:
    names = (listener_value(settings, listener, "sasl.enabled.mechanisms") or "GSSAPI").split(",")
    return [name.strip() for name in names if name.strip()]


def _mechanisms(
    settings: Settings,
    listener: str,
    names: Sequence[str],
    credentials: Callable[[], ScramCredentials],
    secret: Callable[[], bytes],
    tokens: TokenListener | None,
    find_token: Callable[[ScramMechanism, str], TokenLookup | None],
) -> dict[str, Callable[[], Exchange]]:
    shapes = CredentialShapes(credentials)
    mechanisms: dict[str, Callable[[], Exchange]] = {}
    for name in names:
        if name == PLAIN:
            mechanisms[name] = partial(PlainServer, plain_users(settings, listener))
        elif name in MECHANISMS:
            mechanisms[name] = _ScramUsers(MECHANISMS[name], credentials, shapes, secret, find_token).exchange
        elif name == OAUTHBEARER and tokens is not None:
            mechanisms[name] = tokens.exchange
        else:
            raise ListenerError(
                f"listener {listener}: the mechanism {name} of sasl.enabled.mechanisms is not supported; use "
                f"{', '.join(LOGIN_MECHANISMS)} or {OAUTHBEARER}"
            )
    return mechanisms


def token_listener(settings: Settings, listener: str, wall_ms: Callable[[], int]) -> TokenListener:
    entry = jaas_entry(settings, listener, OAUTHBEARER)
    try:
        issuer_tls = endpoint_tls({} if entry is None else entry.options)
    except ValueError as problem:
        raise ListenerError(f"listener {listener}: the JAAS line of {OAUTHBEARER} can't be used: {problem}") from None
    return TokenListener(listener, partial(token_property, settings, listener), wall_ms, issuer_tls)


def token_property(settings: Settings, listener: str, name: str) -> str | None:
    """Returns a property of OAUTHBEARER: this listener's own value, the value for all listeners, or the default."""
    prefixed = settings.static.get(f"listener.name.{listener.lower()}.{OAUTHBEARER.lower()}.{name}")
    found = listener_value(settings, listener, name) if prefixed is None else prefixed.strip()
    return settings.raw(name) if found is None else found


def _sasl_rules(
    settings: Settings,
    listener: str,
    mechanisms: Mapping[str, Callable[[], Exchange]],
    wall_ms: Callable[[], int],
    on_failure: OnFailure | None,
) -> SaslRules:
    lifetimes = [listener_value(settings, listener, f"{name.lower()}.connections.max.reauth.ms") for name in mechanisms]
    lifetimes.append(listener_value(settings, listener, "connections.max.reauth.ms"))
    size = listener_value(settings, listener, "sasl.server.max.receive.size")
    delay_ms = listener_value(settings, listener, "connection.failed.authentication.delay.ms")
    return SaslRules(
        mechanisms,
        max_token_bytes=settings.int("sasl.server.max.receive.size") if size is None else int(size),
        deadline_s=AUTHENTICATION_DEADLINE_S,
        failure_delay_s=settings.int("connection.failed.authentication.delay.ms") / 1000
        if delay_ms is None
        else int(delay_ms) / 1000,
        wall_ms=wall_ms,
        on_failure=on_failure,
        # The shortest lifetime of a mechanism counts for all mechanisms of the listener.
        lifetime_ms=min((int(text) for text in lifetimes if text is not None and int(text) > 0), default=0),
    )


class CredentialShapes:
    """Collects the salt lengths and iteration counts of all SCRAM credentials. A call returns them by mechanism.

    `credential_of_nobody` makes up credentials of unknown users from these values. They are collected again only after
    the credentials have changed.
    """

    def __init__(self, credentials: Callable[[], ScramCredentials]) -> None:
        self._credentials = credentials
        self._known: ScramCredentials | None = None
        self._shapes: dict[ScramMechanism, list[tuple[int, int]]] = {}

    def __call__(self) -> dict[ScramMechanism, list[tuple[int, int]]]:
        known = self._credentials()
        if known is not self._known:  # there may be many users
            self._known = known
            self._shapes = {
                mechanism: sorted(
                    {(len(one.salt), one.iterations) for (_, kind), one in known.items() if kind == mechanism}
                )
                for mechanism in ScramMechanism
            }
        return self._shapes


class _ScramUsers:
    """Creates the SCRAM exchanges of one mechanism, from the current credentials."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        credentials: Callable[[], ScramCredentials],
        shapes: CredentialShapes,
        secret: Callable[[], bytes],
        find_token: Callable[[ScramMechanism, str], TokenLookup | None],
    ) -> None:
        self._mechanism = mechanism
        self._find_token = partial(find_token, mechanism)
        self._credentials = credentials
        self._secret = secret
        self._shapes = shapes

    def exchange(self) -> ScramServer:
        known, mechanism = self._credentials(), self._mechanism
        nonce, shapes = secrets.token_urlsafe(NONCE_BYTES), self._shapes()[mechanism]
        return ScramServer(
            mechanism, lambda user: known.get((user, mechanism)), nonce, self._secret(), shapes, self._find_token
        )


def plain_users(settings: Settings, listener: str) -> Mapping[str, str]:
    entry = jaas_entry(settings, listener, PLAIN)
    if entry is None or not entry.passwords:
        raise ListenerError(
            f"listener {listener}: PLAIN needs users; set listener.name.{listener.lower()}.plain.sasl.jaas.config to "
            '... PlainLoginModule required user_NAME="PASSWORD";'
        )
    return entry.passwords


def jaas_entry(settings: Settings, listener: str, mechanism: str) -> JaasEntry | None:
    name = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    text = settings.static.get(name) or listener_value(settings, listener, "sasl.jaas.config")
    if text is None:
        return None
    try:
        return parse_jaas(text)
    except ValueError as problem:
        raise ListenerError(f"{name} can't be parsed: {problem}") from None


def nobody_secret(settings: Settings, cluster_id: Callable[[], str]) -> Callable[[], bytes]:
    """Returns a function that returns a secret. Made-up credentials of unknown users are computed from this secret."""
    token_key = settings.optional_str("delegation.token.secret.key")
    return lambda: secret_of_nobody(cluster_id(), token_key)


def securities(
    settings: Settings,
    plans: Sequence[ListenerPlan],
    metadata: Callable[[], MetadataLog],
    secret_of_nobody: Callable[[], bytes],
    wall_ms: Callable[[], int],
    on_failure: OnFailure | None = None,
) -> dict[str, ListenerSecurity]:
    def of_clients() -> ScramCredentials:
        return metadata().image.scram_credentials

    def of_controllers() -> ScramCredentials:
        return metadata().credentials_for_controllers()

    tokens = token_users(settings, metadata, wall_ms)
    return {
        plan.name: ListenerSecurity(
            settings,
            plan,
            of_controllers if plan.controller else of_clients,
            secret_of_nobody,
            wall_ms,
            tokens.find,
            on_failure,
        )
        for plan in plans
    }
