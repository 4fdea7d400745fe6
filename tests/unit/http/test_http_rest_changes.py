"""Tests changes of share groups, transactions, users and ACLs with the REST API, and long operations."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest
from rest_harness import HTTP, ask, begin_share_group, commit, ended

from penstock.client.cluster_facts import Facts
from penstock.client.group_admin import GroupAdmin
from penstock.client.producer import ProducerSettings
from penstock.client.replica_moves import MovePlan, ReplicaMoves
from penstock.http import operations, view
from penstock.http.operations import Operation
from penstock.http.rest import moves
from penstock.http.rest.routes import Call
from penstock.protocol.vocabulary import ConfigOperation, ResourceType
from penstock.testing import Broker, Cluster
from waiting import until


@pytest.fixture(autouse=True)
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns the cache off, so that every request reads the node's current state."""
    monkeypatch.setattr(view, "FRESH_S", 0.0)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config=HTTP) as running:
        yield running


def fill(broker: Broker, topic: str, values: list[bytes], partitions: int = 1, **configs: str) -> None:
    broker.create_topic(topic, partitions, **configs)
    with broker.client() as client, client.producer() as producer:
        for index in range(partitions):
            producer.send_many(topic, [(b"k", value, (), None) for value in values], partition=index)


# --- groups with a slash


def test_group_id_with_a_slash_is_written_with_a_percent_encoded_slash_in_the_path(broker: Broker) -> None:
    fill(broker, "slashed", [b"x"] * 3)
    group = "team/a b/../%2F"
    with broker.client():
        commit(broker, group, {("slashed", 0): 1})
    path = f"/v1/groups/{urllib.parse.quote(group, safe='')}"
    assert ask(broker, "GET", path).value["partitions"][0]["lag"] == 2
    assert ask(broker, "POST", f"{path}/reset-offsets", {"latest": True}).status == 200
    assert ask(broker, "DELETE", path).value == {"deleted": group}
    assert ask(broker, "GET", "/v1/groups/team/a").status == 404


# --- share groups


def test_rest_api_can_show_release_archive_and_drain_records_in_flight_of_a_share_group(broker: Broker) -> None:
    fill(broker, "jobs", [b"x"] * 6)
    path = "/v1/share-groups/crew"
    with broker.client() as client:
        client.alter_configs(ResourceType.GROUP, "crew", [("share.auto.offset.reset", ConfigOperation.SET, "earliest")])
        with client.share_consumer("crew", ["jobs"]) as consumer:
            found: list[Any] = []
            while len(found) < 6:
                found += consumer.poll()
            shown = ask(broker, "GET", path).value
            assert (shown["state"], len(shown["members"])) == ("Stable", 1)
            [window] = ask(broker, "GET", f"{path}/windows?topic=jobs").value["windows"]
            assert (window["acquired"], window["records"][0]["member"]) == (6, shown["members"][0]["member"])
            own = ask(broker, "GET", "/v1/share-windows").value["windows"]
            assert [each["acquired"] for each in own if each["group"] == "crew"] == [6]
            one = {"topic": "jobs", "partition": 0}
            archived = ask(broker, "POST", f"{path}/records", {**one, "first": 0, "last": 1, "change": "archive"})
            assert (archived.status, archived.value["last"]) == (200, 1)
            assert ask(broker, "POST", f"{path}/records", {**one, "first": 3, "change": "release"}).status == 200
            for wrong, status in (
                ({**one, "first": 3, "change": "eat"}, 400),
                ({**one, "first": 3, "last": 2, "change": "release"}, 400),
                ({**one, "first": 1, "change": "release"}, 409),
                ({"topic": "jobs", "partition": 7, "first": 1, "change": "release"}, 404),
            ):
                assert ask(broker, "POST", f"{path}/records", wrong).status == status
            assert ask(broker, "POST", f"{path}/reset-offsets", {"latest": True}).status == 409
            dry = ended(broker, ask(broker, "POST", f"{path}/drain", {"dry_run": True}))
            assert dry["result"]["partitions"] == [{**one, "records": 4}]
            drained = ended(broker, ask(broker, "POST", f"{path}/drain", {}))
            assert (drained["state"], drained["progress"]["done"]) == ("done", 1)
            [window] = ask(broker, "GET", f"{path}/windows").value["windows"]
            assert (window["start_offset"], window["end_offset"]) == (6, 6)
    assert ask(broker, "GET", path).value["partitions"][0]["lag"] == 0


