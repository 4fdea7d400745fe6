"""Tests OAUTHBEARER: the messages of RFC 7628, the claims of a token, and its signature."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

import pytest
from joserfc import jwk

from penstock.security.bearer_tokens import BearerToken, TokenError, TokenRules, check_claims, strict_object
from penstock.security.errors import SaslError
from penstock.security.oauthbearer import (
    MAX_MESSAGE_BYTES,
    REFUSED,
    OAuthBearerClient,
    OAuthBearerServer,
    first_message,
    parse_first,
)
from penstock.security.sasl_server import SaslServer, SaslState
from penstock.security.token_signatures import MAX_KEYS, TokenKeys, UnknownKeyError, read_keys
from penstock.testing.tokens import TokenIssuer

NOW = 1_800_000_000
CLAIMS = {"sub": "ann", "iat": NOW - 10, "exp": NOW + 100}
RULES = TokenRules()


# --- messages ---------------------------------------------------------------------------------------


def test_token_and_authorization_id_are_parsed_from_the_first_oauthbearer_message() -> None:
    assert parse_first(first_message("a.b-c._d")) == ("a.b-c._d", "")
    extended = b"n,a=ann=2Cof=3Dit,\x01host=example.com\x01auth=bearer   t0k\x01traceId=12 3\x01\x01"
    assert parse_first(extended) == ("t0k", "ann,of=it")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer t\x01\x01",
        b"n,ann,\x01auth=Bearer t\x01\x01",
        b"n,,\x01auth=Bearer t\x01",
        b"n,,\x01auth=Bearer t\x01\x01\x01",
        b"n,,\x01auth=Basic t\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer t t\x01\x01",
        b"n,,\x01auth=Bearer t\x01auth=Bearer u\x01\x01",
        b"n,,\x01auth=Bearer t\x01na_me=x\x01\x01",
        b"n,,\x01auth=Bearer t\x01name=\x01\x01",
        b"n,,\x01host=x\x01\x01",
        b"n,,\x01auth=Bearer \xc3\xa4\x01\x01",
        b"\xff" * 100,
    ],
)
def test_malformed_first_oauthbearer_message_is_refused(message: bytes) -> None:
    with pytest.raises(SaslError, match="OAUTHBEARER message"):
        parse_first(message)


def test_oversize_first_oauthbearer_message_is_refused_before_it_is_parsed() -> None:
    fits = first_message("t" * (MAX_MESSAGE_BYTES - len(first_message(""))))
    assert len(fits) == MAX_MESSAGE_BYTES
    assert parse_first(fits).token
    with pytest.raises(SaslError, match="too long"):
        parse_first(first_message("t" * MAX_MESSAGE_BYTES))


# --- exchange ---------------------------------------------------------------------------------------


def check(token: str) -> BearerToken:
    if token != "good":
        raise TokenError("the token has expired")
    return BearerToken("ann", 5_000)


def test_valid_token_authenticates_its_subject_until_it_expires() -> None:
    sasl = SaslServer({"OAUTHBEARER": lambda: OAuthBearerServer(check)})
    assert sasl.handshake("OAUTHBEARER")
    assert sasl.token(OAuthBearerClient("good").first()) == b""
    assert (sasl.state, sasl.user, sasl.expires_ms) == (SaslState.DONE, "ann", 5_000)


@pytest.mark.parametrize("reply", [b"\x01", b"", first_message("good")])
def test_refused_token_gets_the_error_status_and_ends_the_sasl_exchange(reply: bytes) -> None:
    sasl = SaslServer({"OAUTHBEARER": lambda: OAuthBearerServer(check)})
    sasl.handshake("OAUTHBEARER")
    client = OAuthBearerClient("bad")
    status = sasl.token(client.first())
    assert json.loads(status) == {"status": "invalid_token"}
    assert client.step(status) == b"\x01"
    assert (sasl.state, sasl.user, sasl.refusal) == (SaslState.EXCHANGE, None, "the token has expired")
    with pytest.raises(SaslError) as failed:
        sasl.token(reply)
    assert (str(failed.value), failed.value.reason) == (REFUSED, "the token has expired")
    assert (sasl.state, sasl.user) == (SaslState.FAILED, None)


def test_authorization_id_must_be_the_subject_of_the_token() -> None:
    accepted = OAuthBearerServer(check)
    assert accepted.step(b"n,a=ann,\x01auth=Bearer good\x01\x01") == b""
    assert accepted.user == "ann"
    refused = OAuthBearerServer(check)
    with pytest.raises(SaslError, match="differs from the token's subject"):
        refused.step(b"n,a=admin,\x01auth=Bearer good\x01\x01")
    assert refused.user is None


@pytest.mark.parametrize("token", ["", "two words", "a\x01auth=Bearer b", "ä"])
def test_oauthbearer_client_refuses_an_empty_token_and_a_token_with_invalid_characters(
    token: str,
) -> None:
    with pytest.raises(SaslError, match="access token is empty or has characters"):
        OAuthBearerClient(token)


# --- claims -----------------------------------------------------------------------------------------


def test_subject_and_expiry_time_and_scopes_are_read_from_the_claims_of_a_token() -> None:
    claims = {**CLAIMS, "scope": ["read", "write"]}
    assert check_claims(claims, RULES, NOW) == BearerToken("ann", (NOW + 100) * 1000, frozenset({"read", "write"}))
    renamed = TokenRules(subject_claim="client_id", scope_claim="scp")
    found = check_claims({**CLAIMS, "client_id": " job ", "scp": "all"}, renamed, NOW)
    assert (found.subject, found.scopes) == ("job", frozenset({"all"}))


@pytest.mark.parametrize(
    ("claim", "subject"),
    [
        (" ann\t", "ann"),
        ("\x00ann\x1f", "ann"),
        ("\u00a0ann", "\u00a0ann"),
        ("\u2003ann\u3000", "\u2003ann\u3000"),
        ("\u0085ann", "\u0085ann"),
    ],
)
def test_subjects_that_differ_only_in_non_ascii_spaces_are_different_principals(claim: str, subject: str) -> None:
    assert check_claims({**CLAIMS, "sub": claim}, RULES, NOW).subject == subject


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": NOW - 30}, "expired"),
        ({"exp": None}, "exp or iat is missing"),
        ({"iat": None}, "exp or iat is missing"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iat": NOW + 200}, "expires before its validity begins"),
        ({"exp": True}, "exp is not a time"),
        ({"exp": "9999999999"}, "exp is not a time"),
        ({"exp": -1}, "exp is not a time"),
        ({"exp": 10**400}, "exp is not a time"),
        ({"exp": float("inf")}, "exp is not a time"),
        ({"exp": float("nan")}, "exp is not a time"),
        ({"aud": "other"}, "expected.audience is not set"),
        ({"sub": None}, "names no subject"),
        ({"sub": "  "}, "names no subject"),
        ({"sub": ["ann"]}, "names no subject"),
        ({"scope": ["a", "a"]}, "scopes"),
        ({"scope": [1]}, "scopes"),
        ({"scope": " "}, "scopes"),
    ],
)
def test_token_with_wrong_claims_is_refused(claims: dict[str, Any], reason: str) -> None:
    with pytest.raises(TokenError, match=reason):
        check_claims({**CLAIMS, **claims}, RULES, NOW)


def test_clock_skew_is_tolerated_at_the_start_and_at_the_end_of_a_token_lifetime() -> None:
    assert check_claims({**CLAIMS, "iat": NOW - 500, "exp": NOW - 29}, RULES, NOW).subject == "ann"
    assert check_claims({**CLAIMS, "nbf": NOW + 30}, RULES, NOW).subject == "ann"
    with pytest.raises(TokenError, match="expired"):
        check_claims({**CLAIMS, "exp": NOW}, TokenRules(skew_s=0), NOW)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({}, "aud is missing"),
        ({"aud": "other"}, "audience is not the expected audience"),
        ({"aud": ["kafka", 7]}, "aud is missing or is not a list"),
        ({"aud": {"kafka": 1}}, "aud is missing or is not a list"),
        ({"aud": []}, "audience is not the expected audience"),
        ({"aud": "kafka"}, "issuer"),
        ({"aud": "kafka", "iss": "https://evil.example"}, "issuer"),
        ({"aud": "kafka", "iss": ["https://issuer.example"]}, "issuer"),
    ],
)
def test_token_with_an_unexpected_audience_or_issuer_is_refused(claims: dict[str, Any], reason: str) -> None:
    rules = TokenRules(audiences=frozenset({"kafka", "logs"}), issuer="https://issuer.example")
    accepted = {**CLAIMS, "aud": ["x", "logs"], "iss": "https://issuer.example"}
    assert check_claims(accepted, rules, NOW).subject == "ann"
    with pytest.raises(TokenError, match=reason):
        check_claims({**CLAIMS, **claims}, rules, NOW)


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"null", b"{", b"\xff", b'{"a":1,"a":2}', b'{"exp":Infinity}', b'{"a":' + b"[" * 100_000, b"9" * 5000],
)
def test_invalid_and_ambiguous_json_of_a_token_is_refused(text: bytes) -> None:
    with pytest.raises(TokenError, match="JSON"):
        strict_object(text, "text")


# --- signatures -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rsa() -> TokenIssuer:
    return TokenIssuer("rsa-1")


@pytest.fixture(scope="module")
def curve() -> TokenIssuer:
    return TokenIssuer("ec-1", "ES256")


@pytest.fixture(scope="module")
def keys(rsa: TokenIssuer, curve: TokenIssuer) -> TokenKeys:
    return key_set(rsa.public_key(), curve.public_key())


def key_set(*entries: object) -> TokenKeys:
    return read_keys(json.dumps({"keys": entries}).encode())


def b64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def test_tokens_signed_with_rsa_and_ec_keys_are_verified(rsa: TokenIssuer, curve: TokenIssuer, keys: TokenKeys) -> None:
    assert keys.claims(rsa.token("ann"))["sub"] == "ann"
    assert keys.claims(curve.token("bob"))["sub"] == "bob"
    assert keys.claims(rsa.signed(b'{"sub":"x"}', kid=None, x5t="abc", nonce="n"))["sub"] == "x"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE"])
def test_unsigned_token_is_refused(keys: TokenKeys, algorithm: str) -> None:
    header, content = b64(json.dumps({"alg": algorithm}).encode()), b64(json.dumps(CLAIMS).encode())
    with pytest.raises(TokenError, match="not a signed JWT"):
        keys.claims(f"{header}.{content}.")
    with pytest.raises(TokenError, match="algorithm that is not accepted"):
        keys.claims(f"{header}.{content}.{b64(b'x')}")


def test_token_whose_hmac_was_made_with_the_public_key_is_refused(rsa: TokenIssuer, keys: TokenKeys) -> None:
    content = b64(json.dumps(CLAIMS).encode())
    for kid in (rsa.kid, None):
        header = b64(json.dumps({"alg": "HS256", "kid": kid} if kid else {"alg": "HS256"}).encode())
        for secret in (rsa.key.as_pem(private=False), json.dumps(rsa.public_key()).encode()):
            mac = hmac.new(secret, f"{header}.{content}".encode(), hashlib.sha256).digest()
            with pytest.raises(TokenError, match="algorithm that is not accepted"):
                keys.claims(f"{header}.{content}.{b64(mac)}")


def test_key_set_skips_hmac_keys(rsa: TokenIssuer) -> None:
    shared = {"kty": "oct", "k": b64(b"s" * 32), "kid": "shared"}
    assert key_set(rsa.public_key(), shared).skipped == 1
    with pytest.raises(TokenError, match="no RSA or EC key"):
        key_set(shared)


def test_token_signed_by_another_key_with_the_same_key_id_is_refused(keys: TokenKeys) -> None:
    with pytest.raises(TokenError, match="signature is wrong"):
        keys.claims(TokenIssuer("rsa-1").token("admin"))


def test_token_with_an_unknown_key_id_is_refused(rsa: TokenIssuer, keys: TokenKeys) -> None:
    with pytest.raises(UnknownKeyError, match="no such key"):
        keys.claims(rsa.signed(b"{}", kid="rsa-2"))
    with pytest.raises(UnknownKeyError, match="no such key"):  # the id of a key of another type
        keys.claims(rsa.signed(b"{}", kid="ec-1"))
    with pytest.raises(TokenError, match="key id is not a string"):
        keys.claims(f"{b64(json.dumps({'alg': 'RS256', 'kid': {}}).encode())}.e30.eA")


def test_token_without_a_key_id_is_refused_if_several_keys_fit(rsa: TokenIssuer) -> None:
    with pytest.raises(UnknownKeyError, match="several keys"):
        key_set(rsa.public_key(), TokenIssuer("rsa-2").public_key()).claims(rsa.signed(b"{}", kid=None))


def test_key_that_declares_an_algorithm_is_used_only_for_this_algorithm(rsa: TokenIssuer, keys: TokenKeys) -> None:
    other = TokenIssuer("rsa-1", "PS256")
    other.key = jwk.RSAKey.import_key({**rsa.key.as_dict(private=True), "alg": "PS256"})
    with pytest.raises(UnknownKeyError):
        keys.claims(other.signed(b"{}"))
    with pytest.raises(TokenError):
        key_set({**rsa.public_key(), "use": "enc"})


@pytest.mark.parametrize("part", [0, 1, 2])
def test_token_changed_after_it_was_signed_is_refused(rsa: TokenIssuer, keys: TokenKeys, part: int) -> None:
    parts = rsa.token("ann").split(".")
    changed = parts[part]
    middle = len(changed) // 2
    parts[part] = changed[:middle] + ("A" if changed[middle] != "A" else "B") + changed[middle + 1 :]
    with pytest.raises(TokenError):
        keys.claims(".".join(parts))


@pytest.mark.parametrize(
    "token",
    [
        "",
        "...",
        "a.b",
        "a.b.c",
        "a.b.c.d.e",
        "a.b.c=",
        "e30.e30.e30",
        f"{b64(b'[]')}.e30.e30",
        f"{b64(b'[' * 4000)}.e30.e30",
        f"{'e' * 9000}.e30.e30",
        "é.e30.e30",
        f"{b64(json.dumps({'alg': ['RS256']}).encode())}.e30.e30",
        f"{b64(json.dumps({'alg': 'RS256', 'crit': ['exp'], 'exp': 1}).encode())}.e30.e30",
        f"{b64(json.dumps({'alg': 'RS256', 'b64': False}).encode())}.e30.e30",
    ],
)
def test_malformed_token_is_refused(keys: TokenKeys, token: str) -> None:
    with pytest.raises(TokenError):
        keys.claims(token)


@pytest.mark.parametrize("field", [{"crit": ["exp"], "exp": 1}, {"crit": []}, {"b64": False}])
def test_token_whose_header_requires_an_unsupported_extension_is_refused(
    keys: TokenKeys, field: dict[str, Any]
) -> None:
    header = b64(json.dumps({"alg": "RS256", "kid": "rsa-1", **field}).encode())
    with pytest.raises(TokenError, match="demands an extension"):
        keys.claims(f"{header}.e30.e30")


def test_token_signed_with_the_key_in_its_own_header_is_refused(rsa: TokenIssuer, keys: TokenKeys) -> None:
    attacker = TokenIssuer("rsa-1")
    with pytest.raises(TokenError, match="signature is wrong"):
        keys.claims(attacker.signed(b"{}", jwk=attacker.public_key()))


def test_key_set_with_too_many_keys_is_refused_and_unusable_keys_are_skipped(rsa: TokenIssuer) -> None:
    small = {**rsa.public_key(), "kid": "small", "n": b64(b"\xc1" * 128)}
    junk: list[object] = [small, 7, {}, {"kty": "RSA"}, {"kty": "RSA", "n": 1, "e": "AQAB"}, {"kty": "EC", "crv": "x"}]
    junk += [{"kty": "AKP"}, {**rsa.public_key(), "kid": 5}]
    found = key_set(rsa.public_key(), *junk)
    assert (len(found), found.skipped) == (1, len(junk))
    with pytest.raises(TokenError, match="at most"):
        key_set(*[rsa.public_key()] * (MAX_KEYS + 1))
    for document in (b"{}", b'{"keys":{}}', b'{"keys":[]}', b"not json"):
        with pytest.raises(TokenError, match="JWK set"):
            read_keys(document)


def test_key_set_drops_the_private_part_of_a_key(rsa: TokenIssuer) -> None:
    keys = key_set(rsa.key.as_dict(private=True))
    assert keys.claims(rsa.token("ann"))["sub"] == "ann"
    assert not any(key.is_private for key in keys._keys)
