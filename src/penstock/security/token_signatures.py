"""Verifies the signatures of access tokens with the public keys of a JWK set. Needs joserfc: install penstock[oauth].

Only signatures with asymmetric keys are accepted. The algorithm `none` is refused. HMAC is refused too, because broker
and issuer would share its secret key. Only keys of the set are used; a key inside the token is ignored.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

from joserfc import jwk, jws
from joserfc.errors import JoseError

from penstock.security.bearer_tokens import TokenError, strict_object

#: Accepted algorithms, and the type of their keys.
ALGORITHMS = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
}
MAX_KEYS = 100
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192
MAX_HEADER_BYTES = 8192
_COMPACT = re.compile(r"([\w-]+)\.[\w-]+\.[\w-]+", re.ASCII)


class UnknownKeyError(TokenError):
    """Raised if the key set has no key, or several keys, for a token's signature. The issuer may have added keys since
    the set was read."""


class _Registry(jws.JWSRegistry):
    max_header_length = MAX_HEADER_BYTES


# Other header fields (x5t, nonce …) are allowed, as in Kafka: nothing here depends on them.
_REGISTRY = _Registry(algorithms=list(ALGORITHMS), strict_check_header=False)

Key = jwk.RSAKey | jwk.ECKey


class TokenKeys:
    """Holds the usable keys of one JWK set."""

    def __init__(self, keys: Sequence[Key], skipped: int = 0) -> None:
        self._keys = keys
        #: Number of keys in the set that are not used.
        self.skipped = skipped

    def __len__(self) -> int:
        return len(self._keys)

    def claims(self, token: str) -> dict[str, Any]:
        """Returns the claims of a token with a valid signature. Raises TokenError."""
        compact = _COMPACT.fullmatch(token)
        if compact is None:
            raise TokenError("the token is not a signed JWT")
        header = strict_object(_decoded(compact[1], "header"), "token's header")
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise TokenError("the token's signature has an algorithm that is not accepted")
        if kid is not None and not isinstance(kid, str):
            raise TokenError("the token's key id is not a string")
        if "crit" in header or "b64" in header:
            raise TokenError("the token's header demands an extension that is not supported")
        try:
            signed = jws.deserialize_compact(token, self._key(algorithm, kid), registry=_REGISTRY)
        except (JoseError, ValueError):
            raise TokenError("the token's signature is wrong") from None
        return strict_object(signed.payload or b"", "token's content")

    def _key(self, algorithm: str, kid: str | None) -> Key:
        """Returns the algorithm's key with the id `kid`. If `kid` is None, returns the only key for the algorithm.

        Raises UnknownKeyError if no key fits, or if more than one key fits.
        """
        fitting = [
            key
            for key in self._keys
            if key.key_type == ALGORITHMS[algorithm]
            and key.get("alg") in (None, algorithm)
            and (kid is None or key.get("kid") == kid)
        ]
        if len(fitting) != 1:
            raise UnknownKeyError(
                "the issuer's key set has no such key" if not fitting else "several keys of the issuer fit"
            )
        return fitting[0]


def read_keys(document: bytes) -> TokenKeys:
    """Returns the keys of a JWK set that can verify signatures. Raises TokenError if the set has no such key.

    Keys for other purposes, of other types and of unsafe sizes are skipped.
    """
    entries = strict_object(document, "JWK set").get("keys")
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise TokenError(f"the JWK set has no list of keys, or too many keys: at most {MAX_KEYS} are read")
    keys = [key for entry in entries if (key := _usable(entry)) is not None]
    if not keys:
        raise TokenError("the JWK set has no RSA or EC key for signatures")
    return TokenKeys(keys, len(entries) - len(keys))


def _usable(entry: object) -> Key | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    if not isinstance(entry.get("kid", ""), str) or not isinstance(entry.get("alg", ""), str):
        return None
    # Only public parts: an issuer that publishes private ones is not helped by a copy of them here.
    public = {name: value for name, value in entry.items() if name in ("kty", "n", "e", "crv", "x", "y", "kid", "alg")}
    try:
        match entry.get("kty"):
            case "RSA":
                bits = len(_decoded(public["n"], "modulus").lstrip(b"\0")) * 8
                return jwk.RSAKey.import_key(public) if MIN_RSA_BITS <= bits <= MAX_RSA_BITS else None
            case "EC":
                return jwk.ECKey.import_key(public)
    except (JoseError, TokenError, ValueError, TypeError, KeyError):
        return None
    return None


def _decoded(segment: str, what: str) -> bytes:
    if len(segment) > MAX_HEADER_BYTES:
        raise TokenError(f"the token's {what} is too long")
    try:
        return base64.b64decode(segment + "=" * (-len(segment) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise TokenError(f"the token's {what} is not base64") from None
