"""Checks the claims of an access token (a JWT) by the rules of Kafka's broker.

The token must have `exp`, `iat` and a subject. Its validity must have begun (`nbf`) and must not have ended (`exp`);
both checks allow for clock skew. Audience and issuer must be the expected audience and issuer. If no audience is
expected, a token that names an audience is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: A time in seconds that no clock reaches; larger numbers in a claim are refused.
_LAST_TIME_S = 1 << 40
_TRIMMED = "".join(map(chr, range(0x21)))


class TokenError(Exception):
    """Raised for a refused token. The message is for the operator, and has no part of the token's signature."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    audiences: frozenset[str] = frozenset()
    issuer: str | None = None
    scope_claim: str = "scope"
    subject_claim: str = "sub"
    skew_s: int = 30


@dataclass(frozen=True, slots=True)
class BearerToken:
    subject: str
    expires_ms: int
    scopes: frozenset[str] = frozenset()


def strict_object(text: bytes, what: str) -> dict[str, Any]:
    """Parses a JSON object. Raises TokenError if it is invalid, repeats a name, or contains NaN or Infinity."""
    try:
        found = json.loads(text, object_pairs_hook=_without_repetition, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise TokenError(f"the {what} is not valid JSON") from None
    if not isinstance(found, dict):
        raise TokenError(f"the {what} is not a JSON object")
    return found


def check_claims(claims: Mapping[str, Any], rules: TokenRules, now_s: float) -> BearerToken:
    """Returns the token's subject, expiry time and scopes. Raises TokenError."""
    expires, issued, begins = (_time(claims, name) for name in ("exp", "iat", "nbf"))
    if expires is None or issued is None:
        raise TokenError("the claim exp or iat is missing")
    if now_s - rules.skew_s >= expires:
        raise TokenError("the token has expired")
    if begins is not None and now_s + rules.skew_s < begins:
        raise TokenError("the token is not valid yet")
    if expires < max(issued, begins or 0):
        raise TokenError("the token expires before its validity begins")
    _check_audience(claims.get("aud"), rules.audiences)
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenError("the token's issuer is not the expected issuer")
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not _trimmed(subject):
        raise TokenError(f"the claim {rules.subject_claim} names no subject")
    return BearerToken(_trimmed(subject), int(expires * 1000), _scopes(claims.get(rules.scope_claim)))


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LAST_TIME_S:
        raise TokenError(f"the claim {name} is not a time")
    return math.floor(value)


def _check_audience(audience: object, expected: frozenset[str]) -> None:
    named = [audience] if isinstance(audience, str) else audience
    if named is None and not expected:
        return
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise TokenError("the claim aud is missing or is not a list of names")
    if not expected:
        raise TokenError("the token names an audience, but sasl.oauthbearer.expected.audience is not set")
    if expected.isdisjoint(named):
        raise TokenError("the token's audience is not the expected audience")


def _scopes(value: object) -> frozenset[str]:
    named = [value] if isinstance(value, str) else value
    if not isinstance(named, list):
        return frozenset()
    texts = [_trimmed(each) for each in named if isinstance(each, str)]
    if len(texts) != len(named) or not all(texts) or len(set(texts)) != len(texts):
        raise TokenError("the token has scopes that are repeated, empty or not strings")
    return frozenset(texts)


def _trimmed(text: str) -> str:
    """Returns the text without the characters up to U+0020 at both ends, as Java's `trim`.

    Python's `strip` also removes other spaces, such as U+00A0: two different subjects could become the same principal.
    """
    return text.strip(_TRIMMED)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("the JSON object repeats a name")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
