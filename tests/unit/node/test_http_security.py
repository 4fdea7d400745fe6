"""Logins and TLS of the HTTP listener on a running node: passwords, access tokens, certificates, roles and ACLs."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import ssl
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.client.admin import Admin
from penstock.client.client import AsyncClient
from penstock.client.connection import ConnectionSettings
from penstock.client.login import Login
from penstock.disk.memory import MemoryDisk
from penstock.http import guard
from penstock.http import login as http_login
from penstock.http.rest import events
from penstock.http.rest.api import ROUTES
from penstock.node.listeners import ListenerError
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages import api_30_create_acls as create_acls
from penstock.protocol.messages import api_51_alter_user_scram_credentials as scram_users
from penstock.protocol.vocabulary import ConfigOperation, ResourceType
from penstock.security.scram import ScramMechanism, salted_password
from penstock.security.vocabulary import AclResource, Operation, PatternType, Permission
from penstock.testing.tokens import TokenIssuer
from tools.certificates import Authority

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
        node = make_node(local_settings("/data", overrides=settings), MemoryDisk(), seed=1)
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
    await _alter_users(node, scram_users.AlterUserScramCredentialsRequest(upsertions=[change]))


async def _alter_users(node: Node, request: scram_users.AlterUserScramCredentialsRequest) -> None:
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


# --- passwords ----------------------------------------------------------------------------------------


def test_the_users_of_the_kafka_listener_log_in_over_http_and_others_are_asked_for_a_password() -> None:
    async def scenario(node: Node) -> None:
        http = Http(node)
        for path in ("/", "/metrics", "/api/cluster", "/v1/topics", "/v1/nothing", "/nothing"):
            stranger = await http.ask(path)
            assert (stranger.status, stranger.challenges) == (401, ['Basic realm="Penstock", charset="UTF-8"'])
        for path in ("/livez", "/readyz", "/console/app.js"):
            assert (await http.ask(path)).status == 200
        assert (await http.ask("/v1/topics", ANN)).status == 200
        assert (await http.ask("/", ("bob", "b:ö"))).status == 200
        assert (await http.ask("/v1/topics", ANN, method="POST", body={"name": "made"})).status == 201

    with_node(scenario, SECURED)


def test_every_route_but_the_probes_asks_for_a_login() -> None:
    async def scenario(node: Node) -> None:
        http = Http(node)
        for route in ROUTES:
            path = re.sub(r"\{\w+\}", "1", route.template)
            answer = await http.ask(path, method=route.method, body=None if route.body is None else {})
            assert (path, answer.status) == (path, 200 if route.public else 401)

    with_node(scenario, SECURED)


def test_a_page_of_another_site_cannot_use_the_login_that_a_browser_remembers() -> None:
    async def scenario(node: Node) -> None:
        genuine = Http.request("/v1/topics", ANN, method="POST", body={"name": "made"})
        forged = genuine.replace(b"Host: localhost", b"Host: localhost\r\nOrigin: http://evil.example")
        assert (await Http(node).raw(forged)).status == 403
        own = genuine.replace(b"Host: localhost", b"Host: localhost\r\nOrigin: http://localhost")
        assert (await Http(node).raw(own)).status == 201

    with_node(scenario, SECURED)


def test_a_wrong_password_and_an_unknown_user_get_the_same_answer_and_lose_the_connection() -> None:
    async def scenario(node: Node) -> None:
        http = Http(node)
        await set_password(node, "eve", "right", ScramMechanism.SHA_512)
        wrong = [await http.ask("/v1/topics", user) for user in (("ann", "x"), ("eve", "x"), ("nobody", "x"))]
        assert {answer.status for answer in wrong} == {401}
        assert len({answer.body for answer in wrong}) == 1
        assert all(("connection", "close") in answer.headers for answer in wrong)
        assert all(answer.challenges for answer in wrong)

    with_node(scenario, SECURED)


@pytest.mark.parametrize(
    "header",
    [
        "Basic",
        "Basic ",
        "Basic !!!!",
        "Basic " + base64.b64encode(b"ann").decode(),
        "Basic " + base64.b64encode(b":secret").decode(),
        "Basic " + base64.b64encode(b"ann:").decode(),
        "Basic " + base64.b64encode(b"\xff:\xff").decode(),
        "Basic " + base64.b64encode(b"ann:" + b"x" * 5000).decode(),
        "Basic " + base64.b64encode(b"a" * 2000 + b":secret").decode(),
        "Basic " + base64.b64encode(b"ANN:secret").decode(),
        "Bearer abc.def.ghi",
        "Negotiate abc",
        "secret",
    ],
)
def test_a_malformed_credential_is_refused(header: str) -> None:
    async def scenario(node: Node) -> None:
        assert (await Http(node).ask("/v1/topics", header=header)).status == 401

    with_node(scenario, SECURED)


def test_a_changed_or_removed_scram_password_takes_effect_at_the_next_request() -> None:
    async def scenario(node: Node) -> None:
        http, sha = Http(node), ScramMechanism.SHA_256
        assert (await http.ask("/v1/topics", ("eve", "one"))).status == 401
        await set_password(node, "eve", "one", sha, 8192)
        for _ in range(2):
            assert (await http.ask("/v1/topics", ("eve", "one"))).status == 200
        await set_password(node, "eve", "two", sha)
        assert (await http.ask("/v1/topics", ("eve", "one"))).status == 401
        assert (await http.ask("/v1/topics", ("eve", "two"))).status == 200
        gone = scram_users.ScramCredentialDeletion(name="eve", mechanism=sha)
        await _alter_users(node, scram_users.AlterUserScramCredentialsRequest(deletions=[gone]))
        assert (await http.ask("/v1/topics", ("eve", "two"))).status == 401

    with_node(scenario, SECURED)


def test_right_password_is_hashed_once_and_a_wrong_password_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    check = http_login._check

    def counting(known: Any, password: str, secret: bytes) -> bool:
        checked.append(password)
        return check(known, password, secret)

    monkeypatch.setattr(http_login, "_check", counting)

    async def scenario(node: Node) -> None:
        http = Http(node)
        for password in ("secret", "secret", "wrong", "wrong", "secret"):
            await http.ask("/v1/topics", ("ann", password))
        assert checked == ["secret", "wrong", "wrong"]

    with_node(scenario, SECURED)


def test_remembered_passwords_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_login, "MAX_REMEMBERED", 1)

    async def scenario(node: Node) -> None:
        http = Http(node)
        for user in (ANN, ADMIN, ANN):
            assert (await http.ask("/v1/topics", user)).status == 200
        assert node.http.security is not None
        assert list(node.http.security.login._remembered) == ["ann"]

    with_node(scenario, SECURED)


def test_a_failed_login_is_audited_and_no_password_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "audit.log"

    async def scenario(node: Node) -> None:
        await Http(node).ask("/v1/topics", ("ann", "hunter2"))
        await Http(node).ask("/v1/topics", ANN)

    with_node(scenario, {**SECURED, "penstock.audit.file": str(path)})
    (line,) = [json.loads(line) for line in path.read_text().splitlines() if '"HTTP"' in line]
    assert (line["operation"], line["result"], line["host"]) == ("AUTHENTICATE", "DENIED", "127.0.0.1")
    for secret in ("hunter2", "secret", base64.b64encode(b"ann:hunter2").decode()):
        assert secret not in caplog.text + path.read_text()


def test_the_answer_to_a_wrong_password_is_delayed() -> None:
    async def scenario(node: Node) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert (await Http(node).ask("/v1/topics", ("ann", "x"))).status == 401
        assert loop.time() - began >= 0.5

    with_node(scenario, {**SECURED, "connection.failed.authentication.delay.ms": "500"})


def test_properties_can_give_http_its_own_users_or_no_users() -> None:
    own = 'x.PlainLoginModule required user_web="w";'
    prefix = "listener.name.http."

    async def with_own(node: Node) -> None:
        assert (await Http(node).ask("/v1/topics", ("web", "w"))).status == 200
        assert (await Http(node).ask("/v1/topics", ANN)).status == 401

    async def without(node: Node) -> None:
        assert (await Http(node).ask("/v1/topics")).status == 200

    mechanisms = f"{prefix}sasl.enabled.mechanisms"
    with_node(with_own, {**SECURED, mechanisms: "PLAIN", f"{prefix}plain.sasl.jaas.config": own})
    with_node(without, {**SECURED, mechanisms: ""})
    with_node(with_own, {**PLAINTEXT, mechanisms: "PLAIN", f"{prefix}plain.sasl.jaas.config": own})


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"listener.name.http.sasl.enabled.mechanisms": "GSSAPI"}, "has GSSAPI"),
        ({"listener.name.http.sasl.enabled.mechanisms": "PLAIN"}, "PLAIN needs users"),
        ({"listener.name.http.sasl.enabled.mechanisms": "OAUTHBEARER"}, "needs the keys of the issuer"),
        ({"penstock.http.listener": "https://127.0.0.1:0"}, "needs a certificate"),
        ({"penstock.http.roles": "root=User:ann"}, "has the entry"),
    ],
)
def test_node_refuses_to_start_with_invalid_http_settings(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ListenerError, match=message):
        make_node(local_settings("/data", overrides={**PLAINTEXT, **properties}), MemoryDisk(), seed=1)


# --- roles and ACLs -----------------------------------------------------------------------------------

ROLES = {"penstock.http.roles": "view=User:ann;operate=User:bob;admin=User:carl;view=User:carl"}
ROLE_USERS = 'x.PlainLoginModule required username="admin" password="a" user_admin="a" user_ann="a" user_bob="a" '
ROLE_USERS += 'user_carl="a" user_dora="a";'
#: Kinds of requests: method, path, body, and the status for a user without a role, and with each role.
KINDS: list[tuple[str, str, Any, tuple[int, int, int, int]]] = [
    ("GET", "/", None, (403, 200, 200, 200)),
    ("GET", "/metrics", None, (403, 200, 200, 200)),
    ("GET", "/api/topics", None, (403, 308, 308, 308)),
    ("GET", "/v1/topics", None, (403, 200, 200, 200)),
    ("GET", "/v1/openapi.json", None, (403, 200, 200, 200)),
    ("GET", "/v1/configs/brokers/1", None, (403, 200, 200, 200)),
    ("HEAD", "/v1/topics", None, (403, 200, 200, 200)),
    ("POST", "/v1/topics", {"name": "new", "validate_only": True}, (403, 403, 201, 201)),
    ("POST", "/v1/cluster/compact-log", {}, (403, 403, 200, 200)),
    ("PATCH", "/v1/configs/brokers/1", {"set": {"log.retention.ms": "60000"}}, (403, 403, 403, 200)),
    ("DELETE", "/v1/topics/none", None, (403, 403, 404, 404)),
]


def test_each_role_may_use_its_kinds_of_routes_and_no_other_routes() -> None:
    async def scenario(node: Node) -> None:
        http = Http(node)
        for method, path, body, statuses in KINDS:
            for user, status in zip(("dora", "ann", "bob", "carl"), statuses):
                answer = await http.ask(path, (user, "a"), method=method, body=body)
                assert (user, method, path, answer.status) == (user, method, path, status)

    jaas = {"listener.name.sasl_plaintext.plain.sasl.jaas.config": ROLE_USERS}
    with_node(scenario, {**SECURED, **ROLES, **jaas})


def test_with_an_authorizer_the_acls_of_the_http_user_decide() -> None:
    async def scenario(node: Node) -> None:
        http = Http(node)
        for topic in ("open", "closed"):
            assert (await http.ask("/v1/topics", ADMIN, method="POST", body={"name": topic})).status == 201
        await allow(node, "ann", AclResource.TOPIC, "open", Operation.READ)
        listed = json.loads((await http.ask("/v1/topics?internal=false", ANN)).body)
        assert [row["topic"] for row in listed["topics"]] == ["open"]
        records = "/v1/topics/{}/records?partition=0"
        assert (await http.ask(records.format("open"), ANN)).status == 200
        for path in (records.format("closed"), records.format("missing"), "/v1/topics/closed", "/v1/topics/missing"):
            assert (await http.ask(path, ANN)).status == 403, path
        for path in (
            "/metrics",
            "/api/topics",
            "/api/events",
            "/v1/events",
            "/v1/cluster/status",
            "/console/index.html",
        ):
            assert (await http.ask(path, ANN)).status == 403, path
        assert (await http.ask("/", ANN)).status == 200
        assert (await http.ask("/v1/topics/closed", ANN, method="DELETE")).status == 403
        assert (await http.ask("/v1/cluster/compact-log", ANN, method="POST", body={})).status == 403
        for method, path, body in (
            ("PUT", "/v1/users/admin/password", {"password": "x"}),
            ("DELETE", "/v1/users/admin", None),
            ("POST", "/v1/acls", {"resource": "cluster", "principal": "User:ann"}),
            ("PATCH", "/v1/configs/brokers/1", {"set": {"log.retention.ms": "1"}}),
            ("POST", "/v1/cluster/force-election", {}),
            ("POST", "/v1/cluster/drain", {"nodes": [1]}),
        ):
            assert ((await http.ask(path, ANN, method=method, body=body)).status, path) == (403, path)
        await allow(node, "ann", AclResource.CLUSTER, "kafka-cluster", Operation.DESCRIBE)
        assert (await http.ask("/metrics", ANN)).status == 200

    with_node(scenario, {**SECURED, **AUTHORIZER})


def test_the_result_of_an_operation_is_hidden_from_users_without_its_acls() -> None:
    async def scenario(node: Node) -> None:
        http = Http(node)
        assert (await http.ask("/v1/topics", ADMIN, method="POST", body={"name": "t"})).status == 201
        begun = await http.ask("/v1/topics/t/search", ADMIN, method="POST", body={"contains": "x"})
        assert begun.status == 202
        path = f"/v1/operations/{json.loads(begun.body)['operation']}"
        assert (await http.ask(path, ADMIN)).status == 200
        assert (await http.ask(path, ANN)).status == 404
        assert json.loads((await http.ask("/v1/operations", ANN)).body)["operations"] == []
        assert (await http.ask(f"{path}/cancel", ANN, method="POST", body={})).status == 404

    with_node(scenario, {**SECURED, **AUTHORIZER})


def test_topics_to_which_only_nodes_write_cannot_be_written_over_http() -> None:
    async def scenario(node: Node) -> None:
        http = Http(node)
        await node.broker.topic_creator.ensure("__penstock_events")
        await allow(node, "ann", AclResource.TOPIC, "*", Operation.ALL)
        for user in (ADMIN, ANN):
            path, body = "/v1/topics/__penstock_events/records", {"records": [{"value": "forged"}]}
            refused = await http.ask(path, user, method="POST", body=body)
            assert (refused.status, json.loads(refused.body)["kafka_error"]) == (400, "INVALID_TOPIC_EXCEPTION")

    with_node(scenario, {**SECURED, **AUTHORIZER})


def test_a_stream_ends_when_its_user_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "STREAM_CHECK_S", 0.0)
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(events, "LOOK_EVERY_S", 0.01)

    async def scenario(node: Node) -> None:
        await set_password(node, "eve", "one", ScramMechanism.SHA_256)
        reader, writer = await Http(node).send(Http.request("/v1/events/stream", ("eve", "one")))
        await reader.readuntil(b": alive")
        gone = scram_users.ScramCredentialDeletion(name="eve", mechanism=ScramMechanism.SHA_256)
        await _alter_users(node, scram_users.AlterUserScramCredentialsRequest(deletions=[gone]))
        assert (await reader.read()).endswith(b"0\r\n\r\n"), "the stream has an end"
        writer.close()

    with_node(scenario, SECURED)


def test_the_logins_of_one_host_that_are_checked_at_a_time_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = threading.Event()

    def slow(known: Any, password: str, secret: bytes) -> bool:
        return ready.wait(60) and False

    monkeypatch.setattr(http_login, "_check", slow)

    async def scenario(node: Node) -> None:
        http = Http(node)
        guesses = [asyncio.create_task(http.ask("/", ("ann", str(number)))) for number in range(20)]
        refused: list[int] = []
        for each in asyncio.as_completed(guesses):
            refused.append((await each).status)
            if len(refused) == 20 - http_login.MAX_CHECKS_OF_HOST:
                break
        assert (await http.ask("/livez")).status == 200
        ready.set()
        assert set(refused) == {429}
        assert sorted(answer.status for answer in await asyncio.gather(*guesses)) == [401] * 4 + [429] * 16

    with_node(scenario, SECURED)


def test_headers_that_are_too_long_are_refused_before_a_login() -> None:
    async def scenario(node: Node) -> None:
        assert (await Http(node).ask("/", header="Basic " + "A" * 20_000)).status == 431
        twice = b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic YQ==\r\nAuthorization: Basic Yg==\r\n\r\n"
        assert (await Http(node).raw(twice)).status == 400

    with_node(scenario, SECURED)


# --- TLS, certificates and access tokens ------------------------------------------------------------------


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


def test_a_peer_without_tls_gets_nothing_from_a_tls_listener(tmp_path: Path) -> None:
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


def test_a_client_certificate_is_a_login_and_is_mapped_to_its_user(tmp_path: Path) -> None:
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
    """Returns a context with a certificate of another authority."""
    context = authority.trusting
    context.load_cert_chain(signer.store(f"other-{name}.pem", name))
    return context


def test_a_certificate_replaces_the_password_only_if_http_asks_for_certificates_itself(tmp_path: Path) -> None:
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


def test_access_tokens_are_accepted_until_they_expire(tmp_path: Path) -> None:
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


def test_unencrypted_http_that_other_machines_can_reach_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(node: Node) -> None:
        assert "passwords and data travel in clear text" in caplog.text

    with_node(scenario, {**SECURED, "penstock.http.listener": "0.0.0.0:0"})