def test_rest_api_limits_the_start_offset_of_a_share_group_to_the_log(broker: Broker) -> None:
    fill(broker, "bounded", [b"x"] * 4)
    with broker.client() as client:
        begin_share_group(client, "bounded-crew", "bounded")
        client.delete_records({("bounded", 0): 2})
    for offset, start in ((2**63 - 1, 4), (0, 2), (3, 3)):
        reset = {"offset": offset, "topics": ["bounded"]}
        [row] = ask(broker, "POST", "/v1/share-groups/bounded-crew/reset-offsets", reset).value["partitions"]
        assert (row["after"], row["kafka_error"]) == (start, None)


def test_rest_api_resets_and_deletes_start_offsets_of_a_share_group(broker: Broker) -> None:
    fill(broker, "shared", [b"x"] * 4)
    with broker.client() as client:
        begin_share_group(client, "gang", "shared")
    path = "/v1/share-groups/gang"
    assert "gang" in [row["group"] for row in ask(broker, "GET", "/v1/share-groups?search=gan").value["groups"]]
    [row] = ask(broker, "POST", f"{path}/reset-offsets", {"latest": True, "dry_run": True}).value["partitions"]
    assert (row["after"], row["kafka_error"]) == (4, None)
    assert ask(broker, "POST", f"{path}/reset-offsets", {"offset": 2, "topics": ["shared"]}).status == 200
    assert ask(broker, "GET", path).value["partitions"][0]["start"] == 2
    for wrong, status in (
        ({}, 400),
        ({"earliest": True, "latest": True}, 400),
        ({"latest": True, "topics": ["no"]}, 404),
    ):
        assert ask(broker, "POST", f"{path}/reset-offsets", wrong).status == status
    assert ask(broker, "POST", f"{path}/drain", {}).status == 409, "no member fetches"
    assert ask(broker, "DELETE", f"{path}/offsets/shared").value == {"group": "gang", "deleted": "shared"}
    assert ask(broker, "GET", path).value["partitions"] == []
    assert ask(broker, "DELETE", path).value == {"deleted": "gang"}
    assert ask(broker, "GET", path).status == 404
    assert ask(broker, "DELETE", path).status == 404


# --- transactions


def test_rest_api_can_list_describe_and_terminate_a_transaction(broker: Broker) -> None:
    fill(broker, "paid", [])
    with broker.client() as client, client.producer(ProducerSettings(transactional_id="pay/1")) as producer:
        producer.begin()
        producer.send("paid", b"x").result()
        listed = ask(broker, "GET", "/v1/transactions?search=pay&state=Ongoing").value["transactions"]
        assert [row["transactional_id"] for row in listed] == ["pay/1"]
        assert ask(broker, "GET", "/v1/transactions?state=Odd").status == 400
        described = ask(broker, "GET", "/v1/transactions/pay%2F1").value
        assert (described["state"], described["partitions"]) == ("Ongoing", ["paid-0"])
        ended_one = ask(broker, "POST", "/v1/transactions/pay%2F1/terminate", {}).value
        assert ended_one == {"transactional_id": "pay/1", "state_before": "Ongoing", "aborted": True}
        again = ask(broker, "POST", "/v1/transactions/pay%2F1/terminate", {}).value
        assert again["aborted"] is False
    assert ask(broker, "GET", "/v1/transactions/none").status == 404
    assert ask(broker, "POST", "/v1/transactions/none/terminate", {}).status == 404


