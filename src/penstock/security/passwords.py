"""Checks a user name and password against the users of PLAIN and of SCRAM.

A SCRAM credential is a hash of the password, which takes milliseconds to compute. A check takes the same time for every
user name, even if the user does not exist or has no SCRAM credential. So neither the answer nor its time shows which
users exist.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.security.scram import ScramKeys, ScramMechanism, credential_of_nobody, password_matches


@dataclass(frozen=True, slots=True)
class PasswordUsers:
    """Holds a user's PLAIN password and SCRAM credentials, as they were when this object was made."""

    user: str
    plain: str | None = field(repr=False)
    """The user's password in the JAAS line of PLAIN; None if it has none."""
    scram: Mapping[ScramMechanism, ScramKeys | None] = field(repr=False)
    """The user's credential for each SCRAM mechanism that is offered; None if the user has none."""
    shapes: Mapping[ScramMechanism, Sequence[tuple[int, int]]] = field(repr=False, compare=False)
    """The shapes of all users' credentials, see `credential_of_nobody`."""

    def accept(self, password: str, secret: bytes) -> bool:
        """Returns True if the password is right.

        If the user has no credential for a mechanism, the password is checked against a made-up credential, so that the
        check takes the same time. The made-up credential is computed from `secret`.
        """
        expected = self.plain
        same = hmac.compare_digest((expected or password + "x").encode(), password.encode())
        right = same and expected is not None
        for mechanism, known in self.scram.items():
            keys = known or credential_of_nobody(mechanism, secret, self.user, self.shapes.get(mechanism, ()))
            matches = password_matches(mechanism, keys, password)
            right = right or (matches and known is not None)
        return right
