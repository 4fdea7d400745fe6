"""Tests SASL exchanges: the RFC's example, client with server, wrong and malicious messages."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security import delegation_tokens
from penstock.security.delegation_tokens import TokenCredential, TokenLookup
from penstock.security.errors import SaslError
from penstock.security.jaas import parse_jaas
from penstock.security.plain import PlainServer, plain_message
from penstock.security.sasl_server import SaslServer, SaslState
from penstock.security.scram import (
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    credential_of,
    credential_of_nobody,
    salted_password,
    secret_of_nobody,
)

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
SECRET = b"node secret"


def credential(
    mechanism: ScramMechanism, password: str, salt: bytes = b"some salt", rounds: int = 4096
) -> ScramCredential:
    return credential_of(mechanism, salt, salted_password(mechanism, password, salt, rounds), rounds)


def server(mechanism: ScramMechanism = SHA_256, **users: str) -> ScramServer:
    known = {name: credential(mechanism, password) for name, password in users.items()}
    return ScramServer(mechanism, known.get, "servernonce", SECRET)


def test_scram_exchange_has_the_messages_of_the_example_in_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    keys = credential(SHA_256, "pencil", salt)
    client = ScramClient(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    peer = ScramServer(SHA_256, {"user": keys}.get, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", SECRET)
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    first = peer.step(client.first())
    assert first == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = client.step(first)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    answer = peer.step(final)
    assert answer == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert client.step(answer) is None
    assert (client.done, peer.user) == (True, "user")


@given(
    st.sampled_from(tuple(ScramMechanism)),
    st.text(min_size=1, max_size=8).filter(lambda name: "\0" not in name),
    st.text(max_size=8),
)
def test_scram_client_and_server_authenticate_each_other_with_any_user_name_and_password(
    mechanism: ScramMechanism, user: str, password: str
) -> None:
    client = ScramClient(mechanism, user, password, "clientnonce")
    peer = server(mechanism, **{user: password})
    final = client.step(peer.step(client.first()))
    assert final is not None
    assert client.step(peer.step(final)) is None
    assert peer.user == user


def test_wrong_password_and_unknown_user_fail_with_the_same_messages() -> None:
    def attempt(user: str, password: str) -> tuple[str, str]:
        client = ScramClient(SHA_256, user, password, "clientnonce")
        peer = server(ann="right")
        first = peer.step(client.first())
        final = client.step(first)
        assert final is not None
        with pytest.raises(SaslError) as refused:
            peer.step(final)
        assert peer.user is None
        return first.decode().partition(",s=")[0], str(refused.value)

    assert attempt("ann", "wrong") == attempt("bob", "wrong") == attempt("bob", "right")


def test_unknown_user_gets_the_same_salt_each_time() -> None:
    firsts = {server().step(ScramClient(SHA_256, "bob", "x", "n").first()) for _ in range(2)}
    assert len(firsts) == 1


def test_salt_and_iterations_of_an_unknown_user_look_like_those_of_a_known_user() -> None:
    known = {"ann": credential(SHA_256, "x", b"s" * 25, 8192)}
    peer = ScramServer(SHA_256, known.get, "servernonce", SECRET, [(25, 8192)])
    first = peer.step(ScramClient(SHA_256, "bob", "x", "n").first()).decode()
    salt = first.partition(",s=")[2].partition(",")[0]
    assert (len(base64.b64decode(salt)), first.rpartition("i=")[2]) == (25, "8192")


def test_salt_and_iterations_of_an_unknown_token_look_like_those_of_a_known_token() -> None:
    token = TokenLookup(TokenCredential(SHA_256, "cluster secret", "known"), "ann", 0)

    def shape(token_id: str) -> tuple[int, str]:
        peer = ScramServer(SHA_256, lambda user: None, "servernonce", SECRET, [(25, 8192)], {"known": token}.get)
        first = peer.step(ScramClient(SHA_256, token_id, "x", "n", "tokenauth=true").first()).decode()
        salt = first.partition(",s=")[2].partition(",")[0]
        return len(base64.b64decode(salt)), first.rpartition("i=")[2]

    assert shape("unknown") == shape("known")


@pytest.mark.parametrize("other", ["ANN", "Ann", "bob", "ann "])
def test_scram_authorization_id_has_to_be_the_user_name_in_the_same_case(other: str) -> None:
    with pytest.raises(SaslError, match="authorization id"):
        server(ann="secret").step(f"n,a={other},n=ann,r=nonce".encode())
    assert server(ann="secret").step(b"n,a=ann,n=ann,r=nonce").startswith(b"r=nonce")


def test_scram_first_response_for_a_known_token_computes_no_password_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counting(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
        hashed.append(salt)
        return salted_password(mechanism, password, salt, iterations)

    monkeypatch.setattr(delegation_tokens, "salted_password", counting)
    token = TokenLookup(TokenCredential(SHA_256, "cluster secret", "known"), "ann", 0)
    password = delegation_tokens.token_password("cluster secret", "known")
    for _ in range(2):
        client = ScramClient(SHA_256, "known", password, "n", "tokenauth=true")
        peer = ScramServer(SHA_256, lambda user: None, "servernonce", SECRET, (), {"known": token}.get)
        before = len(hashed)
        first = peer.step(client.first())
        assert len(hashed) == before
        final = client.step(first)
        assert final is not None
        peer.step(final)
        assert peer.user == "ann"
    assert len(hashed) == 1


def test_fake_salt_of_an_unknown_user_depends_only_on_cluster_and_secret_and_name() -> None:
    def salt(cluster_id: str, key: str | None, name: str) -> bytes:
        return credential_of_nobody(SHA_256, secret_of_nobody(cluster_id, key), name, ()).salt

    assert salt("one", None, "bob") == salt("one", None, "bob")
    others = {salt("two", None, "bob"), salt("one", "k", "bob"), salt("one", "k", "x")}
    assert len(others - {salt("one", None, "bob")}) == 3


def test_scram_final_message_with_another_nonce_is_refused_even_with_a_correct_proof() -> None:
    peer = server(ann="secret")
    client = ScramClient(SHA_256, "ann", "secret", "clientnonce")
    first = peer.step(client.first())
    peer._nonce = "another"  # as if the client had answered another exchange
    final = client.step(first)
    assert final is not None
    with pytest.raises(SaslError, match="Invalid credentials"):
        peer.step(final)


def test_scram_nonce_that_is_not_ascii_fails_like_a_wrong_nonce() -> None:
    sasl = SaslServer({"SCRAM-SHA-256": lambda: server(ann="secret")})
    sasl.handshake("SCRAM-SHA-256")
    sasl.token(ScramClient(SHA_256, "ann", "secret", "n").first())
    with pytest.raises(SaslError):
        sasl.token("c=biws,r=é,p=".encode() + base64.b64encode(bytes(32)))
    assert sasl.state is SaslState.FAILED


def test_scram_client_refuses_a_server_that_cannot_prove_that_it_knows_the_password() -> None:
    client = ScramClient(SHA_256, "ann", "secret", "clientnonce")
    final = client.step(server(ann="secret").step(client.first()))
    assert final is not None
    with pytest.raises(SaslError, match="impostor"):
        client.step(b"v=" + base64.b64encode(bytes(32)))


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"p=tls-unique,,n=ann,r=x",
        b"n,,m=ext,n=ann,r=x",
        b"n,,n=,r=x",
        b"n,,n=a=b,r=x",
        b"n,,n=ann,r=",
        b"n,,n=ann,r=a b",
        b"n,a=bob,n=ann,r=x",
        b"n,,r=x,n=ann",
        b"\xff",
        b"n,,n=ann,r=" + b"x" * 9_000,
    ],
)
def test_malformed_scram_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(SaslError):
        server(ann="secret").step(first)


@pytest.mark.parametrize(
    "change",
    [
        lambda final: final.replace(b"clientnonce", b"othernonce!"),
        lambda final: final.replace(b"c=biws", b"c=AAAA"),
        lambda final: final[: final.index(b",p=")],
        lambda final: final[:-4] + b"AAA=",
        lambda final: final[:-4] + b"!!!!",
        lambda final: final[: final.index(b",p=")] + b",p=AAAA",
    ],
)
def test_changed_scram_final_message_is_refused(change: Callable[[bytes], bytes]) -> None:
    client, peer = ScramClient(SHA_256, "ann", "secret", "clientnonce"), server(ann="secret")
    final = client.step(peer.step(client.first()))
    assert final is not None
    with pytest.raises(SaslError):
        peer.step(change(final))
    assert peer.user is None


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_random_messages_never_authenticate_a_client(first: bytes, final: bytes) -> None:
    sasl = SaslServer({"SCRAM-SHA-256": lambda: server(ann="secret")})
    sasl.handshake("SCRAM-SHA-256")
    for message in (first, final):
        with contextlib.suppress(SaslError):
            sasl.token(message)
    assert sasl.user is None


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (plain_message("ann", "wrong"), "Invalid username or password"),
        (plain_message("bob", "secret"), "Invalid username or password"),
        (b"\0ann", "fields"),
        (b"bob\0ann\0secret", "authorization id"),
        (b"ANN\0ann\0secret", "authorization id"),
        (b"Ann\0ann\0secret", "authorization id"),
        (plain_message("ann", ""), "no password"),
        (b"\0\xff\0x", "UTF-8"),
        (b"x" * 10_000, "too long"),
    ],
)
def test_plain_refuses_invalid_messages_and_wrong_passwords(message: bytes, reason: str) -> None:
    peer = PlainServer({"ann": "secret"})
    with pytest.raises(SaslError, match=reason):
        peer.step(message)
    assert peer.user is None


def plain_listener() -> SaslServer:
    return SaslServer(
        {"PLAIN": lambda: PlainServer({"ann": "a", "bob": "b"}), "OTHER": lambda: PlainServer({"ann": "a"})}
    )


def test_sasl_handshake_and_valid_token_authenticate_the_user() -> None:
    sasl = plain_listener()
    assert not sasl.handshake("GSSAPI")
    assert sasl.handshake("PLAIN")
    assert sasl.token(plain_message("ann", "a")) == b""
    assert (sasl.state, sasl.user) == (SaslState.DONE, "ann")


def test_sasl_token_before_the_handshake_is_refused() -> None:
    sasl = plain_listener()
    with pytest.raises(SaslError, match="before SaslHandshake"):
        sasl.token(b"x")
    assert sasl.state is SaslState.FAILED


def test_reauthentication_must_keep_user_and_mechanism() -> None:
    sasl = plain_listener()
    sasl.handshake("PLAIN")
    sasl.token(plain_message("ann", "a"))
    assert sasl.handshake("PLAIN")
    sasl.token(plain_message("ann", "a"))
    sasl.handshake("PLAIN")
    with pytest.raises(SaslError, match="may not change its user"):
        sasl.token(plain_message("bob", "b"))
    again = plain_listener()
    again.handshake("PLAIN")
    again.token(plain_message("ann", "a"))
    with pytest.raises(SaslError, match="only with PLAIN"):
        again.handshake("OTHER")


def test_sasl_exchange_with_too_many_messages_is_ended() -> None:
    class Endless:
        user = None
        expires_ms = None
        refusal = None

        def step(self, message: bytes) -> bytes:
            return b"more"

    sasl = SaslServer({"X": Endless})
    sasl.handshake("X")
    for _ in range(10):
        sasl.token(b"")
    with pytest.raises(SaslError, match="more than 10 messages"):
        sasl.token(b"")


def test_jaas_line_is_parsed_into_a_module_and_its_options() -> None:
    entry = parse_jaas(
        "org.apache.kafka.common.security.plain.PlainLoginModule required\n"
        ' username="admin" password="a\\"b=c;d" user_ann="x y";'
    )
    assert (entry.name, entry.options["password"]) == ("PlainLoginModule", 'a"b=c;d')
    assert entry.passwords == {"ann": "x y"}
    assert "x y" not in repr(entry)


@pytest.mark.parametrize(
    "text", ["", ";", "Module;", "Module required", 'Module always a="b";', 'M required a="b;', "M required a b;"]
)
def test_error_for_an_invalid_jaas_line_does_not_contain_its_values(text: str) -> None:
    with pytest.raises(ValueError, match=r"the (line|options) ") as refused:
        parse_jaas(text)
    assert '"b' not in str(refused.value)
