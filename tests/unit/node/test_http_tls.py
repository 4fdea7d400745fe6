"""Tests TLS of the HTTP listener: renewed certificates, client certificates, access tokens, and missing encryption."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
from http_node import (
    ANN,
    SECURED,
    Http,
    with_node,
)

from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.node.node import Node
from penstock.protocol.errors import KafkaError
from penstock.protocol.vocabulary import ConfigOperation, ResourceType
from penstock.testing.tokens import TokenIssuer
from tools.certificates import Authority


def over_tls(authority: Authority, **more: str) -> dict[str, str]:
    return {
        "penstock.http.listener": "https://127.0.0.1:0",
        "ssl.keystore.location": authority.store("http.pem", "first"),
        "ssl.truststore.location": str(authority.file),
        "connection.failed.authentication.delay.ms": "0",
        **{f"listener.name.http.{name.replace('_', '.')}": value for name, value in more.items()},
    }


def test_http_is_served_over_tls_and_uses_a_renewed_certificate_for_new_connections(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")

    async def scenario(node: Node) -> None:
        assert node.http.url is not None
        assert node.http.url.startswith("https://127.0.0.1:")
        assert (await Http(node, authority.trusting).ask("/v1/topics")).status == 200
        port = int(node.http.url.rstrip("/").rpartition(":")[2])
        assert await server_name(port, authority.trusting) == "first"
        authority.store("http.pem", "renewed")
        node._certificates.renew()
        assert await server_name(port, authority.trusting) == "renewed"
        third = authority.store("third.pem", "third")
        async with AsyncClient(node.bootstrap) as client:
            change = [("listener.name.http.ssl.keystore.location", int(ConfigOperation.SET), third)]
            await Admin(client).alter_configs(ResourceType.BROKER, "1", change)
            assert await server_name(port, authority.trusting) == "third"
            wrong = [("listener.name.http.ssl.keystore.location", int(ConfigOperation.SET), "/nothing")]
            with pytest.raises(KafkaError, match="can't be read"):
                await Admin(client).alter_configs(ResourceType.BROKER, "1", wrong)

    with_node(scenario, over_tls(authority))


async def server_name(port: int, tls: ssl.SSLContext) -> str:
    _, writer = await asyncio.open_connection("localhost", port, ssl=tls)
    certificate = writer.get_extra_info("ssl_object").getpeercert()
    writer.close()
    return str(dict(field[0] for field in certificate["subject"])["commonName"])


def test_client_without_tls_gets_no_answer_from_an_https_listener(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        assert node.http.url is not None
        port = int(node.http.url.rstrip("/").rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in await reader.read()
        writer.close()

    with_node(scenario, over_tls(Authority(tmp_path, "ca")))


def with_certificate(authority: Authority, name: str) -> ssl.SSLContext:
    context = authority.trusting
    context.load_cert_chain(authority.store(f"{name}.pem", name))
    return context


def test_http_client_with_a_certificate_is_logged_in_as_the_user_of_its_certificate(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "ca"), Authority(tmp_path, "other")

    async def scenario(node: Node) -> None:
        assert (await Http(node, with_certificate(authority, "carl")).ask("/v1/topics")).status == 200
        assert (await Http(node, with_certificate(authority, "dora")).ask("/v1/topics")).status == 403
        for context in (authority.trusting, _trusting(authority, stranger, "carl")):
            assert await refused(Http(node, context))

    rules = {"ssl_client_auth": "required", "ssl_principal_mapping_rules": "RULE:^CN=(.*)$/$1/"}
    with_node(scenario, {**over_tls(authority, **rules), "penstock.http.roles": "view=User:carl"})


async def refused(http: Http) -> bool:
    """Returns True if the connection is closed without an answer."""
    try:
        await http.ask("/livez")
    except (OSError, IndexError):  # the handshake failed, or the answer is empty
        return True
    return False


def _trusting(authority: Authority, signer: Authority, name: str) -> ssl.SSLContext:
    """Returns a client context that trusts `authority` and has a certificate of `signer`."""
    context = authority.trusting
    context.load_cert_chain(signer.store(f"other-{name}.pem", name))
    return context


def test_http_client_certificate_replaces_the_password_only_if_ssl_client_auth_is_set_for_http(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    secured = {**SECURED, **over_tls(authority)}

    async def as_second_proof(node: Node) -> None:
        http = Http(node, with_certificate(authority, "carl"))
        assert (await http.ask("/v1/topics")).status == 401
        assert (await http.ask("/v1/topics", ANN)).status == 200

    async def as_login(node: Node) -> None:
        assert (await Http(node, with_certificate(authority, "carl")).ask("/v1/topics")).status == 200
        assert (await Http(node, authority.trusting).ask("/v1/topics")).status == 401
        assert (await Http(node, authority.trusting).ask("/v1/topics", ANN)).status == 200

    with_node(as_second_proof, {**secured, "ssl.client.auth": "required"})
    with_node(as_login, {**secured, "listener.name.http.ssl.client.auth": "requested"})


def test_http_access_tokens_are_accepted_until_they_expire(tmp_path: Path) -> None:
    issuer = TokenIssuer()
    token = "sasl.oauthbearer.jwks.endpoint.url"

    async def scenario(node: Node) -> None:
        http = Http(node)
        stranger = await http.ask("/v1/topics")
        assert stranger.challenges == ['Basic realm="Penstock", charset="UTF-8"', 'Bearer realm="Penstock"']
        assert (await http.ask("/v1/topics", header=f"Bearer {issuer.token('ann')}")).status == 200
        assert (await http.ask("/v1/topics", header=f"Bearer {issuer.token('eve')}")).status == 403
        for wrong in (issuer.token("ann", lifetime_s=-60), TokenIssuer().token("ann"), "", "a.b.c"):
            assert (await http.ask("/v1/topics", header=f"Bearer {wrong}")).status == 401

    with_node(
        scenario,
        {
            **SECURED,
            "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            token: issuer.write_keys(tmp_path / "keys.json"),
            "penstock.http.roles": "view=User:ann",
        },
    )


def test_node_warns_about_unencrypted_http_that_other_machines_can_reach(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: Node) -> None:
        assert "passwords and data travel in clear text" in caplog.text

    with_node(scenario, {**SECURED, "penstock.http.listener": "0.0.0.0:0"})
