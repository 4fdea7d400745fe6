"""Finds the delegation tokens with which clients log in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.security.delegation_tokens import TokenCredential, TokenLookup

if TYPE_CHECKING:
    from penstock.metadata.image import TokenImage
    from penstock.security.scram import ScramMechanism

#: Credentials that are kept, because their keys take milliseconds.
MAX_KEPT = 10_000


class TokenUsers:
    def __init__(
        self, secret: str | None, tokens: Callable[[], Mapping[str, TokenImage]], wall_ms: Callable[[], int]
    ) -> None:
        """Prepares the search. `tokens` returns all delegation tokens by id.

        `secret` is the value of `delegation.token.secret.key`. If it is None, `find` returns no token.
        """
        self._secret = secret
        self._tokens = tokens
        self._wall_ms = wall_ms
        self._kept: dict[tuple[ScramMechanism, str], TokenCredential] = {}

    def find(self, mechanism: ScramMechanism, token_id: str) -> TokenLookup | None:
        """Returns the delegation token; None if it does not exist or has expired."""
        token = self._tokens().get(token_id) if self._secret else None
        if token is None or self._secret is None:
            return None
        expires_ms = min(token.max_timestamp, token.expiration_timestamp)
        if expires_ms <= self._wall_ms():
            return None
        credential = self._kept.get((mechanism, token_id))
        if credential is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            credential = self._kept[mechanism, token_id] = TokenCredential(mechanism, self._secret, token_id)
        return TokenLookup(credential, token.owner.partition(":")[2], expires_ms)
