"""Runs every test of this directory against Penstock and against Apache Kafka.

Kafka runs at `PENSTOCK_ORACLE=host:port`, or is started here if Java and the jars are installed; its half of the tests
is marked `slow` and `java`. `PENSTOCK_ORACLE_RECORD=1` writes Kafka's answers into the tests (see `oracle_record`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from oracle_peer import Peer
from oracle_record import Recorder

from penstock.testing import Broker
from tools import kafka
from tools.java_tests import require_jars

Address = tuple[str, int]
RECORDING = bool(os.environ.get("PENSTOCK_ORACLE_RECORD"))
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    # Tests use timestamps of 1970: retention must not delete such records.
    "log.initial.task.delay.ms": "3600000",
    # Without it Kafka does not announce the version of InitProducerId for two-phase commit.
    "transaction.two.phase.commit.enable": "false",
}


def _address(bootstrap: str) -> Address:
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


@pytest.fixture(scope="session")
def penstock_address() -> Iterator[Address]:
    with Broker(config=SETTINGS) as broker:
        yield _address(broker.bootstrap)


@pytest.fixture(scope="session")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    elsewhere = os.environ.get("PENSTOCK_ORACLE")
    if elsewhere:
        yield _address(elsewhere)
        return
    require_jars()
    where = tmp_path_factory.mktemp("kafka")
    with kafka.KafkaCluster(data=where, heap=("-Xmx512M", "-Xms256M"), overrides=SETTINGS) as cluster:
        yield _address(cluster.bootstrap)


@pytest.fixture(scope="session")
def recorder() -> Iterator[Recorder | None]:
    if not RECORDING:
        yield None
        return
    recorder = Recorder()
    yield recorder
    recorder.write()


BOTH = [
    *([] if RECORDING else [pytest.param("penstock_address", id="penstock")]),
    pytest.param("kafka_address", id="kafka", marks=[pytest.mark.java, pytest.mark.slow]),
]


@pytest.fixture(params=BOTH)
def peer(request: pytest.FixtureRequest, recorder: Recorder | None) -> Iterator[Peer]:
    address: Address = request.getfixturevalue(request.param)
    peer = Peer(request.param.removesuffix("_address"), address, recorder)
    yield peer
    peer.close()
