"""Tests OAUTHBEARER on a running node: sessions that end with their token, renewed keys, and invalid settings."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from penstock.client.client_security import credentials_of
from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.client.login import AnyLogin, TokenLogin
from penstock.client.token_sources import ENDPOINT, MAX_ANSWER_BYTES
from penstock.disk.memory import MemoryDisk
from penstock.net.network import RealNetwork
from penstock.net.web import Document, FetchError
from penstock.node import oauth_listener
from penstock.node.listeners import ListenerError
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_03_metadata import MetadataRequest
from penstock.protocol.messages.api_17_sasl_handshake import SaslHandshakeRequest
from penstock.protocol.messages.api_36_sasl_authenticate import SaslAuthenticateRequest
from penstock.security.oauthbearer import first_message
from penstock.testing.tokens import TokenIssuer

URL = "sasl.oauthbearer.jwks.endpoint.url"
USERS = 'x.PlainLoginModule required username="admin" password="a" user_admin="a";'
SECURED = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
    "listener.name.sasl_plaintext.oauthbearer.sasl.server.callback.handler.class": "org.apache.kafka.common.security."
    "oauthbearer.OAuthBearerValidatorCallbackHandler",
    "connection.failed.authentication.delay.ms": "0",
}


@pytest.fixture(scope="module")
def issuer() -> TokenIssuer:
    return TokenIssuer()


@pytest.fixture
def keys_url(issuer: TokenIssuer, tmp_path: Path) -> str:
    return issuer.write_keys(tmp_path / "keys.json")


def with_node(scenario: Callable[[Node, int], Awaitable[None]], url: str, **more: str) -> None:
    async def main() -> None:
        overrides = {**SECURED, URL: url, **{name.replace("_", "."): value for name, value in more.items()}}
        node = make_node(local_settings("/data", port=0, overrides=overrides), MemoryDisk(), seed=1)
        format_if_new(node)
        await node.start()
        try:
            await scenario(node, int(node.bootstrap.rpartition(":")[2]))
        finally:
            await node.stop()

    asyncio.run(asyncio.wait_for(main(), 120))


async def connect(port: int, login: AnyLogin | None) -> BrokerConnection:
    return await BrokerConnection.open(RealNetwork(), "127.0.0.1", port, ConnectionSettings(login=login))


async def served(port: int, login: AnyLogin) -> None:
    connection = await connect(port, login)
    assert (await connection.request(MetadataRequest(topics=None))).topics == []
    connection.close()


async def refused(port: int, token: str) -> str:
    with pytest.raises(KafkaError) as error:
        await connect(port, TokenLogin(lambda: token))
    assert error.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    assert token not in str(error.value)
    return str(error.value)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the node does it, and tells nobody
            await asyncio.sleep(0.01)


async def authenticate(peer: BrokerConnection, token: str) -> Any:
    chosen = await peer.request(SaslHandshakeRequest(mechanism="OAUTHBEARER"), version=1)
    assert chosen.error_code == 0
    return await peer.request(SaslAuthenticateRequest(auth_bytes=first_message(token)))


def test_client_with_a_valid_token_is_served_and_clients_with_invalid_tokens_are_refused(
    issuer: TokenIssuer, keys_url: str
) -> None:
    async def scenario(node: Node, port: int) -> None:
        await served(port, TokenLogin(lambda: issuer.token("ann")))
        assert "the access token" in await refused(port, issuer.token("ann", lifetime_s=-100))
        assert "invalid_token" in await refused(port, TokenIssuer().token("ann"))
        with pytest.raises(KafkaError, match="its source failed with KeyError"):
            await connect(port, TokenLogin(lambda: {"a": "b"}["s3cret"]))

    with_node(scenario, keys_url)


def test_session_ends_when_its_token_expires_unless_the_client_sends_a_new_token(
    issuer: TokenIssuer, keys_url: str
) -> None:
    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, None)
        answer = await authenticate(peer, issuer.token("ann", lifetime_s=100))
        assert answer.error_code == 0
        assert 90_000 < answer.session_lifetime_ms <= 100_000
        answer = await authenticate(peer, issuer.token("ann", lifetime_s=1000))
        assert 990_000 < answer.session_lifetime_ms <= 1_000_000
        peer.close()
        peer = await connect(port, TokenLogin(lambda: issuer.token("ann")))
        answer = await authenticate(peer, issuer.token("bob"))
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        await peer.wait_closed()
        late = await connect(port, None)
        # The clock skew lets an expired token in, but its session is over at once.
        answer = await authenticate(late, issuer.token("ann", lifetime_s=-5, iat=0))
        assert (answer.error_code, answer.session_lifetime_ms) == (0, 0)
        with pytest.raises(KafkaError):
            await late.request(MetadataRequest(topics=None))

    with_node(scenario, keys_url)


def test_refused_token_gets_one_audit_line_with_the_reason_and_the_client_gets_no_reason(
    issuer: TokenIssuer, keys_url: str, tmp_path: Path
) -> None:
    async def scenario(node: Node, port: int) -> None:
        token = issuer.token("ann", lifetime_s=-100)
        assert "expired" not in await refused(port, token)
        silent = await connect(port, None)  # it does not acknowledge the error status
        assert json.loads((await authenticate(silent, token)).auth_bytes) == {"status": "invalid_token"}
        silent.close()

    with_node(scenario, keys_url, penstock_audit_file=str(tmp_path / "audit.log"))
    lines = (tmp_path / "audit.log").read_text().splitlines()
    assert [line.count("the token has expired") for line in lines] == [1, 1]
    assert "eyJ" not in "".join(lines)


def test_sasl_session_ends_before_its_token_expires_if_the_listener_sets_a_shorter_lifetime(
    issuer: TokenIssuer, keys_url: str
) -> None:
    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, None)
        assert (await authenticate(peer, issuer.token("ann", lifetime_s=1000))).session_lifetime_ms == 60_000
        peer.close()

    with_node(scenario, keys_url, connections_max_reauth_ms="60000")


def test_node_reads_the_keys_of_the_issuer_again_after_a_token_with_an_unknown_key(
    issuer: TokenIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth_listener, "UNKNOWN_KEY_PAUSE_S", 0.0)
    renewed = TokenIssuer("key-2")
    url = issuer.write_keys(tmp_path / "keys.json")

    async def scenario(node: Node, port: int) -> None:
        source = node._security["SASL_PLAINTEXT"]._tokens._source  # type: ignore[union-attr]
        renewed.write_keys(tmp_path / "keys.json")
        before = source.keys
        await refused(port, renewed.token("ann"))
        await until(lambda: source.keys is not before)
        await served(port, TokenLogin(lambda: renewed.token("ann")))
        await refused(port, issuer.token("ann"))

    with_node(scenario, url)


def test_many_tokens_with_unknown_keys_do_not_make_the_node_read_the_keys_of_the_issuer_again(
    issuer: TokenIssuer, keys_url: str
) -> None:
    async def scenario(node: Node, port: int) -> None:
        source = node._security["SASL_PLAINTEXT"]._tokens._source  # type: ignore[union-attr]
        before = source.keys
        for number in range(5):
            await refused(port, TokenIssuer.signed(issuer, b"{}", kid=f"made-up-{number}"))
        assert source.keys is before
        assert not source._wanted.is_set()

    with_node(scenario, keys_url)


def test_old_keys_of_the_issuer_stay_in_use_while_new_keys_cannot_be_read(
    issuer: TokenIssuer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = issuer.write_keys(tmp_path / "keys.json")

    async def scenario(node: Node, port: int) -> None:
        (tmp_path / "keys.json").write_text("gone")
        await until(lambda: "the old keys stay in use" in caplog.text)
        await served(port, TokenLogin(lambda: issuer.token("ann")))

    with_node(scenario, url, sasl_oauthbearer_jwks_endpoint_refresh_ms="10")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({URL: ""}, f"needs the keys of the issuer: set {URL}"),
        ({URL: "http://issuer.example/keys"}, "is not protected: use https://"),
        ({URL: "ftp://issuer.example/keys"}, "is not a file:// or https:// URL"),
        ({URL: "https:///keys"}, "names no host"),
        ({"sasl.oauthbearer.jwks.endpoint.refresh.ms": "0"}, "refresh.ms to more than 0"),
        ({"sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}, "OAUTHBEARER needs tokens"),
        (
            {
                "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": "x required "
                'ssl.truststore.location="/nowhere";'
            },
            "JAAS line of OAUTHBEARER",
        ),
    ],
)
def test_node_refuses_to_start_with_invalid_settings_of_oauthbearer(
    keys_url: str, overrides: dict[str, str], reason: str
) -> None:
    with pytest.raises(ListenerError, match=reason):
        make_node(local_settings("/data", port=0, overrides={**SECURED, URL: keys_url, **overrides}), MemoryDisk())


def test_error_about_missing_oauthbearer_packages_names_the_extra_to_install(
    keys_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    monkeypatch.delitem(sys.modules, "penstock.security.token_signatures", raising=False)
    with pytest.raises(ListenerError, match=r"^listener SASL_PLAINTEXT: OAUTHBEARER needs .*'penstock\[oauth\]'.*\.$"):
        make_node(local_settings("/data", port=0, overrides={**SECURED, URL: keys_url}), MemoryDisk())


@pytest.mark.parametrize("content", [None, "{}", "x" * (oauth_listener.MAX_KEY_SET_BYTES + 1)])
def test_node_does_not_start_without_the_keys_of_the_issuer(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)

    async def scenario(node: Node, port: int) -> None:
        raise AssertionError("the node has started")

    with pytest.raises(ListenerError, match=f"{URL} can't be used"):
        with_node(scenario, file.as_uri())


# --- issuers over HTTP ------------------------------------------------------------------------------


@contextmanager
def web_server(answer: Callable[[str, dict[str, str], bytes], tuple[int, bytes]]) -> Iterator[str]:
    """Serves requests on a loopback port with `answer`, which gets path, headers and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = answer(self.path, dict(self.headers), body)
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_client_uses_an_access_token_for_most_of_its_lifetime_before_it_gets_a_new_token(issuer: TokenIssuer) -> None:
    asked: list[dict[str, list[str]]] = []
    status = 200

    def answer(path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if path == "/keys":
            return 200, json.dumps({"keys": [issuer.public_key()]}).encode()
        assert headers["Authorization"] == "Basic am9iJTNBMTpzM2NyJTI2dA=="  # job%3A1:s3cr%26t
        asked.append(parse_qs(body.decode()))
        content = {"access_token": issuer.token("job"), "expires_in": 3600}
        return status, json.dumps(content).encode()

    with web_server(answer) as server:
        properties = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            ENDPOINT: f"{server}/token",
            "sasl.oauthbearer.client.credentials.client.id": "job:1",
            "sasl.oauthbearer.client.credentials.client.secret": "s3cr&t",
            "sasl.oauthbearer.scope": "read write",
        }
        login = credentials_of(properties).login
        assert isinstance(login, TokenLogin)

        async def scenario(node: Node, port: int) -> None:
            nonlocal status
            await served(port, login)
            await served(port, login)
            assert asked == [{"grant_type": ["client_credentials"], "scope": ["read write"]}]
            login.source._fresh_until = 0.0  # type: ignore[attr-defined]
            status = 503
            await served(port, login)  # with the former token, which is still valid
            assert len(asked) == 2
            login.source._valid_until = 0.0  # type: ignore[attr-defined]
            with pytest.raises(KafkaError, match=r"There is no access token: .* answered with status 503") as failed:
                await served(port, login)
            assert "s3cr" not in str(failed.value)

        with_node(scenario, f"{server}/keys")