def test_rest_api_aborts_an_open_transaction_on_a_partition_and_answers_404_for_a_wrong_start_offset(
    broker: Broker,
) -> None:
    fill(broker, "hung", [])
    with broker.client() as client, client.producer(ProducerSettings(transactional_id="hangs")) as producer:
        producer.begin()
        producer.send("hung", b"x").result()
        hanging = ask(broker, "GET", "/v1/hanging-transactions?topic=hung&max_age_ms=0").value
        assert (hanging["transactions"], hanging["unread"]) == ([], []), "the coordinator knows the transaction"
        one = {"topic": "hung", "partition": 0}
        assert ask(broker, "POST", "/v1/hanging-transactions/abort", {**one, "start_offset": 7}).status == 404
        assert (
            ask(broker, "POST", "/v1/hanging-transactions/abort", {**one, "partition": 7, "start_offset": 0}).status
            == 404
        )
        assert ask(broker, "GET", "/v1/hanging-transactions?topic=none").status == 404
        done = ask(broker, "POST", "/v1/hanging-transactions/abort", {**one, "start_offset": 0}).value
        assert done["aborted"] is True
        assert ask(broker, "POST", "/v1/transactions/hangs/terminate", {}).status == 200


# --- users and ACLs


def test_rest_api_can_create_list_and_remove_scram_users(broker: Broker) -> None:
    assert ask(broker, "PUT", "/v1/users/bob/password", {"password": "secret", "iterations": 5000}).status == 200
    rows = ask(broker, "GET", "/v1/users?search=bob").value["users"]
    assert [(row["mechanism"], row["iterations"]) for row in rows] == [("SCRAM-SHA-256", 5000), ("SCRAM-SHA-512", 5000)]
    for wrong in ({"password": ""}, {"password": "x", "mechanisms": ["PLAIN"]}, {"password": "x", "iterations": 1}):
        assert ask(broker, "PUT", "/v1/users/bob/password", wrong).status == 400
    assert ask(broker, "DELETE", "/v1/users/bob").value["removed"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert ask(broker, "DELETE", "/v1/users/bob").status == 404


def test_rest_api_can_create_list_and_delete_acls() -> None:
    config = {
        **HTTP,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    acl = {"resource": "topic", "name": "or", "pattern": "prefixed", "principal": "User:ann", "operations": ["read"]}
    with Broker(config=config) as broker:
        created = ask(broker, "POST", "/v1/acls", acl)
        assert (created.status, created.value["created"][0]["pattern"]) == (201, "prefixed")
        assert ask(broker, "GET", "/v1/acls?resource=topic&name=orders").value["total"] == 1
        assert ask(broker, "GET", "/v1/acls?resource=topic&name=x").value["total"] == 0
        assert ask(broker, "GET", "/v1/acls?resource=odd").status == 400
        for wrong in (
            {"resource": "odd"},
            {"operations": ["eat"]},
            {"pattern": "x"},
            {"permission": "x"},
            {"name": ""},
        ):
            assert ask(broker, "POST", "/v1/acls", {**acl, **wrong}).status == 400
        assert ask(broker, "POST", "/v1/acls", {**acl, "principal": "ann"}).status == 400
        assert ask(broker, "POST", "/v1/acls/delete", {**acl, "operations": ["write"]}).status == 404
        assert len(ask(broker, "POST", "/v1/acls/delete", acl).value["deleted"]) == 1
        cluster = {"resource": "cluster", "principal": "User:ann", "permission": "deny"}
        assert ask(broker, "POST", "/v1/acls", cluster).value["created"][0]["name"] == "kafka-cluster"


# --- operations


def test_record_search_finds_records_in_all_partitions_and_shows_its_progress(broker: Broker) -> None:
    fill(broker, "hay", [b"straw"] * 50 + [b"a needle"] + [b"straw"] * 50, partitions=3)
    found = ended(broker, ask(broker, "POST", "/v1/topics/hay/search", {"contains": "needle"}))
    assert (found["state"], found["result"]["complete"]) == ("done", True)
    assert found["progress"] == {"done": 303, "total": 303, "unit": "offsets"}
    rows = found["result"]["records"]
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 50), (1, 50), (2, 50)]
    full = ended(broker, ask(broker, "POST", "/v1/topics/hay/search", {"contains": "straw", "limit": 5}))
    assert (len(full["result"]["records"]), full["result"]["complete"], len(full["notes"])) == (5, False, 1)
    for wrong, status in (({"contains": ""}, 400), ({"contains": "x", "partitions": [9]}, 404)):
        assert ask(broker, "POST", "/v1/topics/hay/search", wrong).status == status
    assert ask(broker, "POST", "/v1/topics/none/search", {"contains": "x"}).status == 404
    listed = ask(broker, "GET", "/v1/operations").value["operations"]
    assert [each["operation"] for each in listed] == sorted((each["operation"] for each in listed), reverse=True)
    assert ask(broker, "GET", "/v1/operations/9999").status == 404


