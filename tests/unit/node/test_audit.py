"""Tests the audit file: it has a line for each denied or changing request, has no secrets, and is rate limited."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.handlers.audited import CHANGES
from penstock.broker.handlers.forwarding import CONTROLLER_APIS
from penstock.broker.handlers.registry import HANDLERS
from penstock.broker.limits.audit import CHANGED_PER_S, DENIED_PER_S, MAX_LIMITS, MAX_NAMES, REFUSED_PER_S, Audit
from penstock.broker.requests.context import RequestContext
from penstock.broker.requests.local_connection import LocalConnection
from penstock.client.connection import BrokerConnection, ConnectionSettings
from penstock.client.login import Login
from penstock.disk.memory import MemoryDisk
from penstock.net.network import RealNetwork
from penstock.node.audit_file import AuditFile
from penstock.node.local import format_if_new, local_settings, make_node
from penstock.node.node import Node
from penstock.node.storage import StorageError
from penstock.protocol.apis import request_class
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages import api_19_create_topics as create
from penstock.protocol.messages import api_30_create_acls as acls
from penstock.protocol.messages import api_44_incremental_alter_configs as configs
from penstock.protocol.messages import api_51_alter_user_scram_credentials as users
from penstock.protocol.messages.api_03_metadata import MetadataRequest, MetadataRequestTopic
from penstock.protocol.messages.api_38_create_delegation_token import CreateDelegationTokenRequest
from penstock.protocol.messages.api_39_renew_delegation_token import RenewDelegationTokenRequest
from penstock.protocol.messages.api_40_expire_delegation_token import ExpireDelegationTokenRequest
from penstock.protocol.vocabulary import ResourceType
from penstock.security.vocabulary import AclResource, Operation

JAAS = 'x.PlainLoginModule required username="admin" password="a" user_admin="a" user_ann="hidden-0";'
SECURED = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "connection.failed.authentication.delay.ms": "0",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
}


def lines_of(tmp_path: Path, scenario: Callable[[Node, int], Awaitable[None]], **settings: str) -> list[dict[str, Any]]:
    """Runs a scenario on a node and returns the lines of its audit file."""
    path = tmp_path / "audit.log"

    async def main() -> None:
        own = {**SECURED, **settings, "penstock.audit.file": str(path)}
        node = make_node(local_settings("/data", port=0, overrides=own), MemoryDisk(), seed=1)
        format_if_new(node)
        await node.start()
        await scenario(node, int(node.bootstrap.rpartition(":")[2]))
        await node.stop(0.1)

    asyncio.run(asyncio.wait_for(main(), 120))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    text = path.read_bytes()
    assert text.isascii()
    assert b"hidden" not in text
    return [json.loads(line) for line in text.splitlines()]


async def connect(port: int, user: str, password: str) -> BrokerConnection:
    settings = ConnectionSettings(login=Login("PLAIN", user, password), client_id="c\nd")
    return await BrokerConnection.open(RealNetwork(), "127.0.0.1", port, settings)


def creation(*names: str) -> create.CreateTopicsRequest:
    topics = [create.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    return create.CreateTopicsRequest(topics=topics, timeout_ms=1000)


def test_audit_file_has_lines_about_changes_and_denials_and_failed_logins(tmp_path: Path) -> None:
    async def scenario(node: Node, port: int) -> None:
        admin, ann = await connect(port, "admin", "a"), await connect(port, "ann", "hidden-0")
        with pytest.raises(KafkaError):
            await connect(port, "ann", "hidden-1")
        await admin.request(creation("orders"))
        await admin.request(creation("orders", "bad name\n"))
        await ann.request(creation("mine"))
        acl = acls.AclCreation(
            resource_type=2,
            resource_name="orders",
            resource_pattern_type=3,
            principal="User:ann",
            host="*",
            operation=3,
            permission_type=3,
        )
        await admin.request(acls.CreateAclsRequest(creations=[acl]))
        upsertion = users.ScramCredentialUpsertion(
            name="bob", mechanism=1, iterations=4096, salt=b"hidden-2", salted_password=b"hidden-3"
        )
        await admin.request(users.AlterUserScramCredentialsRequest(upsertions=[upsertion]))
        resource = configs.AlterConfigsResource(
            resource_type=ResourceType.BROKER,
            resource_name="1",
            configs=[configs.AlterableConfig(name="listener.name.x.ssl.keystore.password", value="hidden-4")],
        )
        await admin.request(configs.IncrementalAlterConfigsRequest(resources=[resource]))
        admin.close()
        ann.close()

    lines = lines_of(tmp_path, scenario)
    seen = [(line["principal"], line["api"], line["operation"], line["names"], line["result"]) for line in lines]
    assert seen == [
        ("User:ANONYMOUS", None, "AUTHENTICATE", ["Invalid username or password."], "DENIED"),
        ("User:admin", "CreateTopics", "CREATE", ["orders"], "OK"),
        (
            "User:admin",
            "CreateTopics",
            "CREATE",
            ["orders", "bad name\n"],
            {"orders": "TOPIC_ALREADY_EXISTS", "bad name\n": "INVALID_TOPIC_EXCEPTION"},
        ),
        ("User:ann", "CreateTopics", "CREATE", ["mine"], "DENIED"),
        ("User:ann", "CreateTopics", "CREATE", ["mine"], {"mine": "TOPIC_AUTHORIZATION_FAILED"}),
        ("User:admin", "CreateAcls", "CREATE", ["TOPIC:LITERAL:orders ALLOW READ User:ann from *"], "OK"),
        ("User:admin", "AlterUserScramCredentials", "ALTER", ["set bob mechanism 1"], "OK"),
        (
            "User:admin",
            "IncrementalAlterConfigs",
            "ALTER_CONFIGS",
            ["BROKER:1 (listener.name.x.ssl.keystore.password)"],
            "OK",
        ),
    ]
    assert {line["host"] for line in lines} == {"127.0.0.1"}
    assert {line["client_id"] for line in lines} == {None, "c\nd"}


def test_every_api_that_changes_metadata_has_an_audit_rule() -> None:
    reading = {46, 55}  # ListPartitionReassignments, DescribeQuorum
    assert CONTROLLER_APIS - reading <= CHANGES.keys() <= HANDLERS.keys()
    for key, change in CHANGES.items():
        assert all(isinstance(name, str) for name in change.names(request_class(key)()))


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def nanoseconds(self) -> int:
        return 0


def test_many_denials_are_rate_limited_in_the_audit_file_but_changes_are_not() -> None:
    clock, written = Clock(), []
    audit = Audit(clock, lambda line: written.append(json.loads(line)))
    ctx = RequestContext(19, 7, 0, "x" * 10_000, LocalConnection("L", "User:" + "y" * 10_000), 0)
    for _ in range(10_000):
        audit.denied(ctx, Operation.CREATE, AclResource.TOPIC, "z" * 10_000)
    passed = len(written)
    assert passed <= DENIED_PER_S * 10 + 1
    audit.changed(ctx, "CREATE", "TOPIC", (f"t{number}" for number in range(10**9)), "OK")
    assert len(written[-1]["names"]) == MAX_NAMES
    assert written[-1]["more"]
    assert max(len(json.dumps(line)) for line in written) < 2_000
    clock.now_ms += 1000
    audit.denied(ctx, Operation.CREATE, AclResource.TOPIC, "a")
    assert written[-2]["missing"] == 10_000 - passed
    assert CHANGED_PER_S > DENIED_PER_S


def test_many_refused_changes_of_one_user_do_not_suppress_other_audit_lines() -> None:
    clock, written = Clock(), []
    audit = Audit(clock, lambda line: written.append(json.loads(line)))
    bob, admin = (RequestContext(42, 2, 0, "c", LocalConnection("L", f"User:{one}"), 0) for one in ("bob", "admin"))
    for _ in range(10_000):
        audit.changed(bob, "DELETE", "GROUP", ["g"], {"g": "GROUP_AUTHORIZATION_FAILED"})
        audit.denied(bob, Operation.DELETE, AclResource.GROUP, "g")
    assert len(written) <= (DENIED_PER_S + REFUSED_PER_S) * 10 + 2
    written.clear()
    audit.changed(bob, "DELETE", "GROUP", ["own"], "OK")
    audit.changed(admin, "DELETE", "GROUP", ["ledger"], "OK")
    audit.changed(admin, "DELETE", "GROUP", ["ledger"], "GROUP_ID_NOT_FOUND")
    audit.denied(admin, Operation.DELETE, AclResource.GROUP, "other")
    assert [line["names"] for line in written] == [["own"], ["ledger"], ["ledger"], ["other"]]


def test_audit_file_limits_lines_per_principal_and_contains_the_number_of_omitted_lines() -> None:
    clock, written = Clock(), []
    audit = Audit(clock, lambda line: written.append(json.loads(line)))

    def deny(user: str) -> None:
        ctx = RequestContext(42, 2, 0, "c", LocalConnection("L", f"User:{user}"), 0)
        audit.denied(ctx, Operation.DELETE, AclResource.GROUP, "g")

    for _ in range(1_000):
        deny("bob")
    passed = len(written)
    for number in range(MAX_LIMITS):
        deny(str(number))
    assert len(audit._limits) == MAX_LIMITS
    (missing,) = (line for line in written if "missing" in line)
    assert (missing["missing"], missing["principal"]) == (1_000 - passed, "User:bob")


def test_audit_line_is_ascii_whatever_names_a_client_sends() -> None:
    written: list[bytes] = []
    audit = Audit(Clock(), written.append)
    name = 'é\u2028\u202e\x1b[2J\n{"time":"x"}'
    audit.changed(RequestContext(19, 7, 0, name, LocalConnection("L", name), 0), "CREATE", "TOPIC", [name], {name: "X"})
    (line,) = written
    assert all(32 <= byte < 127 for byte in line[:-1])
    assert line.endswith(b"}\n")
    fields = json.loads(line)
    assert [fields["principal"], fields["client_id"], *fields["names"], *fields["result"]] == [name] * 4


def test_topic_that_a_metadata_request_creates_gets_an_audit_line(tmp_path: Path) -> None:
    async def scenario(node: Node, port: int) -> None:
        admin = await connect(port, "admin", "a")
        for _ in range(2):
            await admin.request(MetadataRequest(topics=[MetadataRequestTopic(name="new")]))
        admin.close()

    (line,) = lines_of(tmp_path, scenario)
    assert [line[key] for key in ("principal", "api", "operation", "resource", "names", "result")] == [
        "User:admin",
        "Metadata",
        "CREATE",
        "TOPIC",
        ["new"],
        "OK",
    ]


def test_audit_lines_about_a_delegation_token_contain_its_id_but_not_its_hmac(tmp_path: Path) -> None:
    made: list[Any] = []

    async def scenario(node: Node, port: int) -> None:
        admin = await connect(port, "admin", "a")
        made.append(await admin.request(CreateDelegationTokenRequest(max_lifetime_ms=-1)))
        mac = made[0].hmac
        await admin.request(RenewDelegationTokenRequest(hmac=mac, renew_period_ms=-1))
        await admin.request(ExpireDelegationTokenRequest(hmac=mac, expiry_time_period_ms=-1))
        await admin.request(ExpireDelegationTokenRequest(hmac=mac, expiry_time_period_ms=-1))
        admin.close()

    lines = lines_of(tmp_path, scenario, **{"delegation.token.secret.key": "hidden-5"})
    assert [(line["operation"], line["names"], line["result"]) for line in lines] == [
        ("CREATE", [], "OK"),
        ("RENEW", [made[0].token_id], "OK"),
        ("EXPIRE", [made[0].token_id], "OK"),
        ("EXPIRE", [], "DELEGATION_TOKEN_NOT_FOUND"),
    ]


def test_node_does_not_start_if_its_audit_file_cannot_be_written(tmp_path: Path) -> None:
    async def main() -> None:
        own = {"penstock.audit.file": str(tmp_path / "nowhere" / "audit.log")}
        node = make_node(local_settings("/data", port=0, overrides=own), MemoryDisk(), seed=1)
        format_if_new(node)
        with pytest.raises(StorageError, match=r"penstock\.audit\.file"):
            await node.start()

    asyncio.run(main())


@pytest.mark.parametrize(("before", "after"), [(0o666, 0o640), (0o644, 0o640), (0o640, 0o640), (0o600, 0o600)])
def test_existing_audit_file_becomes_inaccessible_to_other_users(tmp_path: Path, before: int, after: int) -> None:
    path = tmp_path / "audit.log"
    path.touch()
    path.chmod(before)
    AuditFile(str(path)).check()
    assert stat.S_IMODE(path.stat().st_mode) == after


def test_audit_lines_go_to_a_new_file_after_the_audit_file_was_moved_away(tmp_path: Path) -> None:
    async def scenario(node: Node, port: int) -> None:
        admin = await connect(port, "admin", "a")
        await admin.request(creation("one"))
        file = node._audit_file
        assert file is not None
        await file.close()
        os.rename(tmp_path / "audit.log", tmp_path / "old.log")
        await admin.request(creation("two"))
        admin.close()

    assert [line["names"] for line in lines_of(tmp_path, scenario)] == [["two"]]
    assert json.loads((tmp_path / "old.log").read_text())["names"] == ["one"]
