"""Lists the properties that protect a node (TLS, SASL, ACLs), and checks that Penstock enforces them.

A node that ignored a protection property would be open to everybody, against its owner's intent. So a node refuses to
start with a protection property that Penstock does not support yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.metadata.configs.broker import AUTHORIZER_CONFIGS, PROTECTION_CONFIGS, broker_key
from penstock.metadata.configs.definition import ConfigError
from penstock.metadata.configs.providers import PROVIDERS
from penstock.security.authorizer import parse_super_users

AUTHORIZER = "authorizer.class.name"
SUPER_USERS = "super.users"
#: Kafka's own authorizer, whose rules `security/authorizer.py` has.
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_TOKENS = "org.apache.kafka.common.security.oauthbearer."
#: Classes of Kafka's OAUTHBEARER that do what Penstock does, by the end of the property's name.
_TOKEN_CLASSES = {
    "oauthbearer.sasl.server.callback.handler.class": "OAuthBearerValidatorCallbackHandler",
    "oauthbearer.sasl.login.callback.handler.class": "OAuthBearerLoginCallbackHandler",
    "sasl.oauthbearer.jwt.validator.class": "BrokerJwtValidator",
}
#: Other properties with these prefixes belong to a security plug-in, or are misspelt.
_PREFIXES = ("authorizer.", "delegation.token.", "sasl.", "ssl.")


def protection_refusal(name: str, value: str) -> str | None:
    """Returns the reason, as a sentence, why a node does not start with this property; None if the node does start."""
    if name == AUTHORIZER and value.strip() not in ("", STANDARD_AUTHORIZER):
        return f"{name} names a class that Penstock does not have: use {STANDARD_AUTHORIZER}, or remove the property."
    if name == SUPER_USERS:
        try:
            parse_super_users(value)
        except ValueError as problem:
            return str(problem)
    if name.startswith(PROVIDERS):
        return f"{name} works in a properties file only: give the value itself, or write it to a file."
    key = broker_key(name)
    if key is None:
        asks = name.startswith(_PREFIXES)
    else:
        asks = key.name in PROTECTION_CONFIGS and value.strip() != (key.default or "")
    if not asks or _is_token_class(name, value):
        return None
    return (
        f"{name} requires protection that Penstock does not have yet, and without it the node would be open to "
        "everybody: remove the property, and let only trusted machines reach the node's ports."
    )


def _is_token_class(name: str, value: str) -> bool:
    return any(
        name.endswith(end) and value.strip() in (_TOKENS + known, f"{_TOKENS}secured.{known}")
        for end, known in _TOKEN_CLASSES.items()
    )


def check_protection(static: Mapping[str, str]) -> None:
    """Raises ConfigError for the first property that demands a protection which Penstock does not support."""
    for name in sorted(static):
        refusal = protection_refusal(name, static[name])
        if refusal is None and name in AUTHORIZER_CONFIGS and not static.get(AUTHORIZER, "").strip():
            refusal = (
                f"{name} has no effect without an authorizer, and the node would be open to everybody: set "
                f"{AUTHORIZER}={STANDARD_AUTHORIZER}, or remove {name}."
            )
        if refusal is not None:
            raise ConfigError(refusal)
