"""Defines the settings and the users of a simulated cluster whose listeners demand a login.

Nodes log in as `node`, actors as `client`; both are super users. `mallory` may log in and has no rights.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.login import Login

MECHANISM = "PLAIN"
_PROTOCOLS = "listener.security.protocol.map"
_USERS = {"node": "n", "client": "c", "mallory": "m"}
_JAAS = 'x.PlainLoginModule required username="node" password="n" {} ;'.format(
    " ".join(f'user_{name}="{password}"' for name, password in _USERS.items())
)
SECURED: dict[str, str] = {
    _PROTOCOLS: "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": MECHANISM,
    "sasl.mechanism.inter.broker.protocol": MECHANISM,
    "sasl.mechanism.controller.protocol": MECHANISM,
    "sasl.jaas.config": _JAAS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:node;User:client",
}


def is_secured(settings: Mapping[str, str]) -> bool:
    return _PROTOCOLS in settings


def login_of(user: str) -> Login:
    return Login(MECHANISM, user, _USERS[user])


def client_login(settings: Mapping[str, str]) -> Login | None:
    """Returns the login of the simulated clients; None if the listeners demand no login."""
    return login_of("client") if is_secured(settings) else None
