"""Tests the REST API on real nodes: every route against the OpenAPI document, bad input, and the effect of changes."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import validate
from rest_harness import HTTP, LIMIT_S, append_batch, ask, begin_share_group, commit

from penstock.client.producer import ProducerSettings
from penstock.http import view
from penstock.http.messages import CHANGES
from penstock.http.rest.api import ROUTES
from penstock.http.rest.fields import Field
from penstock.http.rest.openapi import document
from penstock.http.rest.problems import BODY_TYPE
from penstock.http.rest.routes import Route
from penstock.http.streams import EVENT_STREAM
from penstock.records.build import build_batch
from penstock.records.compression import Codec
from penstock.testing import Cluster

SHARE_GROUP = "workers/night"
#: Input with which each route succeeds on the cluster of this module.
PATHS = {
    "topic": "orders",
    "node": "1",
    "resource": "topics",
    "name": "orders",
    "group": "readers",
    "id": "billing",
    "user": "ann",
    "operation": "1",
}
#: Routes that need more than this cluster has. `test_http_rest_changes` and other tests here call them.
CALLED_ELSEWHERE = (
    "delete_topic",
    "delete_group",
    "remove_user",
    "describe_operation",
    "cancel_operation",
    "change_records",
    "drain_share_group",
    "delete_share_group",
    "delete_share_offsets",
    "abort_hanging",
    "drain_nodes",
    "evacuate_directory",
)
#: Routes that a cluster without an authorizer refuses.
REFUSED = dict.fromkeys(("list_acls", "create_acls", "delete_acls"), (409, "SECURITY_DISABLED"))
ACL = {"resource": "topic", "name": "orders", "principal": "User:ann", "operations": ["read"]}
BODIES: dict[str, Any] = {
    "force_election": {"partitions": [{"topic": "orders", "partition": 0}]},
    "create_topic": {"name": "made", "partitions": 2, "configs": {"retention.ms": "60000"}, "validate_only": True},
    "add_partitions": {"total": 9, "validate_only": True},
    "trim_topic": {"partitions": [{"partition": 0, "before": 0}]},
    "change_configs": {"set": {"retention.ms": "70000"}, "validate_only": True},
    "move_replicas": {"replicas": []},
    "produce_records": {"records": [{"value": "x", "partition": 0}]},
    "reset_offsets": {"earliest": True, "dry_run": True},
    "reassign": {"partitions": [{"topic": "orders", "partition": 0}]},
    "drain_nodes": {"nodes": [2], "topics": [], "dry_run": True},
    "rebalance_cluster": {"dry_run": True},
    "balance_directories": {"dry_run": True},
    "evacuate_directory": {"directory": "/data"},
    "set_password": {"password": "secret"},
    "change_records": {"topic": "orders", "partition": 0, "first": 0, "change": "release"},
    "abort_hanging": {"topic": "orders", "partition": 0, "start_offset": 0},
    "create_acls": ACL,
    "delete_acls": ACL,
    "reset_share_offsets": {"earliest": True, "dry_run": True},
    "search_records": {"contains": "x"},
}


@pytest.fixture(autouse=True)
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns the cache off, so that every request reads the node's current state."""
    monkeypatch.setattr(view, "FRESH_S", 0.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, topics={"orders": 2}, config=HTTP) as running:
        commit(running, "readers", {("orders", 0): 0})
        with running.client() as client:
            begin_share_group(client, SHARE_GROUP, "orders")
            with client.producer(ProducerSettings(transactional_id="billing")):
                pass
        yield running


def filled(route: Route) -> str:
    """Returns the route's path with the parameters that it requires."""
    path = route.template
    for name in route.path:
        value = SHARE_GROUP if name == "group" and "share" in path else PATHS[name]
        path = path.replace("{" + name + "}", urllib.parse.quote(value, safe=""))
    required = {name: "0" for name, each in route.query.items() if each.required}
    return f"{path}?{urllib.parse.urlencode(required)}" if required else path


def test_openapi_document_is_valid_and_names_every_route(cluster: Cluster) -> None:
    served = ask(cluster, "GET", "/v1/openapi.json").value
    validate(served)
    assert served == json.loads(json.dumps(document(ROUTES, served["info"]["version"])))
    operations = [each["operationId"] for path in served["paths"].values() for each in path.values()]
    assert len(operations) == len(set(operations)) == len(ROUTES)


