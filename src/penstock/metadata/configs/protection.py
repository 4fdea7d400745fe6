"""Lists the properties that protect a node (TLS, SASL, ACLs), and checks that Penstock enforces them.

A node that ignored a protection property would be open to everybody, against its owner's intent. So a node refuses to
start with a protection property that Penstock does not support yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.metadata.configs.broker import AUTHORIZER_CONFIGS, PROTECTION_CONFIGS, broker_key, listener_property
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
#: Properties that name listeners, besides `listeners`.
_LISTENER_LISTS = (
    "advertised.listeners",
    "listener.security.protocol.map",
    "controller.listener.names",
    "inter.broker.listener.name",
)
#: The name of the HTTP listener.
HTTP = "HTTP"
#: Other properties with these prefixes belong to a security plug-in, or are misspelt.
_PREFIXES = ("authorizer.", "delegation.token.", "sasl.", "ssl.")


#: SASL mechanisms, as they stand before a property of one mechanism.
_MECHANISMS = ("", "gssapi", "plain", "scram-sha-256", "scram-sha-512", "oauthbearer")
#: Protection that a node has as a whole: these properties have no effect for one listener.
_OF_NODES = ("authorizer.", "delegation.token.", "security.", "penstock.", "sasl.mechanism.", "listener.")


def protection_refusal(name: str, value: str) -> str | None:
    """Returns the reason, as a sentence, why a node does not start with this property; None if the node does start."""
    refusal = _listener_refusal(name)
    if refusal is not None:
        return refusal
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


def _listener_refusal(name: str) -> str | None:
    """Returns the reason why a property of one listener would have no effect; None if the property has an effect.

    Most of these properties protect a listener, so the node refuses a misspelt property and does not ignore it.
    """
    found = listener_property(name)
    if found is None:
        return None
    listener, base, mechanism = found
    if listener != listener.lower() or mechanism not in _MECHANISMS:
        right = f"listener.name.{listener.lower()}."
        names = ", ".join(filter(None, _MECHANISMS))
        return f"{name} has no effect: write {right} in lower case, and a mechanism after it as one of {names}."
    if broker_key(name) is None:
        return f"{name} has no effect, because no property of a listener has this name: check its spelling."
    if base.startswith(_OF_NODES) or base in AUTHORIZER_CONFIGS:
        return f"{name} has no effect, because {base} applies to the whole node: remove the listener's prefix."
    return None


def _known_listeners(static: Mapping[str, str]) -> set[str]:
    """Returns the names of all listeners that the properties mention, and of the HTTP listener, in lower case."""
    texts = [static.get("listeners", "PLAINTEXT"), HTTP, *(static.get(name, "") for name in _LISTENER_LISTS)]
    return {entry.partition(":")[0].strip().lower() for text in texts for entry in text.split(",")}


def _is_token_class(name: str, value: str) -> bool:
    return any(
        name.endswith(end) and value.strip() in (_TOKENS + known, f"{_TOKENS}secured.{known}")
        for end, known in _TOKEN_CLASSES.items()
    )


def check_protection(static: Mapping[str, str]) -> None:
    """Raises ConfigError for the first property that demands a protection which Penstock does not support."""
    listeners = _known_listeners(static)
    for name in sorted(static):
        refusal = protection_refusal(name, static[name])
        own = listener_property(name)
        if refusal is None and own is not None and own.listener not in listeners:
            refusal = f"{name} has no effect, because there is no listener {own.listener.upper()}: check its spelling."
        if refusal is None and name in AUTHORIZER_CONFIGS and not static.get(AUTHORIZER, "").strip():
            refusal = (
                f"{name} has no effect without an authorizer, and the node would be open to everybody: set "
                f"{AUTHORIZER}={STANDARD_AUTHORIZER}, or remove {name}."
            )
        if refusal is not None:
            raise ConfigError(refusal)
