"""Sends requests to the REST API of test nodes."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from penstock.client.group_admin import GroupAdmin
from penstock.client.sync import Client
from penstock.http.messages import CHANGES
from penstock.http.rest.problems import BODY_TYPE
from penstock.http.streams import EVENT_STREAM
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from penstock.protocol.vocabulary import ConfigOperation, ResourceType
from penstock.testing import Broker, Cluster
from waiting import until

HTTP = {"penstock.http.listener": "127.0.0.1:0"}
LIMIT_S = 120.0
#: Answers of a broker that does not lead a new partition yet: nothing was appended.
NOT_READY = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NOT_LEADER_OR_FOLLOWER)


class Answer(NamedTuple):
    status: int
    kind: str
    value: Any


def commit(cluster: Cluster | Broker, group: str, offsets: dict[tuple[str, int], int]) -> None:
    with cluster.client() as client:
        assert client.run(GroupAdmin(client.asynchronous).commit(group, offsets)) == {}


def url_of(where: Cluster | Broker, node: int = 1) -> str:
    url = (where.node(node) if isinstance(where, Cluster) else where.node).http.url
    assert url is not None
    return url.rstrip("/")


def ask(
    where: Cluster | Broker, method: str, path: str, body: Any = None, *, kind: str | None = None, node: int = 1
) -> Answer:
    headers = {"Content-Type": BODY_TYPE if kind is None else kind} if method in CHANGES else {}
    sent = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url_of(where, node) + path, sent, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            kind = answer.headers["Content-Type"]
            if kind == EVENT_STREAM:  # without an end: its first line is enough
                return Answer(answer.status, kind, {"first": answer.readline()})
            return Answer(answer.status, kind, json.loads(answer.read() or b"null"))
    except urllib.error.HTTPError as refused:
        with refused:
            return Answer(refused.code, refused.headers["Content-Type"], json.loads(refused.read() or b"null"))


def append_batch(where: Cluster | Broker, topic: str, batch: bytes) -> None:
    """Appends a batch to partition 0 as it is, whatever its records are."""
    with where.client() as client:

        def appended() -> bool:
            ids = {each.name: each.topic_id for each in client.list_topics()}
            if topic not in ids:
                return False
            part = PartitionProduceData(index=0, records=batch)
            data = TopicProduceData(name=topic, topic_id=ids[topic], partition_data=[part])
            request = ProduceRequest(acks=-1, timeout_ms=9000, topic_data=[data])
            answer = client.request(request, node=client.leader(topic, 0))
            code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
            assert code in (ErrorCode.NONE, *NOT_READY), code
            return code is ErrorCode.NONE

        until(appended)


def begin_share_group(client: Client, group: str, topic: str) -> None:
    """Creates a share group without members that starts at the first record of the topic."""
    client.alter_configs(ResourceType.GROUP, group, [("share.auto.offset.reset", ConfigOperation.SET, "earliest")])
    with client.share_consumer(group, [topic]) as consumer:
        while not consumer.assignment:
            consumer.poll()


def ended(where: Cluster | Broker, operation: Answer) -> dict[str, Any]:
    """Waits until an operation has ended. Returns its description."""
    assert operation.status == 202, operation.value
    deadline = time.monotonic() + LIMIT_S
    while True:
        found: dict[str, Any] = ask(where, "GET", f"/v1/operations/{operation.value['operation']}").value
        if found["state"] != "running":
            return found
        assert time.monotonic() < deadline, found