@pytest.mark.parametrize(
    "route", [each for each in ROUTES if each.name not in CALLED_ELSEWHERE], ids=lambda each: each.name
)
def test_every_route_answers_as_the_openapi_document_says(cluster: Cluster, route: Route) -> None:
    answer = ask(cluster, route.method, filled(route), BODIES.get(route.name, {} if route.body is not None else None))
    if route.name in REFUSED:
        assert (answer.status, answer.value["kafka_error"]) == REFUSED[route.name]
        return
    assert (answer.status, answer.kind) == (route.status, EVENT_STREAM if route.streams else BODY_TYPE)
    assert isinstance(answer.value, dict)


@pytest.mark.parametrize("route", [each for each in ROUTES if each.query], ids=lambda each: each.name)
def test_every_route_refuses_unknown_and_wrong_parameters(cluster: Cluster, route: Route) -> None:
    wrong = {name: "x" for name, each in route.query.items() if each.kind != "string" or each.choices}
    for query in [{"nonsense": "1"}, *({name: text} for name, text in wrong.items())]:
        path = filled(route)
        answer = ask(cluster, route.method, f"{path}{'&' if '?' in path else '?'}{urllib.parse.urlencode(query)}")
        assert (answer.status, answer.kind) == (400, "application/problem+json")
        assert next(iter(query)) in answer.value["detail"]


@pytest.mark.parametrize("route", [each for each in ROUTES if each.body is not None], ids=lambda each: each.name)
@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"text"',
        b"\xff",
        b"[" * 100_000,
        {"nonsense": 1},
        b'{"nonsense": ' + b"1" * 100_000 + b"}",
        b'{"a": 1, "a": 1}',
        b'{"\\ud800": 1}',
        b" " * 100_000 + b'{"\\udc00": [1e999]}',
    ],
)
def test_every_route_with_a_body_refuses_a_body_that_does_not_fit_its_schema(
    cluster: Cluster, route: Route, body: Any
) -> None:
    answer = ask(cluster, route.method, filled(route), body)
    assert (answer.status, answer.kind) == (400, "application/problem+json")
    assert answer.value.keys() >= {"type", "title", "status", "detail"}


@pytest.mark.parametrize("route", [each for each in ROUTES if each.body], ids=lambda each: each.name)
def test_every_field_of_the_rest_api_refuses_values_of_other_types(cluster: Cluster, route: Route) -> None:
    good = BODIES.get(route.name, {})
    for name, field in (route.body or {}).items():
        answer = ask(cluster, route.method, filled(route), {**good, name: _wrong(field)})
        assert answer.status == 400
        assert name in answer.value["detail"]


@pytest.mark.parametrize("route", [each for each in ROUTES if each.body], ids=lambda each: each.name)
@pytest.mark.parametrize("value", [2**31, 2**63 - 1, 2**63, -(2**63), 10**4000])
def test_rest_request_with_a_very_large_integer_causes_no_server_error(
    cluster: Cluster, route: Route, value: int
) -> None:
    good = BODIES.get(route.name, {})
    for name, field in (route.body or {}).items():
        for body in _with_integers(field, value):
            answer = ask(cluster, route.method, filled(route), {**good, name: body})
            assert answer.status < 500, (name, answer)


def _with_integers(field: Field, value: int) -> Iterator[Any]:
    """Yields values of the field, each with one integer replaced."""
    if field.kind == "integer":
        yield value
    elif field.items is not None:
        yield from ([each] for each in _with_integers(field.items, value))
    else:
        for name, each in field.fields.items():
            others = {key: _some(other) for key, other in field.fields.items() if other.required and key != name}
            yield from ({**others, name: found} for found in _with_integers(each, value))


def _some(field: Field) -> Any:
    return {"integer": 0, "string": "orders", "boolean": False, "array": [], "object": {}}[field.kind]


def _wrong(field: Field) -> Any:
    return 1.5 if field.kind != "array" else {"a": 1}


@pytest.mark.parametrize("route", [each for each in ROUTES if each.method in CHANGES], ids=lambda each: each.name)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_change_request_whose_content_type_is_not_json_is_refused(cluster: Cluster, route: Route, kind: str) -> None:
    """Forms of web pages of other origins have these types."""
    assert ask(cluster, route.method, filled(route), b"{}", kind=kind).status == 415


