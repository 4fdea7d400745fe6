"""Runs a node with HTTP and users, and sends HTTP requests to it."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from penstock.client.client import AsyncClient
from penstock.client.connection import ConnectionSettings
from penstock.client.login import Login
from penstock.disk.memory import MemoryDisk
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.protocol.messages import api_30_create_acls as create_acls
from penstock.protocol.messages import api_51_alter_user_scram_credentials as scram_users
from penstock.security.scram import ScramMechanism, salted_password
from penstock.security.vocabulary import AclResource, Operation, PatternType, Permission

USERS = 'x.PlainLoginModule required username="admin" password="a" user_admin="a" user_ann="secret" user_bob="b:ö";'
PLAINTEXT = {"penstock.http.listener": "127.0.0.1:0", "connection.failed.authentication.delay.ms": "0"}
SECURED = {
    **PLAINTEXT,
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS,
}
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}
ADMIN, ANN = ("admin", "a"), ("ann", "secret")


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def challenges(self) -> list[str]:
        return [value for name, value in self.headers if name == "www-authenticate"]


class Http:
    """Sends requests to the HTTP listener of a node, each over a connection of its own."""

    def __init__(self, node: Node, tls: ssl.SSLContext | None = None) -> None:
        assert node.http.url is not None
        self._port = int(node.http.url.rstrip("/").rpartition(":")[2])
        self._tls = tls

    async def ask(self, path: str, user: tuple[str, str] | None = None, **how: Any) -> Answer:
        return await self.raw(self.request(path, user, **how))

    @staticmethod
    def request(
        path: str,
        user: tuple[str, str] | None = None,
        *,
        method: str = "GET",
        body: Any = None,
        header: str | None = None,
    ) -> bytes:
        if user is not None:
            header = "Basic " + base64.b64encode(":".join(user).encode()).decode()
        sent = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {len(sent)}"]
        lines += ["Content-Type: application/json"] if method != "GET" else []
        lines += [] if header is None else [f"Authorization: {header}"]
        return "\r\n".join([*lines, "", ""]).encode() + sent

    async def send(self, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host = "localhost" if self._tls else None
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls, server_hostname=host)
        writer.write(sent)
        return reader, writer

    async def raw(self, sent: bytes) -> Answer:
        reader, writer = await self.send(sent)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        first, *rest = head.decode().split("\r\n")
        pairs = (line.partition(": ") for line in rest)
        return Answer(int(first.split(" ")[1]), [(name.lower(), value) for name, _, value in pairs], body)


def with_node(scenario: Callable[[Node], Awaitable[None]], settings: dict[str, str]) -> None:
    async def main() -> None:
        node = make_node(local_settings("/data", port=0, overrides=settings), MemoryDisk(), seed=1)
        format_if_new(node)
        await node.start()
        try:
            await scenario(node)
        finally:
            await node.stop(0.1)

    asyncio.run(asyncio.wait_for(main(), 120))


def as_admin(node: Node) -> AsyncClient:
    return AsyncClient(node.bootstrap, settings=ConnectionSettings(login=Login("PLAIN", *ADMIN)))


async def set_password(node: Node, user: str, password: str, mechanism: ScramMechanism, iterations: int = 4096) -> None:
    salt = b"0123456789abcdef"
    change = scram_users.ScramCredentialUpsertion(
        name=user,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=salted_password(mechanism, password, salt, iterations),
    )
    await alter_users(node, scram_users.AlterUserScramCredentialsRequest(upsertions=[change]))


async def alter_users(node: Node, request: scram_users.AlterUserScramCredentialsRequest) -> None:
    async with as_admin(node) as client:
        answer = await client.request(request)
    assert [each.error_code for each in answer.results] == [0]


async def allow(node: Node, user: str, resource: AclResource, name: str, operation: Operation) -> None:
    acl = create_acls.AclCreation(
        resource_type=resource,
        resource_name=name,
        resource_pattern_type=PatternType.LITERAL,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission_type=Permission.ALLOW,
    )
    async with as_admin(node) as client:
        answer = await client.request(create_acls.CreateAclsRequest(creations=[acl]))
    assert [each.error_code for each in answer.results] == [0]
