"""Tests faults that wait for a certain request: the request is recognised in flight, and a held request arrives
late."""

import asyncio

from penstock.client.admin import Admin, NewTopic
from penstock.protocol.apis import request_header_version
from penstock.protocol.codec import encode
from penstock.protocol.messages.api_56_alter_partition import AlterPartitionRequest
from penstock.protocol.messages.headers import RequestHeader
from penstock.sim.engine.connection import RESET, Endpoint
from penstock.sim.faults.aimed_faults import request_in
from penstock.sim.run.cluster import SimCluster

CREATE_TOPICS = 19


def frame(request: AlterPartitionRequest, version: int) -> bytes:
    header = RequestHeader(request_api_key=56, request_api_version=version, correlation_id=1, client_id="n1")
    body = encode(header, request_header_version(56, version)) + encode(request, version)
    return len(body).to_bytes(4, "big") + body


def test_simulator_recognises_a_request_on_the_network_by_its_api_key() -> None:
    request = AlterPartitionRequest(broker_id=3, broker_epoch=7, topics=[])
    found = request_in(frame(request, 3), 56)
    assert (found.broker_id, found.broker_epoch) == (3, 7)
    assert request_in(frame(request, 3), 27) is None
    assert request_in(b"", 56) is None


def test_request_delayed_by_the_simulated_network_arrives_after_its_sender_has_disconnected() -> None:
    async def app(cluster: SimCluster) -> list[str]:
        held: list[Endpoint] = []

        def tap(end: Endpoint, data: bytes) -> None:
            if not held and request_in(data, CREATE_TOPICS) is not None:
                end.out.hold()
                held.append(end)

        cluster.fabric.taps = [tap]
        async with cluster.client() as client:
            creating = asyncio.ensure_future(Admin(client).create_topics([NewTopic("late", 1, 1)]))
            while not held:  # noqa: ASYNC110 - the wire says nothing when something is on it
                await asyncio.sleep(0.01)
            cluster.fabric.taps = []
            held[0].receive(RESET)
            await asyncio.gather(creating, return_exceptions=True)
            before = [topic.name for topic in await Admin(client).list_topics()]
            if "late" in before:
                await Admin(client).delete_topics(["late"])
            held[0].out.release()
            await asyncio.sleep(1)
            return [topic.name for topic in await Admin(client).list_topics()]

    assert SimCluster(seed=3).run(app) == ["late"]