def test_rest_api_refuses_unknown_paths_and_methods(cluster: Cluster) -> None:
    assert ask(cluster, "GET", "/v1/nothing").status == 404
    assert ask(cluster, "DELETE", "/v1/topics").status == 405
    assert ask(cluster, "POST", "/", {}).status == 405
    assert ask(cluster, "GET", "/v1/topics/nothing").status == 404
    assert ask(cluster, "GET", "/v1/nodes/x/directories").status == 400
    assert ask(cluster, "GET", "/v1/configs/brokers/abc").status == 400
    assert ask(cluster, "POST", "/v1/topics/orders/trim", {"partitions": [{"partition": 7, "before": 0}]}).status == 404


def test_rest_api_can_create_configure_extend_trim_and_delete_a_topic(cluster: Cluster) -> None:
    assert ask(cluster, "POST", "/v1/topics", {"name": "made", "partitions": 1}).value == {
        "topic": "made",
        "created": True,
    }
    again = ask(cluster, "POST", "/v1/topics", {"name": "made"})
    assert (again.status, again.value["kafka_error"]) == (409, "TOPIC_ALREADY_EXISTS")
    assert ask(cluster, "POST", "/v1/topics", {"name": "a/b"}).status == 400
    assert ask(cluster, "PATCH", "/v1/configs/topics/made", {"set": {"retention.ms": "60000"}}).status == 200
    assert ask(cluster, "PATCH", "/v1/configs/topics/made", {"set": {"retention.ms": "x"}}).status == 400
    assert ask(cluster, "PATCH", "/v1/configs/topics/made", {}).status == 400
    configs = ask(cluster, "GET", "/v1/configs/topics/made").value["configs"]
    assert {each["name"]: each["value"] for each in configs}["retention.ms"] == "60000"
    assert ask(cluster, "POST", "/v1/topics/made/partitions", {"total": 2}).status == 200
    with cluster.client() as client, client.producer() as producer:
        producer.send_many("made", [(None, b"x", (), None)] * 5, partition=0)
    trimmed = ask(cluster, "POST", "/v1/topics/made/trim", {"partitions": [{"partition": 0, "before": 3}]})
    assert trimmed.value == {"starts": [{"partition": 0, "start_offset": 3}]}
    assert ask(cluster, "DELETE", "/v1/topics/made").value == {"deleted": "made"}
    assert ask(cluster, "DELETE", "/v1/topics/made").status == 404


def test_new_topic_is_visible_to_the_next_rest_request_even_on_a_node_that_is_not_the_controller(
    cluster: Cluster,
) -> None:
    follower = next(node for node in cluster.nodes if node != cluster.controller)
    for number in range(5):
        name = f"fresh-{number}"
        assert ask(cluster, "POST", "/v1/topics", {"name": name, "partitions": 1}, node=follower).status == 201
        assert ask(cluster, "GET", f"/v1/topics/{name}", node=follower).value["partitions"] == 1
        assert ask(cluster, "POST", f"/v1/topics/{name}/partitions", {"total": 3}, node=follower).status == 200
        assert ask(cluster, "GET", f"/v1/topics/{name}", node=follower).value["partitions"] == 3
        assert ask(cluster, "DELETE", f"/v1/topics/{name}", node=follower).status == 200
        assert ask(cluster, "GET", f"/v1/topics/{name}", node=follower).status == 404


def test_lists_of_the_rest_api_can_be_paged_and_searched(cluster: Cluster) -> None:
    rows = ask(cluster, "GET", "/v1/cluster/replication-status?limit=1000").value["partitions"]
    page = ask(cluster, "GET", "/v1/cluster/replication-status?limit=1&start=1").value
    assert (page["total"], page["start"]) == (len(rows), 1)
    assert [each["partition"] for each in page["partitions"]] == [rows[1]["partition"]]
    assert ask(cluster, "GET", "/v1/topics?search=rder&internal=false").value["total"] == 1
    assert ask(cluster, "GET", "/v1/cluster/replication-status?not_preferred=true").value["total"] <= len(rows)
    by_name = [row["topic"] for row in ask(cluster, "GET", "/v1/topics?internal=false").value["topics"]]
    by_size = ask(cluster, "GET", "/v1/topics?sort=partitions").value["topics"]
    assert by_name == sorted(by_name)
    assert [row["partitions"] for row in by_size] == sorted((row["partitions"] for row in by_size), reverse=True)
    assert ask(cluster, "GET", "/v1/topics?sort=colour").status == 400
    states = ask(cluster, "GET", "/v1/topics/orders?start=1&limit=1").value
    assert (states["partitions"], [row["partition"] for row in states["partition_states"]]) == (2, [1])
    assert ask(cluster, "GET", "/v1/topics?search=nothing").value["topics"] == []