def test_nodes_log_in_to_each_other_with_access_tokens(issuer: TokenIssuer, keys_url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(issuer.token("node"))
    more = {ENDPOINT: (tmp_path / "token").as_uri(), "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}
    overrides = {**SECURED, URL: keys_url, **more, "sasl.enabled.mechanisms": "OAUTHBEARER"}
    node = make_node(local_settings("/data", port=0, overrides=overrides), MemoryDisk())
    login = node._peers[0].credentials.login
    assert isinstance(login, TokenLogin)
    assert login.source() == (tmp_path / "token").read_text()


@pytest.mark.parametrize(
    ("status", "content", "reason"),
    [
        (302, b"", "status 302"),
        (404, b"", "status 404"),
        (200, b"x" * (MAX_ANSWER_BYTES + 1), "more than"),
    ],
)
def test_key_document_that_is_redirected_or_missing_or_too_large_is_refused(
    status: int, content: bytes, reason: str
) -> None:
    with web_server(lambda path, headers, body: (status, content)) as server, pytest.raises(FetchError, match=reason):
        Document(f"{server}/keys", MAX_ANSWER_BYTES).read()


def test_error_about_an_unreachable_key_server_has_the_address_of_the_server() -> None:
    with web_server(lambda path, headers, body: (200, b"")) as server:
        pass
    with pytest.raises(FetchError, match=f"{server}/keys can't be read: Connection refused"):
        Document(f"{server}/keys", 100).read()


def test_read_of_keys_from_a_silent_issuer_times_out_without_blocking_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oauth_listener, "READ_TIMEOUT_S", 0.05)
    released = threading.Event()

    def answer(path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        released.wait(60)
        return 200, b""

    async def scenario(url: str) -> None:
        source = oauth_listener.KeySource(Document(url, 100), 1.0, 1.0, 1.0)
        try:
            with pytest.raises(FetchError, match="did not answer within"):
                await source.start()
        finally:
            released.set()

    with web_server(answer) as server:
        asyncio.run(asyncio.wait_for(scenario(server), 30))
