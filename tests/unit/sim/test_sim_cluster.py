"""Tests SimCluster: user code runs in virtual time; machines are killed and links are cut on request."""

import asyncio

import pytest

from penstock.client.admin import Admin
from penstock.client.connection import ConnectionSettings
from penstock.client.consumer import Consumer
from penstock.client.producer import Producer
from penstock.client.retry import Retry
from penstock.disk.volume import Severity
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.testing import SimCluster

pytestmark = pytest.mark.programs

HASTY = ConnectionSettings(request_timeout_s=2.0, connect_timeout_s=2.0)


async def read(cluster: SimCluster) -> list[bytes | None]:
    async with cluster.client() as client, Consumer(client) as consumer:
        await consumer.assign({("t", 0): 0})
        return [record.value for part in await consumer.poll() for record in part.records()]


def test_records_acknowledged_after_fsync_survive_a_power_loss() -> None:
    async def app(cluster: SimCluster) -> list[bytes | None]:
        async with cluster.client() as client:
            await Admin(client).create_topic("t", 1, 1, penstock_acks_fsync="true")
            async with Producer(client, cluster.clock) as producer:
                await producer.send("t", b"a")
            cluster.machine().lose_power(Severity.EVERYTHING)
            await asyncio.sleep(3600)
            await cluster.machine().start()
        assert cluster.now_s > 3600
        return await read(cluster)

    assert SimCluster(seed=1).run(app) == [b"a"]


def test_retry_after_a_lost_answer_does_not_write_a_record_twice() -> None:
    async def app(cluster: SimCluster) -> list[bytes | None]:
        async with cluster.client(HASTY) as client:
            await Admin(client).create_topic("t", 1, 1)
            rule = cluster.faults().add(api="Produce", lose_reply=True, times=1)
            async with Producer(client, cluster.clock) as producer:
                await producer.send("t", b"a")
            assert rule.hits == 1
        return await read(cluster)

    assert SimCluster(seed=1).run(app) == [b"a"]


def test_a_cut_link_causes_a_timeout_and_a_mended_link_works_again() -> None:
    async def app(cluster: SimCluster) -> float:
        async with cluster.client(HASTY, Retry(attempts=1)) as client:
            cluster.cut(towards="app")
            with pytest.raises(KafkaError) as refused:
                await client.metadata([])
            assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
            cluster.heal()
            await client.metadata([])
        return cluster.now_s

    assert 2 < SimCluster(seed=1).run(app) < 5


def test_simcluster_with_the_same_seed_gives_the_same_run() -> None:
    async def app(cluster: SimCluster) -> str:
        async with cluster.client() as client:
            await Admin(client).create_topic("t", 3, 1)
        return cluster.trace.digest

    assert SimCluster(seed=4).run(app) == SimCluster(seed=4).run(app)
    assert SimCluster(seed=4).run(app) != SimCluster(seed=5).run(app)


def test_exception_of_the_users_code_is_raised_by_simcluster_run() -> None:
    async def app(cluster: SimCluster) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        SimCluster().run(app)


def test_three_machines_continue_to_serve_when_the_leader_is_killed() -> None:
    async def app(cluster: SimCluster) -> tuple[float, list[bytes | None]]:
        async with cluster.client() as client:
            await Admin(client).create_topic("t", 1)
            async with Producer(client, cluster.clock) as producer:
                await producer.send("t", b"a")
                await producer.flush()
                leader = cluster.leader("t")
                assert leader is not None
                leader.kill()
                began = cluster.now_s
                await producer.send("t", b"b")
                await producer.flush()
                gap = cluster.now_s - began
            assert cluster.leader("t") is not leader
        return gap, await read(cluster)

    gap, values = SimCluster(nodes=3, seed=1).run(app)
    assert values == [b"a", b"b"]
    assert gap < 1.0


def test_fault_rules_of_simcluster_apply_to_one_machine_only() -> None:
    async def app(cluster: SimCluster) -> int:
        async with cluster.client() as client:
            await Admin(client).create_topic("t", 1)
            leader = cluster.leader("t")
            assert leader is not None
            error = ErrorCode.NOT_ENOUGH_REPLICAS
            rule = cluster.faults(leader.node_id).add(api="Produce", topic="t", error=error, times=2)
            async with Producer(client, cluster.clock) as producer:
                await producer.send("t", b"a")
        return rule.hits

    assert SimCluster(nodes=3, seed=1).run(app) == 2


def test_larger_group_of_a_split_cluster_serves_and_all_machines_agree_after_the_split_heals() -> None:
    async def app(cluster: SimCluster) -> list[bytes | None]:
        async with cluster.client() as client:
            await Admin(client).create_topic("t", 1)
            alone = cluster.leader("t")
            assert alone is not None
            cluster.split([alone.node_id])
            async with Producer(client, cluster.clock) as producer:
                await producer.send("t", b"a")
            assert cluster.leader("t") is not alone
            cluster.heal()
            await asyncio.sleep(30)
            assert all(machine.image == alone.image for machine in cluster.machines)
        return await read(cluster)

    assert SimCluster(nodes=3, seed=1).run(app) == [b"a"]