def test_rest_api_can_append_read_search_and_page_records(cluster: Cluster) -> None:
    cluster.create_topic("notes", 1)
    rows = [{"value": f"note {number}", "key": "k", "headers": {"h": "1", "n": None}} for number in range(5)]
    rows.append({"value_base64": "//4="})
    sent = ask(cluster, "POST", "/v1/topics/notes/records", {"records": rows})
    assert (sent.status, [each["offset"] for each in sent.value["offsets"]]) == (201, list(range(6)))
    first = ask(cluster, "GET", "/v1/topics/notes/records?partition=0&limit=2").value
    assert [each["value"] for each in first["records"]] == [{"text": "note 0"}, {"text": "note 1"}]
    assert first["records"][0]["headers"] == [{"name": "h", "value": {"text": "1"}}, {"name": "n", "value": None}]
    assert (first["next_offset"], first["end_offset"]) == (2, 6)
    rest = ask(cluster, "GET", "/v1/topics/notes/records?partition=0&offset=4").value["records"]
    assert [(each["offset"], each["key"], each["value"]) for each in rest] == [
        (4, {"text": "k"}, {"text": "note 4"}),
        (5, None, {"base64": "//4="}),
    ]
    found = ask(cluster, "GET", "/v1/topics/notes/records?partition=0&contains=note%203").value["records"]
    assert [each["offset"] for each in found] == [3]
    at_time = ask(cluster, "GET", "/v1/topics/notes/records?partition=0&timestamp_ms=0&limit=1").value["records"]
    assert [each["offset"] for each in at_time] == [0]
    for surrogate in ({"value": "\ud800"}, {"headers": {"\ud800": "x"}}, {"headers": {"x": "\udfff"}}):
        assert ask(cluster, "POST", "/v1/topics/notes/records", {"records": [surrogate]}).status == 400
    assert ask(cluster, "GET", "/v1/topics/notes/records?partition=7").status == 404
    assert ask(cluster, "GET", "/v1/topics/notes/records?partition=0&offset=1&timestamp_ms=2").status == 400
    assert ask(cluster, "GET", "/v1/topics/notes/records?partition=0&offset=99").status == 400
    assert ask(cluster, "POST", "/v1/topics/none/records", {"records": [{"value": "x"}]}).status == 404
    for wrong in ([], [{"value_base64": "?"}], [{"value": "x", "value_base64": "eA=="}], [{"partition": -1}]):
        assert ask(cluster, "POST", "/v1/topics/notes/records", {"records": wrong}).status == 400


def test_rest_api_shows_records_that_decompress_to_many_bytes_without_their_values(cluster: Cluster) -> None:
    cluster.create_topic("bombs", 1)
    large = bytes(3 * 1024 * 1024)
    contents: list[tuple[bytes, tuple[tuple[str, bytes | None], ...]]] = [
        (large, ()),
        (b"v", ((large.decode(), b""),)),
        (bytes(40 * 1024 * 1024), ()),
        (b"many empty headers", (("", None),) * 100_000),
    ]
    now_ms = int(time.time() * 1000)  # retention would delete records of 1970
    for value, headers in contents:
        append_batch(cluster, "bombs", build_batch([(now_ms, None, value, headers)], compression=Codec.ZSTD))
    shown = ask(cluster, "GET", "/v1/topics/bombs/records?partition=0").value
    assert [
        (each["offset"], each["left_out"], each["value"], each["headers_left_out"]) for each in shown["records"]
    ] == [
        (0, True, None, 0),
        (1, True, None, 1),
        (3, False, {"text": "many empty headers"}, 99_000),
    ]
    assert [each["size"] for each in shown["records"][:2]] == [len(large), len(large) + 6]
    assert [len(each["headers"]) for each in shown["records"]] == [0, 0, 1000]
    assert (shown["batches_left_out"], shown["next_offset"]) == (1, 4)
    assert shown["problems"][0].startswith("Offset 2 can't be shown: A record batch unpacks to more than")


