"""Tests the metrics page of a real broker over a real socket: Prometheus' own client parses it."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.broker.events.kinds import CorruptionFound
from penstock.client.share_consumer import Delivered
from penstock.http import metrics_page, partition_metrics
from penstock.http.exposition import Family, gauge
from penstock.http.metrics_page import MetricsPage
from penstock.http.pipelines import Pipeline
from penstock.http.places import MAX_CONNECTIONS
from penstock.http.view import View
from penstock.net.traffic import KNOWN
from penstock.protocol.messages.api_08_offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.protocol.uuid import uuid_to_str
from penstock.protocol.vocabulary import Acknowledge, ResourceType
from penstock.runs import Query
from penstock.testing import Broker

Series = dict[str, dict[frozenset[tuple[str, str]], float]]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 2, "bare": 1}, config={"penstock.http.listener": "127.0.0.1:0"}) as running:
        yield running


def url(broker: Broker, path: str) -> str:
    found = broker.node.http.url
    assert found is not None
    return found.rstrip("/") + path


def series(broker: Broker, query: str = "") -> Series:
    with urllib.request.urlopen(url(broker, f"/metrics{query}"), timeout=120) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = answer.read().decode()
    found: Series = {}
    for metric in text_string_to_metric_families(text):
        assert metric.documentation.endswith("."), metric.name
        for sample in metric.samples:
            assert (metric.type == "counter") == sample.name.endswith("_total"), sample.name
            labels = frozenset(sample.labels.items())
            assert labels not in found.setdefault(sample.name, {}), f"{sample.name} {labels} comes twice"
            found[sample.name][labels] = sample.value
    return found


def of(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


def test_metrics_show_offsets_sizes_and_lag_of_the_broker(broker: Broker) -> None:
    with broker.client() as client:
        with client.producer() as producer:
            for number in range(10):
                producer.send("orders", b"%d" % number, partition=number % 2)
        partitions = [
            OffsetCommitRequestPartition(partition_index=0, committed_offset=2),
            OffsetCommitRequestPartition(partition_index=1, committed_offset=5),
        ]
        topics = [OffsetCommitRequestTopic(name="orders", partitions=partitions)]
        coordinator = client.run(client.asynchronous.coordinator("readers"))
        answer = client.request(OffsetCommitRequest(group_id="readers", topics=topics), node=coordinator, version=8)
        assert [each.error_code for each in answer.topics[0].partitions] == [0, 0]
    found = series(broker)
    assert found["penstock_partition_log_end_offset"][of(topic="orders", partition="0")] == 5
    assert found["penstock_partition_high_watermark"][of(topic="orders", partition="1")] == 5
    assert found["penstock_partition_in_sync_replicas"][of(topic="orders", partition="1")] == 1
    assert found["penstock_topic_log_end_offset"][of(topic="orders")] == 10
    assert found["penstock_topic_records"][of(topic="bare")] == 0
    assert found["penstock_topic_size_bytes"][of(topic="orders")] > 0
    assert found["penstock_group_lag_records"] == {of(group="readers", topic="orders"): 3}
    assert found["penstock_groups"][of()] == 1
    if KNOWN:
        assert found["penstock_network_received_bytes_total"][of(listener="PLAINTEXT")] > 100
        assert found["penstock_network_sent_bytes_total"][of(listener="PLAINTEXT")] > 100


def test_metrics_show_for_each_api_how_long_the_phases_of_its_requests_took() -> None:
    config = {"penstock.http.listener": "127.0.0.1:0", "penstock.request.timing.every": "1"}
    with Broker(topics={"orders": 1}, config=config) as broker:
        with broker.client() as client, client.producer() as producer:
            for _ in range(20):
                producer.send("orders", b"x", partition=0)
                producer.flush()
        broker.records("orders")
        found = series(broker)
    requests = found["penstock_api_requests_total"]
    assert requests[of(api="Produce")] == 20
    assert found["penstock_request_seconds_count"][of(api="Produce", phase="total")] == 20
    assert (
        0 < found["penstock_request_seconds_count"][of(api="FetchConsumer", phase="local")] <= requests[of(api="Fetch")]
    )
    totals = found["penstock_request_seconds_sum"]
    assert 0 < totals[of(api="Produce", phase="local")] < totals[of(api="Produce", phase="total")]
    assert of(api="Produce", phase="throttle") not in totals
    buckets = found["penstock_request_seconds_bucket"]
    assert buckets[of(api="Produce", phase="total", le="+Inf")] == 20


def test_metrics_contain_the_number_of_damaged_replicas_and_a_series_for_each(broker: Broker) -> None:
    assert series(broker)["penstock_partitions_damaged"][of()] == 0

    async def find() -> None:
        log = broker.node.broker.logs.get("orders", 1)
        assert log is not None
        log.health.report_corruption("the checksum does not match")

    broker.run(find())
    with urllib.request.urlopen(url(broker, "/v1/cluster/overview"), timeout=120) as answer:
        told = json.load(answer)["damaged_replicas_of_this_node"]
    assert told == [{"topic": "orders", "partition": 1, "reason": "the checksum does not match"}]
    (event,) = [each.event for each in broker.node.broker.events.entries if isinstance(each.event, CorruptionFound)]
    assert "orders-1 is damaged and not served" in str(event)
    while not (found := series(broker))["penstock_partitions_damaged"][of()]:
        pass  # metrics are cached: requests shortly after each other get the same answer
    assert found["penstock_partition_damaged"] == {of(topic="orders", partition="1"): 1}


def test_metrics_cover_the_node_the_quorum_and_the_cluster(broker: Broker) -> None:
    found = series(broker)
    assert found["penstock_quorum_role"][of(role="leader")] == 1
    assert found["penstock_quorum_role"][of(role="voter")] == 0
    assert found["penstock_quorum_leader"][of()] == 1
    assert found["penstock_controller_active"][of()] == 1
    assert found["penstock_cluster_brokers"][of(state="up")] == 1
    assert found["penstock_cluster_partitions"][of()] == 3
    assert found["penstock_partitions"][of(role="leader")] == 3
    assert found["penstock_partitions_under_replicated"][of()] == 0
    assert found["penstock_connections_accepted_total"][of()] >= 1
    assert found["penstock_requests_total"][of()] >= 1
    assert found["process_start_time_seconds"][of()] > 1_600_000_000
    assert found["process_cpu_seconds_total"][of()] > 0
    assert sum(found["penstock_info"].values()) == 1


def test_metrics_are_summed_per_topic_if_there_are_many_partitions_and_per_node_if_there_are_many_topics(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_metrics, "PARTITIONS_MAX", 2)
    found = series(broker)
    assert "penstock_partition_log_end_offset" not in found
    assert found["penstock_topic_log_end_offset"].keys() == {of(topic="orders"), of(topic="bare")}
    assert found["penstock_series_left_out"] == {of(of="partition"): 3}
    monkeypatch.setattr(partition_metrics, "TOPICS_MAX", 1)
    broker.restart()  # metrics are cached for a second
    found = series(broker)
    assert "penstock_topic_log_end_offset" not in found
    assert found["penstock_series_left_out"] == {of(of="partition"): 3, of(of="topic"): 2}
    assert found["penstock_partitions"][of(role="leader")] == 3


def test_metrics_page_has_a_series_for_each_partition_of_requested_topics(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_metrics, "PARTITIONS_MAX", 0)
    found = series(broker, "?partitions=orders,unknown")
    both = {of(topic="orders", partition="0"), of(topic="orders", partition="1")}
    assert found["penstock_partition_log_end_offset"].keys() == both
    assert "penstock_series_left_out" not in found
    monkeypatch.setattr(partition_metrics, "CHOSEN_MAX", 1)
    broker.restart()  # metrics are cached for a second
    found = series(broker, "?partitions=unknown,orders")
    assert found["penstock_series_left_out"] == {of(of="partition"): 2}
    with pytest.raises(urllib.error.HTTPError, match="414"):
        series(broker, "?partitions=" + "x" * 5000)


def test_metrics_pages_are_rendered_one_at_a_time_and_requests_for_unknown_topics_share_a_page(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once, most, pages = 0, 0, []

    async def families(view: View, pipelines: object, topics: frozenset[str] | None = None) -> AsyncIterator[Family]:
        nonlocal at_once, most
        at_once, most = at_once + 1, max(most, at_once + 1)
        pages.append(topics)
        await asyncio.sleep(0)
        yield gauge("penstock_test", "Counts nothing.", 1)
        at_once -= 1

    async def no_pipelines() -> list[Pipeline]:
        return []

    monkeypatch.setattr(metrics_page, "families", families)
    node = broker.node
    page = MetricsPage(View(node.broker, node._server, node._world.network, 0, list), no_pipelines)

    async def scrapes() -> None:
        choices = ["", "orders", "bare", "bare,orders", "orders,bare", *(f"none-{n}" for n in range(10))]
        await asyncio.gather(*(page.get(each) for each in choices))

    broker.run(scrapes())
    assert most == 1
    assert pages == [None, {"orders"}, {"bare"}, {"orders", "bare"}, set()]


def test_metrics_have_event_loop_delays_and_the_used_bytes_of_each_log_directory(broker: Broker) -> None:
    with broker.client() as client, client.producer() as producer:
        producer.send("orders", b"x", partition=0).result()
    found = series(broker)
    assert found["penstock_loop_delay_seconds_count"][of()] >= 0
    assert found["penstock_loop_stalls_total"][of()] >= 0
    assert sum(found["penstock_log_directory_used_bytes"].values()) == found["penstock_log_size_bytes"][of()] > 0
    assert found["penstock_cluster_partitions_reassigning"][of()] == 0


def test_running_pipelines_have_metrics_with_their_lag(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query('my "query"', True, 3, 100, 350, 49.5, 2010, 7)
    pipelines = [
        Pipeline("demo", "running", "", "", "", (query,)),
        Pipeline("old", "killed", "", "", "", (query,)),
    ]
    monkeypatch.setattr(broker.node.http, "_pipelines", lambda: pipelines)
    found = series(broker)
    labels = of(pipeline="demo", query='my "query"')
    assert found["penstock_pipeline_running"] == {of(pipeline="demo"): 1, of(pipeline="old"): 0}
    assert found["penstock_pipeline_lag_records"] == {labels: 7}
    assert found["penstock_pipeline_rows_per_second"] == {labels: 49.5}
    assert found["penstock_pipeline_batch_milliseconds"] == {labels: 2010}
    assert found["penstock_pipeline_rows_total"] == {labels: 350}
    with urllib.request.urlopen(url(broker, "/v1/pipelines"), timeout=120) as answer:
        told = json.load(answer)["pipelines"]
    assert [each["name"] for each in told] == ["demo", "old"]
    assert told[0]["queries"][0]["lag"] == 7


def test_metrics_and_console_leave_out_pipelines_of_other_clusters(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = broker.node.broker
    ours, theirs = uuid_to_str(here.metadata.image.topics["orders"].topic_id), uuid_to_str(bytes(range(16)))
    reads = {each: Query(each, True, 1, 2, 3, 4.0, 5, 6, (each,)) for each in (ours, theirs, "no id")}
    pipelines = [
        Pipeline("of-cluster", "running", "", "", "", (reads[theirs],), ("elsewhere", here.cluster_id)),
        Pipeline("of-topic", "running", "", "", "", (reads[theirs], reads[ours])),
        Pipeline("not-known-yet", "running", "", "", ""),
        Pipeline("of-another-cluster", "running", "", "", "", (reads[ours],), ("elsewhere",)),
        Pipeline("of-another-topic", "running", "", "", "", (reads[theirs], reads["no id"])),
    ]
    monkeypatch.setattr(broker.node.http, "_pipelines", lambda: pipelines)
    with urllib.request.urlopen(url(broker, "/v1/pipelines"), timeout=120) as answer:
        told = json.load(answer)["pipelines"]
    assert [each["name"] for each in told] == ["of-cluster", "of-topic", "not-known-yet"]
    assert len(series(broker)["penstock_pipeline_running"]) == 3


def test_every_metric_is_described_in_the_documentation(broker: Broker) -> None:
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    for name in series(broker):
        words = name.split("_")
        short = (f"…_{'_'.join(words[start:])}" for start in range(2, len(words)))
        assert any(f"`{each}" in text for each in (name, f"{words[0]}_*", *short)), name


def test_broker_serves_clients_while_many_http_connections_send_invalid_bytes(broker: Broker) -> None:
    port = int(url(broker, "").rpartition(":")[2])
    with ExitStack() as crowd:
        for number in range(2 * MAX_CONNECTIONS):
            one = crowd.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))
            one.sendall(b"GET / HTTP/1.1\r\nHost: loc" if number % 2 else b"\x00nonsense\r\n\r\n")
        with broker.client() as client, client.producer() as producer:
            producer.send("orders", b"all the same", partition=0)
        assert [record.value for record in broker.records("orders", 0)] == [b"all the same"]


def test_response_to_an_unknown_path_lists_the_known_paths(broker: Broker) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as refused:
        urllib.request.urlopen(url(broker, "/elsewhere"), timeout=120)
    with refused.value as answer:
        assert b"/metrics" in answer.read()


def test_broker_opens_no_http_listener_if_the_property_is_not_set() -> None:
    with Broker() as broker:
        assert broker.node.http.url is None


def test_metrics_count_moves_between_log_directories(tmp_path: Path) -> None:
    config = {"penstock.http.listener": "127.0.0.1:0", "log.dirs": f"{tmp_path}/a,{tmp_path}/b"}
    with Broker(data=tmp_path / "a", topics={"orders": 1}, config=config) as broker:
        node = broker.node
        partition = node.broker.partitions.get("orders", 0)

        async def move() -> None:
            target = next(each for each in node.broker.logs.dirs if each.path != partition.log.log_dir)
            assert not node.broker.moves.request("orders", 0, target, partition)
            assert [each.target for each in node.broker.moves.figures()] == [target.path]
            await node.broker.moves.settle()

        broker.run(move())
        found = series(broker)
    assert found["penstock_log_moves"][of()] == 0
    assert found["penstock_log_moves_ended_total"][of(outcome="done")] == 1
    assert found["penstock_log_moves_ended_total"][of(outcome="failed")] == 0
    assert found["penstock_log_move_copied_bytes_total"][of()] == 0, "the log was empty"


def test_metrics_show_the_progress_of_a_move_between_log_directories(tmp_path: Path) -> None:
    config = {"penstock.http.listener": "127.0.0.1:0", "log.dirs": f"{tmp_path}/a,{tmp_path}/b"}
    with Broker(data=tmp_path / "a", topics={"orders": 1}, config=config) as broker:
        node = broker.node
        partition = node.broker.partitions.get("orders", 0)
        target = next(each for each in node.broker.logs.dirs if each.path != partition.log.log_dir)
        with broker.client() as client:
            rate = "replica.alter.log.dirs.io.max.bytes.per.second"
            client.alter_configs(ResourceType.BROKER, "", [(rate, 0, "100")])
            with client.producer() as producer:
                for _ in range(10):
                    producer.send("orders", bytes(1000)).result()

        async def begin() -> None:
            assert not node.broker.moves.request("orders", 0, target, partition)

        broker.run(begin())
        labels = of(topic="orders", partition="0", directory=target.path)
        found = series(broker)
        while not found["penstock_log_move_bytes_per_second"][labels]:
            found = series(broker)
    assert found["penstock_log_moves"][of()] == 1
    assert 0 < found["penstock_log_move_bytes_left"][labels] < 11_000
    assert 0 < found["penstock_log_move_records_left"][labels] < 10
    assert found["penstock_log_move_seconds_left"][labels] > 0


def test_metrics_count_the_records_of_share_groups(broker: Broker) -> None:
    with broker.client() as client:
        client.create_topic("jobs", 1)
        client.alter_configs(ResourceType.GROUP, "workers", [("share.auto.offset.reset", 0, "earliest")])
        with client.producer() as producer:
            for number in range(3):
                producer.send("jobs", b"%d" % number)
        with client.share_consumer("workers", ["jobs"]) as consumer:
            taken: list[Delivered] = []
            while len(taken) < 3:
                taken += consumer.poll()
            consumer.acknowledge(taken[1], Acknowledge.RELEASE)
            consumer.commit()
            found = series(broker)
            with urllib.request.urlopen(url(broker, "/v1/share-windows"), timeout=60) as answer:
                shown = json.load(answer)
    [row] = shown["windows"]
    assert (row["group"], row["topic"], row["start_offset"], row["acquired"]) == ("workers", "jobs", 0, 2)
    held = [(each["first"], each["state"], each["deliveries"], "member" in each) for each in row["records"]]
    assert held == [(0, "acquired", 1, True), (1, "available", 1, False), (2, "acquired", 1, True)]
    assert found["penstock_share_sessions"][of()] == 1
    assert found["penstock_share_deliveries_total"][of()] == 3
    assert found["penstock_share_records"][of(group="workers", state="acquired")] == 2
    assert found["penstock_share_records"][of(group="workers", state="available")] == 1
