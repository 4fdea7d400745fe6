"""Tests changes of a listener's TLS settings on a running node, and certificates that are renewed in their files."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.disk.memory import MemoryDisk
from penstock.net.network import RealNetwork
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_03_metadata import MetadataRequest
from penstock.protocol.messages.api_32_describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from penstock.protocol.messages.api_44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from penstock.protocol.vocabulary import ConfigOperation, ResourceType
from tools.certificates import Authority

PREFIX = "listener.name.ssl."


def with_node(scenario: Callable[[Node, int], Awaitable[None]], properties: dict[str, str]) -> None:
    async def main() -> None:
        secured = {"listeners": "SSL://127.0.0.1:0", "inter.broker.listener.name": "SSL", **properties}
        node = make_node(local_settings("/data", port=0, overrides=secured), MemoryDisk(), seed=1)
        format_if_new(node)
        await node.start()
        try:
            await scenario(node, int(node.bootstrap.rpartition(":")[2]))
        finally:
            await node.stop(0.1)

    asyncio.run(asyncio.wait_for(main(), 120))


async def connect(port: int, tls: ssl.SSLContext) -> BrokerConnection:
    return await BrokerConnection.open(RealNetwork(), "localhost", port, ConnectionSettings(tls=tls))


async def server_name(port: int, tls: ssl.SSLContext) -> str:
    _, writer = await asyncio.open_connection("localhost", port, ssl=tls)
    certificate = writer.get_extra_info("ssl_object").getpeercert()
    writer.close()
    return str(dict(field[0] for field in certificate["subject"])["commonName"])


async def alter(peer: BrokerConnection, **changes: str | None) -> tuple[int, str]:
    configs = [
        AlterableConfig(
            name=PREFIX + name.replace("_", "."),
            config_operation=ConfigOperation.DELETE if value is None else ConfigOperation.SET,
            value=value,
        )
        for name, value in changes.items()
    ]
    resource = AlterConfigsResource(resource_type=ResourceType.BROKER, resource_name="1", configs=configs)
    answer = await peer.request(IncrementalAlterConfigsRequest(resources=[resource]))
    return answer.responses[0].error_code, answer.responses[0].error_message or ""


def test_changed_key_store_is_used_for_new_connections_while_old_connections_continue(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    first, second = authority.store("first.pem", "first"), authority.store("second.pem", "second")

    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, authority.trusting)
        assert await server_name(port, authority.trusting) == "first"
        assert await alter(peer, ssl_keystore_location=second) == (0, "")
        assert await server_name(port, authority.trusting) == "second"
        assert (await peer.request(MetadataRequest(topics=None))).topics == []
        assert await alter(peer, ssl_keystore_location=None) == (0, "")
        assert await server_name(port, authority.trusting) == "first"
        peer.close()

    with_node(scenario, {"ssl.keystore.location": first, "ssl.truststore.location": str(authority.file)})


def test_change_to_an_unusable_key_store_is_refused_and_the_old_certificate_stays_in_use(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    first, strange = authority.store("first.pem", "first"), other.store("strange.pem", "strange")

    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, authority.trusting)
        for changes, reason in (
            ({"ssl_keystore_location": "/nowhere"}, "ssl.keystore.location"),
            ({"ssl_keystore_location": str(authority.file)}, "can't be used"),
            ({"ssl_keystore_location": strange}, "would not accept each other"),
            ({"ssl_client_auth": "sometimes"}, "ssl.client.auth"),
        ):
            code, message = await alter(peer, **changes)
            assert code in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)
            assert reason in message
        assert await server_name(port, authority.trusting) == "first"
        trusted = authority.file.read_text() + other.file.read_text()
        assert await alter(peer, ssl_truststore_certificates=trusted, ssl_truststore_type="PEM") == (0, "")
        assert await alter(peer, ssl_keystore_location=strange) == (0, "")
        assert await server_name(port, other.trusting) == "strange"
        peer.close()

    with_node(scenario, {"ssl.keystore.location": first, "ssl.truststore.location": str(authority.file)})


def test_running_node_can_be_set_to_require_client_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    first = authority.store("first.pem", "first")

    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, authority.trusting)
        assert await alter(peer, ssl_client_auth="required") == (0, "")
        with_certificate = authority.trusting
        with_certificate.load_cert_chain(first)
        (await connect(port, with_certificate)).close()
        with pytest.raises(Exception, match=r"(?i)closed|certificate|lost|reset"):
            await connect(port, authority.trusting)
        peer.close()

    with_node(scenario, {"ssl.keystore.location": first, "ssl.truststore.location": str(authority.file)})


def test_describe_configs_never_returns_passwords_or_keys_of_key_stores(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    first = authority.store("first.pem", "first")
    key = Path(first).read_text()

    async def scenario(node: Node, port: int) -> None:
        peer = await connect(port, authority.trusting)
        changes = {"ssl_keystore_password": "hidden-1", "ssl_key_password": "hidden-2", "ssl_keystore_key": key}
        chain = "-----BEGIN CERTIFICATE" + key.partition("-----BEGIN CERTIFICATE")[2]
        assert await alter(peer, **changes, ssl_keystore_certificate_chain=chain) == (0, "")
        resource = DescribeConfigsResource(resource_type=ResourceType.BROKER, resource_name="1")
        answer = await peer.request(DescribeConfigsRequest(resources=[resource], include_synonyms=True))
        shown = {config.name: config for config in answer.results[0].configs}
        for name in ("ssl.keystore.password", "ssl.key.password", "ssl.keystore.key"):
            assert shown[PREFIX + name].value is None
            assert shown[PREFIX + name].is_sensitive
        assert "hidden" not in repr(answer)
        assert "PRIVATE KEY" not in repr(answer)
        peer.close()

    with_node(scenario, {"ssl.keystore.location": first, "ssl.truststore.location": str(authority.file)})


def test_node_uses_a_renewed_certificate_also_for_its_connections_to_other_nodes(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    first = authority.store("first.pem", "first")

    async def scenario(node: Node, port: int) -> None:
        before = node._peers[0].credentials.tls
        authority.store("first.pem", "renewed")
        node._certificates.renew()
        assert node._peers[0].credentials.tls is not before
        assert await server_name(port, authority.trusting) == "renewed"

    with_node(scenario, {"ssl.keystore.location": first, "ssl.truststore.location": str(authority.file)})


def test_renewed_certificate_is_not_used_until_the_trust_store_has_its_authority(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, other = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    first = authority.store("first.pem", "first")

    async def scenario(node: Node, port: int) -> None:
        before = node._peers[0].credentials.tls
        other.store("first.pem", "strange")
        node._certificates.renew()
        assert await server_name(port, authority.trusting) == "first"
        assert node._peers[0].credentials.tls is before
        assert caplog.text.count("would not accept each other") == 2  # the listener, and the client of other nodes
        trusting = authority.trusting, other.trusting
        authority.file.write_text(authority.file.read_text() + other.file.read_text())
        node._certificates.renew()
        assert await server_name(port, trusting[1]) == "strange"
        assert node._peers[0].credentials.tls is not before

    with_node(scenario, {"ssl.keystore.location": first, "ssl.truststore.location": str(authority.file)})
