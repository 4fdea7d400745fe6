"""Finds the delegation tokens with which clients log in."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.security.delegation_tokens import TokenCredential, TokenLookup, token_password

if TYPE_CHECKING:
    from penstock.broker.controlplane.metadata_log import MetadataLog
    from penstock.metadata.configs.settings import Settings
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
        """Returns the credential, the owner and the end time of a delegation token; None if the token does not exist or
        has expired."""
        token = self._valid(token_id)
        if token is None or self._secret is None:
            return None
        credential = self._kept.get((mechanism, token_id))
        if credential is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept.clear()
            credential = self._kept[mechanism, token_id] = TokenCredential(mechanism, self._secret, token_id)
        return TokenLookup(credential, token.owner.partition(":")[2], _end_ms(token))

    def owner_of(self, token_id: str, password: str) -> str | None:
        """Returns the token's owner, a principal. Returns None if the token is not valid or `password` is not its HMAC
        in base64."""
        if not self._secret:
            return None
        right = hmac.compare_digest(token_password(self._secret, token_id).encode(), password.encode())
        token = self._valid(token_id)
        return token.owner if right and token is not None else None

    def _valid(self, token_id: str) -> TokenImage | None:
        token = self._tokens().get(token_id) if self._secret else None
        return None if token is None or _end_ms(token) <= self._wall_ms() else token


def token_users(settings: Settings, metadata: Callable[[], MetadataLog], wall_ms: Callable[[], int]) -> TokenUsers:
    """Returns an object that finds the delegation tokens of the cluster, for logins on the listeners of this node."""
    secret = settings.optional_str("delegation.token.secret.key")
    return TokenUsers(secret, lambda: metadata().image.delegation_tokens, wall_ms)


def _end_ms(token: TokenImage) -> int:
    return min(token.max_timestamp, token.expiration_timestamp)
