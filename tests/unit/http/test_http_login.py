"""Tests HTTP logins without a node: any header gets an answer, and known and unknown users take equal work."""

from __future__ import annotations

import asyncio
import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.http.login import LoginRules, RequestLogin
from penstock.http.messages import Peer, Request, Response
from penstock.security import scram
from penstock.security.bearer_tokens import BearerToken, TokenError
from penstock.security.passwords import PasswordUsers
from penstock.security.scram import ScramCredential, ScramMechanism, credential_of, salted_password

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    return credential_of(mechanism, b"salt", salted_password(mechanism, password, b"salt", 4096), 4096)


EVE, BOB = credential(SHA_512, "eve's"), credential(SHA_256, "bob's")


def users(name: str) -> PasswordUsers:
    """Returns the only users: ann with PLAIN, eve with SCRAM-SHA-512 and bob with SCRAM-SHA-256."""
    known = {SHA_256: BOB if name == "bob" else None, SHA_512: EVE if name == "eve" else None}
    return PasswordUsers(name, "ann's" if name == "ann" else None, known, {})


def check_token(token: str) -> BearerToken:
    if token != "right":
        raise TokenError("it is wrong")
    return BearerToken("tom", 0)


def identified(header: str, rules: LoginRules | None = None) -> str | int:
    """Returns the principal, or the status of the refusal."""

    async def run() -> str | Response:
        login = RequestLogin(rules or LoginRules(b"secret", lambda: b"nobody", 0.0, users, check_token))
        try:
            return await login.identify(Request("GET", "/", authorization=header, peer=Peer("10.0.0.1")))
        finally:
            login.close()

    found = asyncio.run(run())
    return found if isinstance(found, str) else found.status


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("header", "principal"),
    [
        (basic("ann", "ann's"), "User:ann"),
        (basic("eve", "eve's"), "User:eve"),
        (basic("bob", "bob's").replace("Basic", "bASIC"), "User:bob"),
        ("Bearer right", "User:tom"),
        (basic("ann", "eve's"), 401),
        (basic("eve", "bob's"), 401),
        (basic("", "ann's"), 401),
        ("", 401),
    ],
)
def test_http_request_with_valid_credentials_is_accepted_and_with_wrong_credentials_gets_401(
    header: str, principal: str | int
) -> None:
    assert identified(header) == principal


@given(
    st.one_of(
        st.text(st.characters(max_codepoint=255), max_size=50), st.builds("Basic {}".format, st.text("Yc09=+/: "))
    )
)
def test_random_authorization_headers_get_401(header: str) -> None:
    assert identified(header) == 401


@given(st.binary(max_size=40))
def test_random_content_of_a_basic_authorization_header_gets_401(content: bytes) -> None:
    assert identified("Basic " + base64.b64encode(content).decode()) == 401


@pytest.mark.parametrize("user", ["ann", "eve", "bob", "nobody"])
def test_check_of_a_wrong_password_computes_the_same_hashes_for_known_and_unknown_users(
    user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[tuple[ScramMechanism, int]] = []

    def counting(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
        hashed.append((mechanism, iterations))
        return salted_password(mechanism, password, salt, iterations)

    monkeypatch.setattr(scram, "salted_password", counting)
    assert identified(basic(user, "wrong")) == 401
    assert sorted(hashed) == [(SHA_256, 4096), (SHA_512, 4096)]


def test_every_http_caller_is_anonymous_if_no_login_mechanism_is_configured() -> None:
    rules = LoginRules(b"secret", lambda: b"nobody", 0.0)
    assert identified(basic("ann", "x"), rules) == "User:ANONYMOUS"


def test_repr_of_login_rules_and_credentials_contains_no_secret() -> None:
    shown = repr(LoginRules(b"process-secret", lambda: b"nobody", 0.0)) + repr(users("ann")) + repr(users("eve"))
    assert "process-secret" not in shown
    assert "ann's" not in shown
    assert repr(EVE.stored_key) not in shown
