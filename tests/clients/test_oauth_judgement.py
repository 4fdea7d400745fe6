"""Tests that Kafka's own validator and Penstock accept and refuse the same access tokens."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.security.bearer_tokens import TokenError, TokenRules, check_claims
from penstock.security.token_signatures import read_keys
from penstock.testing.tokens import TokenIssuer
from tools import kafka

pytestmark = [pytest.mark.java]

NOW = int(time.time())
LATER = NOW + 3600
STRICT = {"aud": "logs", "iss": "https://issuer.example"}
RULES = {
    "open": TokenRules(),
    "strict": TokenRules(audiences=frozenset({"kafka", "logs"}), issuer="https://issuer.example"),
}
#: Claims by the name of a case; they are added to a token that is valid for an hour.
OPEN: dict[str, dict[str, Any]] = {
    "valid": {},
    "expired": {"exp": NOW - 60, "iat": NOW - 600},
    "expired within the skew": {"exp": NOW - 10, "iat": NOW - 600},
    "without exp": {"exp": None},
    "without iat": {"iat": None},
    "without subject": {"sub": None},
    "empty subject": {"sub": ""},
    "blank subject": {"sub": "  "},
    "subject with spaces": {"sub": " ann "},
    "subject is a number": {"sub": 7},
    "subject is a list": {"sub": ["ann"]},
    "not valid yet": {"nbf": NOW + 600},
    "nearly valid": {"nbf": NOW + 10},
    "issued in the future": {"iat": NOW + 600},
    "ends before it was issued": {"iat": LATER + 10},
    "ends before it begins": {"nbf": NOW + 20, "exp": NOW + 10, "iat": NOW - 10},
    "exp is a text": {"exp": str(LATER)},
    "exp has a fraction": {"exp": LATER + 0.75},
    "exp is negative": {"exp": -5},
    "unexpected audience": {"aud": "kafka"},
    "empty list of audiences": {"aud": []},
    "any issuer": {"iss": "https://other.example"},
    "one scope": {"scope": "read"},
    "list of scopes": {"scope": ["read", "write"]},
    "repeated scope": {"scope": ["read", "read"]},
    "empty scope": {"scope": ""},
    "scope is a number": {"scope": 5},
    "scope is an object": {"scope": {"a": 1}},
}
EXPECTING: dict[str, dict[str, Any]] = {
    "expected": STRICT,
    "one of the audiences": {**STRICT, "aud": ["x", "kafka"]},
    "no audience": {**STRICT, "aud": None},
    "other audience": {**STRICT, "aud": "other"},
    "empty audiences": {**STRICT, "aud": []},
    "audience is a number": {**STRICT, "aud": 5},
    "audiences with a number": {**STRICT, "aud": ["logs", 5]},
    "no issuer": {**STRICT, "iss": None},
    "other issuer": {**STRICT, "iss": "https://other.example"},
    "issuer is a list": {**STRICT, "iss": ["https://issuer.example"]},
}


def signed(issuer: TokenIssuer, claims: dict[str, Any]) -> str:
    content = {"sub": "ann", "iat": NOW - 10, "exp": LATER, **claims}
    return issuer.signed(json.dumps({name: value for name, value in content.items() if value is not None}).encode())


def unsigned(issuer: TokenIssuer) -> str:
    header = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    return f"{header}.{signed(issuer, {}).split('.')[1]}."


@pytest.fixture(scope="module")
def cases() -> tuple[TokenIssuer, dict[str, tuple[str, str]]]:
    """Returns the issuer, and for the name of each case the kind of rules ("open" or "strict") and the token."""
    issuer, stranger, curve = TokenIssuer("a"), TokenIssuer("a"), TokenIssuer("c", "ES256")
    tokens = {name: ("open", signed(issuer, claims)) for name, claims in OPEN.items()}
    tokens |= {name: ("strict", signed(issuer, claims)) for name, claims in EXPECTING.items()}
    tokens["other key with the same id"] = ("open", signed(stranger, {}))
    tokens["unknown key id"] = ("open", signed(curve, {}))
    tokens["no signature"] = ("open", unsigned(issuer))
    tokens["repeated claim"] = ("open", issuer.signed(b'{"sub":"x","sub":"ann","iat":1,"exp":9999999999}'))
    tokens["content is a list"] = ("open", issuer.signed(b"[]"))
    tokens["content is no JSON"] = ("open", issuer.signed(b"{"))
    tokens["no key id"] = ("open", issuer.signed(b'{"sub":"ann","iat":1,"exp":9999999999}', kid=None))
    tokens["unknown header"] = ("open", issuer.signed(b'{"sub":"ann","iat":1,"exp":9999999999}', nonce="n"))
    tokens["no token"] = ("open", "abc")
    return issuer, tokens


@pytest.fixture(scope="module")
def kafkas(
    cases: tuple[TokenIssuer, dict[str, tuple[str, str]]], tmp_path_factory: pytest.TempPathFactory, kafka_jars: None
) -> dict[str, str]:
    issuer, tokens = cases
    url = issuer.write_keys(tmp_path_factory.mktemp("issuer") / "keys.json")
    command = kafka.tool_command(str(Path(__file__).parent / "JudgeTokens.java"), url)
    lines = "".join(f"{strictness} {token}\n" for strictness, token in tokens.values())
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=110, check=False)
    answers = [line for line in done.stdout.splitlines() if line.startswith(("accepted", "refused"))]
    assert len(answers) == len(tokens), done.stdout + done.stderr
    return dict(zip(tokens, answers))


def penstocks(issuer: TokenIssuer, strictness: str, token: str) -> str:
    keys = read_keys(json.dumps({"keys": [issuer.public_key()]}).encode())
    try:
        found = check_claims(keys.claims(token), RULES[strictness], time.time())
    except TokenError:
        return "refused"
    return f"accepted {found.subject} {found.expires_ms}"


def test_access_tokens_are_accepted_and_refused_as_in_kafka(
    cases: tuple[TokenIssuer, dict[str, tuple[str, str]]], kafkas: dict[str, str]
) -> None:
    issuer, tokens = cases
    ours = {name: penstocks(issuer, strictness, token) for name, (strictness, token) in tokens.items()}
    assert {name: (ours[name], kafkas[name]) for name in tokens if ours[name] != kafkas[name]} == {}
    assert ours["valid"].startswith("accepted ann")
