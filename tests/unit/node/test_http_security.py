"""Tests logins to the HTTP listener of a running node: passwords, limits, and invalid settings."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from http_node import (
    ADMIN,
    ANN,
    AUTHORIZER,
    PLAINTEXT,
    SECURED,
    Http,
    alter_users,
    set_password,
    with_node,
)

from penstock.cli.exit import Failure
from penstock.cli.rest import rest
from penstock.client.client import AsyncClient
from penstock.client.connection import ConnectionSettings
from penstock.client.login import Login
from penstock.disk.memory import MemoryDisk
from penstock.http import login as http_login
from penstock.http.rest.api import ROUTES
from penstock.node.listeners import ListenerError
from penstock.node.local import local_settings, make_node
from penstock.node.node import Node
from penstock.protocol.messages import api_51_alter_user_scram_credentials as scram_users
from penstock.protocol.messages.api_38_create_delegation_token import CreateDelegationTokenRequest
from penstock.protocol.messages.api_40_expire_delegation_token import ExpireDelegationTokenRequest
from penstock.security.scram import ScramMechanism


def test_users_of_the_kafka_listener_can_log_in_over_http_and_anonymous_requests_get_401() -> None:
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


def test_every_route_except_the_health_probes_requires_a_login() -> None:
    async def scenario(node: Node) -> None:
        http = Http(node)
        for route in ROUTES:
            path = re.sub(r"\{\w+\}", "1", route.template)
            answer = await http.ask(path, method=route.method, body=None if route.body is None else {})
            assert (path, answer.status) == (path, 200 if route.public else 401)

    with_node(scenario, SECURED)


def test_http_change_request_with_the_origin_of_another_site_is_refused() -> None:
    async def scenario(node: Node) -> None:
        genuine = Http.request("/v1/topics", ANN, method="POST", body={"name": "made"})
        forged = genuine.replace(b"Host: localhost", b"Host: localhost\r\nOrigin: http://evil.example")
        assert (await Http(node).raw(forged)).status == 403
        own = genuine.replace(b"Host: localhost", b"Host: localhost\r\nOrigin: http://localhost")
        assert (await Http(node).raw(own)).status == 201

    with_node(scenario, SECURED)


def test_http_request_with_a_wrong_password_gets_the_same_answer_as_one_of_an_unknown_user() -> None:
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
def test_http_request_with_a_malformed_credential_is_refused(header: str) -> None:
    async def scenario(node: Node) -> None:
        assert (await Http(node).ask("/v1/topics", header=header)).status == 401

    with_node(scenario, SECURED)


def test_changed_or_removed_scram_password_takes_effect_at_the_next_http_request() -> None:
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
        await alter_users(node, scram_users.AlterUserScramCredentialsRequest(deletions=[gone]))
        assert (await http.ask("/v1/topics", ("eve", "two"))).status == 401

    with_node(scenario, SECURED)


def test_http_client_logs_in_with_a_delegation_token_until_the_token_expires() -> None:
    async def scenario(node: Node) -> None:
        async with AsyncClient(node.bootstrap, settings=ConnectionSettings(login=Login("PLAIN", *ANN))) as ann:
            made = await ann.request(CreateDelegationTokenRequest(max_lifetime_ms=-1))
            assert made.error_code == 0
            token, http = (made.token_id, base64.b64encode(made.hmac).decode()), Http(node)
            assert (await http.ask("/v1/topics", token)).status == 200
            denied = await http.ask("/metrics", token)
            assert (denied.status, b"User:ann" in denied.body) == (403, True)
            for wrong in ((token[0], token[1][:-1]), (token[0], ANN[1]), ("other", token[1]), (ANN[0], token[1])):
                assert (await http.ask("/v1/topics", wrong)).status == 401
            ended = await ann.request(ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1))
            assert ended.error_code == 0
            assert (await http.ask("/v1/topics", token)).status == 401

    with_node(scenario, {**SECURED, **AUTHORIZER, "delegation.token.secret.key": "secret of the cluster"})


def test_rest_command_logs_in_with_a_delegation_token_from_its_client_properties(tmp_path: Path) -> None:
    async def scenario(node: Node) -> None:
        async with AsyncClient(node.bootstrap, settings=ConnectionSettings(login=Login("PLAIN", *ANN))) as ann:
            made = await ann.request(CreateDelegationTokenRequest(max_lifetime_ms=-1))
        url = node.http.url
        assert url is not None
        for hmac, status in ((base64.b64encode(made.hmac).decode(), None), ("wrong", "Invalid credentials.")):
            options = f'username="{made.token_id}" password="{hmac}" tokenauth="true"'
            properties = tmp_path / "client.properties"
            properties.write_text(
                "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
                f"sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required {options};\n"
            )
            args = argparse.Namespace(http=url, command_config=str(properties), timeout=60.0)
            asked = asyncio.to_thread(rest(args).ask, "GET", "/v1/topics")
            if status is None:
                assert (await asked)["topics"] == []
            else:
                with pytest.raises(Failure, match=status):
                    await asked

    with_node(scenario, {**SECURED, **AUTHORIZER, "delegation.token.secret.key": "secret of the cluster"})


def test_correct_http_password_is_checked_once_and_a_wrong_password_at_every_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


def test_number_of_remembered_http_passwords_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_login, "MAX_REMEMBERED", 1)

    async def scenario(node: Node) -> None:
        http = Http(node)
        for user in (ANN, ADMIN, ANN):
            assert (await http.ask("/v1/topics", user)).status == 200
        assert node.http.security is not None
        assert list(node.http.security.login._remembered) == ["ann"]

    with_node(scenario, SECURED)


def test_failed_http_login_gets_an_audit_line_and_no_password_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_http_answer_to_a_wrong_password_is_delayed() -> None:
    async def scenario(node: Node) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert (await Http(node).ask("/v1/topics", ("ann", "x"))).status == 401
        assert loop.time() - began >= 0.5

    with_node(scenario, {**SECURED, "connection.failed.authentication.delay.ms": "500"})


def test_http_listener_can_have_its_own_users_or_no_login() -> None:
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
        make_node(local_settings("/data", port=0, overrides={**PLAINTEXT, **properties}), MemoryDisk(), seed=1)


def test_number_of_password_checks_of_one_host_at_a_time_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_http_request_with_too_long_headers_is_refused_before_its_login_is_checked() -> None:
    async def scenario(node: Node) -> None:
        assert (await Http(node).ask("/", header="Basic " + "A" * 20_000)).status == 431
        twice = b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic YQ==\r\nAuthorization: Basic Yg==\r\n\r\n"
        assert (await Http(node).raw(twice)).status == 400

    with_node(scenario, SECURED)
