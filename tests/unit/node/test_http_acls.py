"""Tests which HTTP requests a user may send: roles, ACLs, operations of other users, and streams."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from http_node import (
    ADMIN,
    ANN,
    AUTHORIZER,
    SECURED,
    Http,
    allow,
    alter_users,
    set_password,
    with_node,
)

from penstock.http import guard
from penstock.http.rest import events
from penstock.http.rest.api import ROUTES
from penstock.node.node import Node
from penstock.protocol.messages import api_51_alter_user_scram_credentials as scram_users
from penstock.security.scram import ScramMechanism
from penstock.security.vocabulary import AclResource, Operation

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


def test_role_of_an_http_user_decides_which_routes_the_user_may_call() -> None:
    async def scenario(node: Node) -> None:
        http = Http(node)
        for method, path, body, statuses in KINDS:
            for user, status in zip(("dora", "ann", "bob", "carl"), statuses):
                answer = await http.ask(path, (user, "a"), method=method, body=body)
                assert (user, method, path, answer.status) == (user, method, path, status)

    jaas = {"listener.name.sasl_plaintext.plain.sasl.jaas.config": ROLE_USERS}
    with_node(scenario, {**SECURED, **ROLES, **jaas})


#: Requests that a user with the role operate and without ACLs may not send: method, path, body, and the operation, the
#: resource and the name in the audit line.
DENIED: list[tuple[str, str, Any, tuple[str, str, str]]] = [
    ("GET", "/v1/topics/hidden", None, ("DESCRIBE", "TOPIC", "hidden")),
    ("GET", "/v1/topics/hidden/records?partition=0", None, ("DESCRIBE", "TOPIC", "hidden")),
    ("GET", "/v1/topics/hidden/records/stream", None, ("DESCRIBE", "TOPIC", "hidden")),
    ("POST", "/v1/topics/hidden/records", {"records": [{"value": "x"}]}, ("DESCRIBE", "TOPIC", "hidden")),
    ("POST", "/v1/topics/hidden/search", {"contains": "x"}, ("DESCRIBE", "TOPIC", "hidden")),
    (
        "POST",
        "/v1/topics/hidden/trim",
        {"partitions": [{"partition": 0, "before": -1}]},
        ("DESCRIBE", "TOPIC", "hidden"),
    ),
    ("DELETE", "/v1/topics/hidden", None, ("DELETE", "TOPIC", "hidden")),
    ("GET", "/metrics", None, ("DESCRIBE", "CLUSTER", "kafka-cluster")),
    ("PUT", "/v1/users/admin/password", {"password": "x"}, ("USE", "ROLE", "admin")),
    ("POST", "/v1/acls", {"resource": "cluster", "principal": "User:ann"}, ("USE", "ROLE", "admin")),
    ("PATCH", "/v1/configs/brokers/1", {"set": {"a": "b"}}, ("USE", "ROLE", "admin")),
]


def test_each_http_request_denied_by_a_role_or_an_acl_gets_one_audit_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"

    async def scenario(node: Node) -> None:
        http = Http(node)
        assert (await http.ask("/v1/topics", ADMIN, method="POST", body={"name": "hidden"})).status == 201
        for method, target, body, _ in DENIED:
            assert (target, (await http.ask(target, ANN, method=method, body=body)).status) == (target, 403)
        assert (await http.ask("/v1/topics", ("bob", "b:ö"))).status == 403
        assert json.loads((await http.ask("/v1/topics", ANN)).body)["topics"] == []  # hidden, not denied

    roles = {"penstock.http.roles": "operate=User:ann"}
    with_node(scenario, {**SECURED, **AUTHORIZER, **roles, "penstock.audit.file": str(path)})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    denied = [
        (line["principal"], line["host"], line["client_id"], line["operation"], line["resource"], *line["names"])
        for line in lines
        if line["result"] == "DENIED"
    ]
    expected = [
        ("User:ann", "127.0.0.1", f"http {method} {target.partition('?')[0]}", *what)
        for method, target, _, what in DENIED
    ]
    assert denied == [*expected, ("User:bob", "127.0.0.1", "http GET /v1/topics", "USE", "ROLE", "view")]


def test_acls_limit_what_an_http_user_may_do_if_an_authorizer_is_set() -> None:
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


def test_lag_history_of_a_group_shows_only_topics_that_the_http_user_may_describe() -> None:
    async def scenario(node: Node) -> None:
        http = Http(node)
        for topic in ("open", "closed"):
            for path, body in (
                ("/v1/topics", {"name": topic, "partitions": 1}),
                (f"/v1/topics/{topic}/records", {"records": [{"value": "x"}] * 3}),
            ):
                assert (await http.ask(path, ADMIN, method="POST", body=body)).status == 201
        reset = {"topics": ["open", "closed"], "earliest": True}
        assert (await http.ask("/v1/groups/g/reset-offsets", ADMIN, method="POST", body=reset)).status == 200
        await allow(node, "ann", AclResource.GROUP, "g", Operation.DESCRIBE)
        await allow(node, "ann", AclResource.TOPIC, "open", Operation.DESCRIBE)
        for user, lag in ((ADMIN, 6), (ANN, 3), (ADMIN, 6)):
            seen = json.loads((await http.ask("/v1/groups/g", user)).body)
            assert (seen["lag"], {each for _, each in seen["lag_history"]}) == (lag, {lag})

    with_node(scenario, {**SECURED, **AUTHORIZER})


#: Valid bodies of changes, by the name of the operation; all other changes have an empty body.
BODIES: dict[str, Any] = {
    "create_topic": {"name": "hidden-new"},
    "add_partitions": {"total": 9},
    "trim_topic": {"partitions": [{"partition": 0, "before": -1}]},
    "change_configs": {"set": {"retention.ms": "1000"}},
    "reset_offsets": {"earliest": True, "topics": ["hidden"]},
    "reset_share_offsets": {"earliest": True, "topics": ["hidden"]},
    "produce_records": {"records": [{"value": "x"}]},
    "search_records": {"contains": "x"},
    "reassign": {"partitions": [{"topic": "hidden", "partition": 0, "replicas": [1]}]},
    "move_replicas": {"replicas": [{"topic": "hidden", "partition": 0, "directory": "/x"}]},
    "drain_nodes": {"nodes": [1]},
    "evacuate_directory": {"directory": "/x"},
    "set_password": {"password": "x"},
    "change_records": {"topic": "hidden", "partition": 0, "first": 0, "change": "archive"},
    "abort_hanging": {"topic": "hidden", "partition": 0, "start_offset": 0},
    "create_acls": {"resource": "cluster", "principal": "User:ann"},
    "delete_acls": {"resource": "cluster", "principal": "User:ann"},
}
PATHS = {"node": "1", "resource": "topics", "operation": "1"}


def test_http_user_without_acls_cannot_read_or_change_data_on_any_route() -> None:
    async def scenario(node: Node) -> None:
        http = Http(node)
        assert (await http.ask("/v1/topics", ADMIN, method="POST", body={"name": "hidden"})).status == 201
        written = {"records": [{"value": "x"}]}
        assert (await http.ask("/v1/topics/hidden/records", ADMIN, method="POST", body=written)).status == 201
        await set_password(node, "hidden", "x", ScramMechanism.SHA_256)
        before = node.broker.metadata.image
        for route in ROUTES:
            if route.public or route.template.endswith("openapi.json"):
                continue
            path = re.sub(r"\{(\w+)\}", lambda found: PATHS.get(found[1], "hidden"), route.template)
            path += "?partition=0" if any(each.required for each in route.query.values()) else ""
            body = BODIES.get(route.name, {}) if route.body is not None else None
            answer = await http.ask(path, ANN, method=route.method, body=body)
            if route.method == "GET" and answer.status == 200:
                assert (path, b"hidden" in answer.body) == (path, False)
            else:
                assert (path, answer.status in (403, 404)) == (path, True), (answer.status, answer.body)
        after = node.broker.metadata.image
        assert (after.topics, after.configs, after.acls) == (before.topics, before.configs, before.acls)
        assert after.scram_credentials == before.scram_credentials

    with_node(scenario, {**SECURED, **AUTHORIZER})


def test_http_user_cannot_see_an_operation_that_another_user_started() -> None:
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


def test_records_for_an_internal_topic_are_refused_over_http() -> None:
    async def scenario(node: Node) -> None:
        http = Http(node)
        await node.broker.topic_creator.ensure("__penstock_events")
        await allow(node, "ann", AclResource.TOPIC, "*", Operation.ALL)
        for user in (ADMIN, ANN):
            path, body = "/v1/topics/__penstock_events/records", {"records": [{"value": "forged"}]}
            refused = await http.ask(path, user, method="POST", body=body)
            assert (refused.status, json.loads(refused.body)["kafka_error"]) == (400, "INVALID_TOPIC_EXCEPTION")

    with_node(scenario, {**SECURED, **AUTHORIZER})


def test_http_stream_ends_when_the_user_who_reads_it_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "STREAM_CHECK_S", 0.0)
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(events, "LOOK_EVERY_S", 0.01)

    async def scenario(node: Node) -> None:
        await set_password(node, "eve", "one", ScramMechanism.SHA_256)
        reader, writer = await Http(node).send(Http.request("/v1/events/stream", ("eve", "one")))
        await reader.readuntil(b": alive")
        gone = scram_users.ScramCredentialDeletion(name="eve", mechanism=ScramMechanism.SHA_256)
        await alter_users(node, scram_users.AlterUserScramCredentialsRequest(deletions=[gone]))
        assert (await reader.read()).endswith(b"0\r\n\r\n"), "the stream has an end"
        writer.close()

    with_node(scenario, SECURED)