def test_rest_operations_are_limited_in_number_can_be_cancelled_and_report_their_errors(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(broker, "slow", [b"x"] * 3)

    async def forever(*_: Any) -> Any:
        await asyncio.Event().wait()
        yield None

    monkeypatch.setattr("penstock.http.rest.record_search._found", forever)
    allowed = operations.MAX_RUNNING_OF_USER
    begun = [ask(broker, "POST", "/v1/topics/slow/search", {"contains": "x"}) for _ in range(allowed)]
    refused = ask(broker, "POST", "/v1/topics/slow/search", {"contains": "x"})
    limit = {"limit": "operations of one user", "allowed": allowed}
    assert (refused.status, refused.value) == (429, {**refused.value, **limit})
    for each in begun:
        path = f"/v1/operations/{each.value['operation']}"
        assert ask(broker, "GET", path).value["state"] == "running"
        assert ask(broker, "POST", f"{path}/cancel", {}).value["cancelled"] is True
        assert ended(broker, each)["state"] == "cancelled"
        assert ask(broker, "POST", f"{path}/cancel", {}).value["cancelled"] is False

    def broken(*_: Any) -> Any:
        raise operations.OperationError("the disk is full: free some space")

    monkeypatch.setattr("penstock.http.rest.record_search._found", broken)
    failed = ended(broker, ask(broker, "POST", "/v1/topics/slow/search", {"contains": "x"}))
    assert (failed["state"], failed["error"]) == ("failed", "the disk is full: free some space")


def test_compaction_request_compacts_the_named_topics_immediately(broker: Broker) -> None:
    fill(broker, "keyed", [b"1", b"2", b"3"], cleanup_policy="compact")
    fill(broker, "plain", [b"1"])
    assert ask(broker, "POST", "/v1/cluster/compact-log", {"topics": ["plain"]}).status == 409
    assert ask(broker, "POST", "/v1/cluster/compact-log", {"topics": ["none"]}).status == 404
    begun = ask(broker, "POST", "/v1/cluster/compact-log", {"topics": ["keyed"]})
    [row] = ended(broker, begun._replace(status=202))["result"]["partitions"]
    assert (row["topic"], row["records_read"], row["records_kept"]) == ("keyed", 3, 1)
    shown = ask(broker, "GET", "/v1/topics/keyed/records?partition=0").value["records"]
    assert [record["value"] for record in shown] == [{"text": "3"}]


# --- moves


def test_rest_operations_drain_a_node_and_rebalance_the_cluster() -> None:
    with Cluster(nodes=3, config={**HTTP, "default.replication.factor": 2}) as cluster:
        with cluster.client() as client:
            client.create_topic("moved", 4, 2)
        plan = ended(cluster, ask(cluster, "POST", "/v1/cluster/drain", {"nodes": [3], "dry_run": True}))
        assert (plan["state"], plan["result"]["cordoned"]) == ("done", [3])
        assert all(3 in row["from"] and 3 not in row["to"] for row in plan["result"]["moves"])
        assert plan["result"]["moves"]
        drained = ended(cluster, ask(cluster, "POST", "/v1/cluster/drain", {"nodes": [3], "at_once": 2}))
        assert (drained["state"], drained["notes"]) == ("done", [])
        assert drained["progress"]["done"] == drained["progress"]["total"] == len(drained["result"]["moves"])
        rows = ask(cluster, "GET", "/v1/cluster/replication-status").value["partitions"]
        assert rows
        assert not any(3 in row["replicas"] for row in rows)
        back = ended(cluster, ask(cluster, "POST", "/v1/cluster/rebalance", {"onto": [3]}))
        assert back["state"] == "done"
        rows = ask(cluster, "GET", "/v1/cluster/replication-status").value["partitions"]
        assert any(3 in row["replicas"] for row in rows)
        assert ask(cluster, "POST", "/v1/cluster/drain", {"nodes": [9]}).status == 404
        assert ask(cluster, "POST", "/v1/cluster/drain", {"nodes": [1, 2]}).status == 409, "too few nodes are left"
        assert ask(cluster, "POST", "/v1/cluster/rebalance", {"onto": [9]}).status == 409


def test_rest_operations_evacuate_a_log_directory_and_balance_log_directories() -> None:
    with Broker(config={**HTTP, "log.dirs": "/data/a,/data/b"}, topics={"moved": 4}) as broker:
        held = ask(broker, "GET", "/v1/nodes/1/directories").value["directories"]
        assert [each["path"] for each in held] == ["/data/a", "/data/b"]
        done = ended(broker, ask(broker, "POST", "/v1/nodes/1/evacuate", {"directory": "/data/b/"}))
        assert (done["state"], done["progress"]["done"] > 0) == ("done", True)
        held = ask(broker, "GET", "/v1/nodes/1/directories").value["directories"]
        assert [(each["path"], each["replicas"] > 0) for each in held] == [("/data/a", True), ("/data/b", False)]
        assert held[1]["cordoned"] is True
        assert ended(broker, ask(broker, "POST", "/v1/nodes/1/balance", {"dry_run": True}))["state"] == "done"
        assert ask(broker, "POST", "/v1/nodes/1/evacuate", {"directory": "/data/x"}).status == 404
        assert ask(broker, "POST", "/v1/nodes/7/balance", {}).status == 502


def test_cancelled_rest_operation_keeps_the_replication_throttle_while_its_moves_still_run() -> None:
    done: list[str] = []

    class Moves:
        async def cordon(self, *_: Any) -> list[str]:
            return []

        async def throttle(self, *_: Any) -> None:
            done.append("throttled")

        async def unthrottle(self) -> list[str]:
            done.append("unthrottled")
            return []

        async def carry_out(self, *_: Any) -> AsyncIterator[int]:
            yield 1
            raise asyncio.CancelledError

    async def scenario() -> Operation:
        call = Call({}, {}, {"throttle_bytes_per_second": 1000})
        operation = Operation(1, "User:ann", "drain", "moves", 0)
        facts = Facts("c", 1, 1, [], {}, [])
        with pytest.raises(asyncio.CancelledError):
            await moves._carry_out(operation, cast(ReplicaMoves, Moves()), call, MovePlan([]), facts, [])
        return operation

    operation = asyncio.run(scenario())
    assert (done, operation.done, operation.notes) == (["throttled"], 1, [moves.THROTTLE_STAYS])


def test_rest_api_can_change_and_delete_the_consumer_offsets_topic_as_in_apache_kafka() -> None:
    """Apache Kafka 4.3.1 accepts both: groups lose their offsets, and the next commit creates the topic again."""
    with Broker(config=HTTP, topics={"t": 1}) as broker, broker.client() as client:
        admin = GroupAdmin(client.asynchronous)
        commit(broker, "g", {("t", 0): 0})
        offsets_topic = "__consumer_offsets"
        change = {"set": {"cleanup.policy": "delete"}}
        assert ask(broker, "PATCH", f"/v1/configs/topics/{offsets_topic}", change).status == 200
        assert ask(broker, "DELETE", f"/v1/topics/{offsets_topic}").status == 200
        until(lambda: client.run(admin.committed("g")) == {})
        until(lambda: client.run(admin.commit("g", {("t", 0): 0})) == {})
        assert client.run(admin.committed("g")) == {("t", 0): 0}
        assert offsets_topic in broker.node.broker.metadata.image.topics
