"""Gives a node the credentials with which it connects to listeners of other nodes, and keeps them up to date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.client.credentials import Credentials
from penstock.client.login import AnyLogin, Login
from penstock.client.token_sources import TOKEN_PROPERTIES, token_login
from penstock.metadata.configs.definition import ConfigError
from penstock.net.tls import TlsError, TlsSource, check_trust, client_context
from penstock.node.listener_security import ListenerSecurity, jaas_entry, renewed, tls_properties, token_property
from penstock.node.listeners import ListenerError, ListenerPlan, inter_broker_listener, is_sasl, is_tls, protocol_of
from penstock.security.oauthbearer import OAUTHBEARER

if TYPE_CHECKING:
    from penstock.metadata.configs.settings import Settings
    from penstock.node.http_security import HttpSecurity


class PeerSecurity:
    """Holds the TLS context and the login with which this node connects to other nodes' listeners of a given name."""

    def __init__(self, settings: Settings, listener: str, mechanism_property: str) -> None:
        """Reads the settings. Raises ListenerError if they don't let this node authenticate to the listener."""
        protocol = protocol_of(settings, listener)
        self.listener = listener
        self.credentials = Credentials()
        self.tls: TlsSource | None = None
        if is_tls(protocol):
            try:
                self.tls = TlsSource(tls_properties(settings, listener), client_context)
            except TlsError as problem:
                raise ListenerError(f"listener {listener}: {problem}") from None
            self.credentials.tls = self.tls.context
        if is_sasl(protocol):
            self.credentials.login = _login(settings, listener, mechanism_property)

    def refresh(self, settings: Settings, own: Mapping[str, str] | None = None) -> None:
        """Uses a renewed certificate for new connections. If it can't be used, keeps the old certificate.

        If `own` is given, uses these configs instead of the dynamic configs of this broker.
        """
        source = self.tls
        if source is not None and renewed(source, settings, own, self.listener, f"the client for {self.listener}"):
            self.credentials.tls = source.context


def peer_securities(settings: Settings, plans: Sequence[ListenerPlan]) -> tuple[PeerSecurity, PeerSecurity]:
    """Returns the security settings of connections to other brokers and to controllers. Raises ListenerError."""
    brokers = inter_broker_listener(settings, plans)
    to_brokers = PeerSecurity(settings, brokers, "sasl.mechanism.inter.broker.protocol")
    names = [name.upper() for name in settings.list("controller.listener.names")]
    if not names:
        return to_brokers, to_brokers
    return to_brokers, PeerSecurity(settings, names[0], "sasl.mechanism.controller.protocol")


def check_own_tls(
    settings: Settings,
    listeners: Mapping[str, ListenerSecurity | HttpSecurity],
    peers: Sequence[PeerSecurity],
    own: Mapping[str, str],
) -> None:
    """Raises ConfigError if TLS can't work on this node with the given dynamic configs."""
    connected = {peer.listener for peer in peers}
    for name, security in listeners.items():
        properties = tls_properties(settings, name, own)
        if security.tls is None or properties == tls_properties(settings, name):
            continue
        try:
            server = TlsSource(properties).context
            if name in connected:
                check_trust(server, TlsSource(properties, client_context).context)
        except TlsError as problem:
            raise ConfigError(f"Listener {name} can't use these settings. {problem}") from None


def _login(settings: Settings, listener: str, mechanism_property: str) -> AnyLogin:
    mechanism = settings.str(mechanism_property)
    entry = jaas_entry(settings, listener, mechanism)
    if mechanism == OAUTHBEARER:
        named = {name: token_property(settings, listener, name) for name in TOKEN_PROPERTIES}
        try:
            return token_login(
                {name: value for name, value in named.items() if value is not None}, entry.options if entry else {}
            )
        except ValueError as problem:
            raise ListenerError(f"listener {listener}: {problem}") from None
    if entry is None or "username" not in entry.options or "password" not in entry.options:
        raise ListenerError(
            f"listener {listener}: this node needs a login of its own; set "
            f'listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config to MODULE required username="NAME" '
            'password="PASSWORD";'
        )
    try:
        return Login(mechanism, entry.options["username"], entry.options["password"])
    except ValueError as problem:
        raise ListenerError(f"{mechanism_property}: {problem}") from None