def test_rest_api_can_describe_reset_and_delete_a_group(cluster: Cluster) -> None:
    with cluster.client() as client, client.producer() as producer:
        producer.send_many("orders", [(None, b"x", (), None)] * 5, partition=1)
    commit(cluster, "billing", {("orders", 1): 2})
    assert "billing" in [row["group"] for row in ask(cluster, "GET", "/v1/groups?search=bill").value["groups"]]
    (row,) = ask(cluster, "GET", "/v1/groups/billing").value["partitions"]
    assert (row["committed"], row["end"], row["lag"]) == (2, 5, 3)
    targets: list[tuple[dict[str, Any], int]] = [
        ({"earliest": True}, 0),
        ({"latest": True}, 5),
        ({"offset": 99}, 5),
        ({"shift": -1}, 1),
        ({"timestamp_ms": 0}, 0),
    ]
    for target, after in targets:
        (row,) = ask(cluster, "POST", "/v1/groups/billing/reset-offsets", {**target, "dry_run": True}).value[
            "partitions"
        ]
        assert (row["before"], row["after"]) == (2, after)
    trim = {"partitions": [{"partition": 1, "before": 1}]}
    assert ask(cluster, "POST", "/v1/topics/orders/trim", trim).status == 200
    (row,) = ask(cluster, "POST", "/v1/groups/billing/reset-offsets", {"offset": 0, "dry_run": True}).value[
        "partitions"
    ]
    assert row["after"] == 1, "the record at offset 0 is gone"
    assert ask(cluster, "POST", "/v1/groups/billing/reset-offsets", {"shift": 1}).status == 200
    assert ask(cluster, "GET", "/v1/groups/billing").value["partitions"][0]["committed"] == 3
    repeated = {"earliest": True, "dry_run": True, "topics": ["orders"] * 5000}
    assert len(ask(cluster, "POST", "/v1/groups/billing/reset-offsets", repeated).value["partitions"]) == 2
    for wrong in ({}, {"earliest": True, "latest": True}, {"offset": -1}):
        assert ask(cluster, "POST", "/v1/groups/billing/reset-offsets", wrong).status == 400
    assert ask(cluster, "POST", "/v1/groups/none/reset-offsets", {"earliest": True}).status == 404
    assert ask(cluster, "POST", "/v1/groups/billing/reset-offsets", {"earliest": True, "topics": ["no"]}).status == 404
    assert ask(cluster, "DELETE", "/v1/groups/billing").status == 200
    assert ask(cluster, "GET", "/v1/groups/billing").status == 404
    assert ask(cluster, "DELETE", "/v1/groups/billing").status == 404


def test_rest_request_makes_the_quorum_leader_resign() -> None:
    with Cluster(nodes=3, config=HTTP) as cluster:
        first = cluster.controller
        other = next(node for node in cluster.nodes if node != first)
        refused = ask(cluster, "POST", "/v1/cluster/force-election", {}, node=other)
        assert (refused.status, refused.value["leader"]) == (409, first)
        resigned = ask(cluster, "POST", "/v1/cluster/force-election", {}, node=first)
        assert resigned.value["resigned"] == first
        assert cluster.controller in cluster.nodes
        kinds = [entry.event.KIND for entry in cluster.node(first).broker.events.entries]
        assert "quorum.majority_lost" not in kinds
        cluster.create_topic("t", 1)


def test_compaction_request_without_topics_writes_a_metadata_snapshot(cluster: Cluster) -> None:
    assert ask(cluster, "POST", "/v1/cluster/compact-log", {}).value["snapshot"].endswith(".checkpoint")


def test_health_and_readiness_pages_report_that_the_quorum_has_no_leader() -> None:
    with Cluster(nodes=2, topics={"t": 1}, config={**HTTP, "controller.quorum.fetch.timeout.ms": 500}) as cluster:
        assert ask(cluster, "GET", "/livez").value == {"status": "alive"}
        assert ask(cluster, "GET", "/readyz").value == {"status": "ready"}
        assert ask(cluster, "GET", "/v1/cluster/health").value["status"] == "healthy"
        assert ask(cluster, "GET", "/v1/cluster/health-check").status == 200
        cluster.kill(2)
        deadline = time.monotonic() + LIMIT_S
        while ask(cluster, "GET", "/readyz").status == 200:
            assert time.monotonic() < deadline, "one of two voters can't lead"
        assert ask(cluster, "GET", "/v1/cluster/health-check?degraded=true").status == 503
        assert ask(cluster, "GET", "/readyz").value["reasons"] == ["this node hears from no leader of the quorum"]
        assert ask(cluster, "GET", "/livez").status == 200
