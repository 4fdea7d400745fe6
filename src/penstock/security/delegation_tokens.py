"""Computes the secrets of a delegation token (HMAC, SCRAM credentials) from its id and the cluster's secret."""

from __future__ import annotations

import base64
import hmac
from typing import NamedTuple

from penstock.security.scram import MIN_ITERATIONS, SALT_BYTES, ScramCredential, ScramMechanism, credential_of
from penstock.security.scram import salted_password as salted


class TokenLookup(NamedTuple):
    """The delegation token that a client uses to log in, as `TokenUsers` finds it."""

    credential: ScramCredential
    owner: str
    expires_ms: int


def token_hmac(secret: str, token_id: str) -> bytes:
    """Returns the token's HMAC, computed as in Kafka. Every node with the same secret computes the same HMAC."""
    return hmac.new(secret.encode(), token_id.encode(), "sha512").digest()


def token_password(secret: str, token_id: str) -> str:
    return base64.b64encode(token_hmac(secret, token_id)).decode()


def token_credential(mechanism: ScramMechanism, secret: str, token_id: str) -> ScramCredential:
    """Returns the SCRAM credential of a token. Nothing is stored, because the salt is computed from the secret and the
    id.
    """
    salt = hmac.new(secret.encode(), f"salt:{mechanism.label}:{token_id}".encode(), "sha512").digest()[:SALT_BYTES]
    password = token_password(secret, token_id)
    return credential_of(mechanism, salt, salted(mechanism, password, salt, MIN_ITERATIONS), MIN_ITERATIONS)
