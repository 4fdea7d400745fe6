"""Issues access tokens for tests of listeners with OAUTHBEARER. Needs joserfc, which the extra `oauth` installs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from joserfc import jwk, jws
from joserfc.jwk import KeyParameters

RSA_BITS = 2048


class TokenIssuer:
    """Signs tokens with its own key. `write_keys` writes the public part of this key to a file for the broker.

    issuer = TokenIssuer()
    config = {"sasl.oauthbearer.jwks.endpoint.url": issuer.write_keys(tmp_path / "keys.json"), …}
    token = issuer.token("ann")
    """

    def __init__(self, kid: str = "key-1", algorithm: str = "RS256") -> None:
        self.kid = kid
        self.algorithm = algorithm
        parameters: KeyParameters = {"kid": kid, "use": "sig", "alg": algorithm}
        self.key = (
            jwk.ECKey.generate_key("P-256", parameters)
            if algorithm == "ES256"
            else jwk.RSAKey.generate_key(RSA_BITS, parameters)
        )

    def public_key(self) -> dict[str, Any]:
        """Returns the public key as a JWK."""
        return dict(self.key.as_dict(private=False))

    def write_keys(self, path: Path, *others: TokenIssuer) -> str:
        """Writes a JWK set with the public keys of this issuer and of `others` to the file. Returns the file's URL."""
        path.write_text(json.dumps({"keys": [issuer.public_key() for issuer in (self, *others)]}))
        return path.absolute().as_uri()

    def token(self, subject: str, *, lifetime_s: float = 3600, **claims: Any) -> str:
        """Returns a signed token. `claims` are added to the default claims, or replace them."""
        now = int(time.time())
        content = {"sub": subject, "iat": now, "exp": now + lifetime_s, **claims}
        return self.signed(json.dumps(content).encode())

    def signed(self, content: bytes, **header: Any) -> str:
        """Returns a signed token with `content`, which may be invalid. `header` sets fields of the token's header."""
        fields = {"alg": self.algorithm, "kid": self.kid, "typ": "JWT", **header}
        fields = {name: value for name, value in fields.items() if value is not None}
        registry = jws.JWSRegistry(algorithms=[self.algorithm], strict_check_header=False)
        return jws.serialize_compact(fields, content, self.key, registry=registry)
