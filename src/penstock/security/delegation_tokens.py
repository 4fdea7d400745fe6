"""Computes the secrets of a delegation token (HMAC, SCRAM credentials) from its id and the cluster's secret."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import NamedTuple

from penstock.security.scram import (
    TOKEN_SHAPE,
    ScramCredential,
    ScramKeys,
    ScramMechanism,
    credential_of,
    salted_password,
)


class TokenLookup(NamedTuple):
    """Holds the result of a lookup of a client's delegation token: the token's credential, owner and expiry time."""

    credential: ScramKeys
    owner: str
    expires_ms: int


def token_hmac(secret: str, token_id: str) -> bytes:
    """Returns the token's HMAC, computed as in Kafka. Every node with the same secret computes the same HMAC."""
    return hmac.new(secret.encode(), token_id.encode(), "sha512").digest()


class TokenMacs:
    """Finds the id of a delegation token by the token's HMAC, without computing the HMACs of all tokens again."""

    def __init__(self, secret: str | None) -> None:
        """Creates the object without tokens. If `secret` is None, `find` returns no id."""
        self._secret = secret
        self._tokens: Mapping[str, object] = {}
        self._macs: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}

    def update(self, tokens: Mapping[str, object]) -> None:
        """Replaces the tokens by the tokens of a new image (by id), and computes HMACs only for new tokens."""
        if tokens is self._tokens or self._secret is None:
            return
        self._tokens = tokens
        for token_id in tokens:
            if token_id not in self._macs:
                mac = self._macs[token_id] = token_hmac(self._secret, token_id)
                self._ids[mac] = token_id
        if len(self._macs) > len(tokens):
            for token_id in [one for one in self._macs if one not in tokens]:
                del self._ids[self._macs.pop(token_id)]

    def find(self, tokens: Mapping[str, object], mac: bytes) -> str | None:
        """Returns the id of the token with this HMAC; None if `tokens` has no such token."""
        token_id = self._ids.get(mac)
        if token_id is None:
            self.update(tokens)
            token_id = self._ids.get(mac)
        return token_id if token_id in tokens else None


def token_password(secret: str, token_id: str) -> str:
    return base64.b64encode(token_hmac(secret, token_id)).decode()


class TokenCredential:
    """Holds the SCRAM credential of a token.

    The keys of a credential take milliseconds to compute. They are computed once, when a client sends its proof, and
    not for the first answer: the time of the first answer must not show whether the token exists.
    """

    __slots__ = ("_keys", "_mechanism", "_password", "iterations", "salt")

    def __init__(self, mechanism: ScramMechanism, secret: str, token_id: str) -> None:
        salt_bytes, self.iterations = TOKEN_SHAPE
        drawn = hmac.new(secret.encode(), f"salt:{mechanism.label}:{token_id}".encode(), "sha512").digest()
        self.salt = drawn[:salt_bytes]
        self._mechanism = mechanism
        self._password = token_password(secret, token_id)
        self._keys: ScramCredential | None = None

    def _computed(self) -> ScramCredential:
        if self._keys is None:
            salted = salted_password(self._mechanism, self._password, self.salt, self.iterations)
            self._keys = credential_of(self._mechanism, self.salt, salted, self.iterations)
        return self._keys

    @property
    def stored_key(self) -> bytes:
        return self._computed().stored_key

    @property
    def server_key(self) -> bytes:
        return self._computed().server_key
