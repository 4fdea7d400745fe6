"""Parses the users of `storage format --add-scram`, in Kafka's syntax.

SCRAM-SHA-256=[name=ann,password=secret]
SCRAM-SHA-512=[name=ann,salt="BASE64",iterations=8192,saltedpassword="BASE64"]
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.security.scram import (
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)

_KNOWN = ("name", "password", "salt", "iterations", "saltedpassword")


@dataclass(frozen=True, slots=True)
class ScramUser:
    """Holds a user with a credential for one mechanism."""

    name: str
    mechanism: ScramMechanism
    credential: ScramCredential = field(repr=False)


def parse_scram_user(text: str, random_bytes: Callable[[int], bytes]) -> ScramUser:
    """Returns the user of one argument. Makes the salt with `random_bytes`.

    Raises ValueError; the message has no secret. A comma ends a value, as in Kafka: a password can't contain a comma.
    """
    label, equals, rest = text.strip().partition("=")
    if not equals or label not in MECHANISMS:
        raise ValueError(f"the argument must begin with a mechanism ({', '.join(MECHANISMS)}) and '='")
    if not (rest.startswith("[") and rest.endswith("]")):
        raise ValueError(f"the argument must have brackets: write {label}=[name=NAME,password=PASSWORD]")
    mechanism, values = MECHANISMS[label], _values(rest[1:-1])
    if not values.get("name"):
        raise ValueError("the argument has no user name: write [name=NAME,…]")
    iterations = _iterations(values.get("iterations"))
    salt = _decoded(values["salt"], "salt") if "salt" in values else random_bytes(SALT_BYTES)
    if "password" in values:
        if not values["password"]:
            raise ValueError("the password is empty: give a password")
        salted = salted_password(mechanism, values["password"], salt, iterations)
    elif "saltedpassword" not in values:
        raise ValueError("the argument has no password: give password, or saltedpassword with its salt")
    elif "salt" not in values:
        raise ValueError("the argument has no salt: give the salt with which saltedpassword was made")
    else:
        salted = _decoded(values["saltedpassword"], "saltedpassword")
    return ScramUser(values["name"], mechanism, credential_of(mechanism, salt, salted, iterations))


def _values(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name not in _KNOWN:
            raise ValueError(
                f"the parts in brackets must be {', '.join(f'{each}=…' for each in _KNOWN)}, separated by commas"
            )
        values[name] = value[1:-1] if len(value) >= 2 and value[0] == value[-1] == '"' else value
    return values


def _iterations(text: str | None) -> int:
    if text is None:
        return DEFAULT_ITERATIONS
    if not text.isdigit() or not MIN_ITERATIONS <= int(text) <= MAX_ITERATIONS:
        raise ValueError(f"iterations must be a number from {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    return int(text)


def _decoded(text: str, name: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not found:
        raise ValueError(f"{name} is not base64")
    return found
