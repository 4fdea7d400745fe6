"""Tests the embedded broker as a user's test sees it, with faults and with the pytest plugin."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

import penstock as penstock_package
from penstock.client.producer import ProducerSettings
from penstock.protocol.errors import ErrorCode
from penstock.testing import Broker
from penstock.testing.broker import START_LIMIT_S

pytest_plugins = ["pytester"]


def write(broker: Broker, topic: str, *values: bytes) -> None:
    with broker.client() as client, client.producer() as producer:
        producer.send_many(topic, [(None, value, (), None) for value in values])


def values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic)]


def test_embedded_broker_returns_the_records_that_were_written(penstock: Broker) -> None:
    penstock.create_topic("t")
    write(penstock, "t", b"a", b"b")
    assert values(penstock, "t") == [b"a", b"b"]
    assert penstock.bootstrap == penstock.bootstrap_servers == f"{penstock.host}:{penstock.port}"


@pytest.mark.penstock(topics={"wide": 3}, config={"auto.create.topics.enable": "false"})
def test_pytest_marker_sets_the_options_of_the_broker_fixture(penstock: Broker) -> None:
    with penstock.client() as client:
        (topic,) = client.list_topics()
        assert (topic.name, len(topic.partitions)) == ("wide", 3)


def test_create_topic_takes_configs_as_keyword_arguments(penstock: Broker) -> None:
    penstock.create_topic("t", partitions=2, retention_ms="12345")
    with penstock.client() as client:
        found = {config.name: config.value for config in client.describe_configs(2, "t")}
    assert found["retention.ms"] == "12345"


def test_broker_is_ready_after_less_than_150_ms_of_cpu_time(penstock_session: Broker) -> None:
    took = []
    for _ in range(3):  # the best of three, because the session's broker uses CPU time of this process, too
        began = time.process_time()
        with Broker() as another:
            took.append(time.process_time() - began)
            assert another.port != penstock_session.port
    assert min(took) < 0.15


@pytest.mark.parametrize("kept", ["memory", "directory"])
def test_restarted_broker_keeps_its_data_and_port_after_a_stop_or_a_kill(kept: str, tmp_path: Path) -> None:
    with Broker(data=tmp_path / "data" if kept == "directory" else None, topics={"t": 1}) as broker:
        port = broker.port
        write(broker, "t", b"a")
        broker.restart()
        write(broker, "t", b"b")
        broker.kill()
        broker.start()
        assert broker.port == port
        assert values(broker, "t") == [b"a", b"b"]


def test_using_a_stopped_broker_raises_an_error(penstock: Broker) -> None:
    penstock.stop()
    with pytest.raises(RuntimeError, match="not running"):
        _ = penstock.bootstrap
    penstock.stop()


# --- faults, seen by a stock client -------------------------------------------------------------------------------


def deliver(broker: Broker, topic: str, **settings: object) -> KafkaError | None:
    outcome: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, "log_level": 0, **settings})
    producer.produce(topic, b"v", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(20)
    return outcome[0]


def test_client_retries_after_an_injected_retriable_error(penstock: Broker) -> None:
    penstock.create_topic("t")
    rule = penstock.faults.add(api="Produce", topic="t", times=2, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert deliver(penstock, "t", **{"retry.backoff.ms": 10}) is None
    assert rule.hits == 2
    assert values(penstock, "t") == [b"v"]


def test_injected_fatal_error_reaches_the_caller_and_no_record_is_written(penstock: Broker) -> None:
    penstock.create_topic("t")
    penstock.faults.add(api="Produce", topic="t", partition=0, error=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    error = deliver(penstock, "t")
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert values(penstock, "t") == []


@pytest.mark.parametrize("close", [True, False])
def test_a_retry_after_a_lost_reply_writes_no_duplicate(penstock: Broker, close: bool) -> None:
    penstock.create_topic("t")
    rule = penstock.faults.add(api="Produce", topic="t", times=1, lose_reply=True, close=close)
    settings = ProducerSettings(linger_s=0.0)
    with penstock.client() as client, client.producer(settings) as producer:
        client.asynchronous.settings = type(client.asynchronous.settings)(request_timeout_s=0.3)
        producer.send("t", b"v")
    assert rule.hits == 1
    assert values(penstock, "t") == [b"v"]


def test_the_client_reconnects_after_a_closed_connection(penstock: Broker) -> None:
    penstock.create_topic("t")
    rule = penstock.faults.add(api="Produce", times=1, close=True)
    write(penstock, "t", b"v")
    assert rule.hits == 1
    assert values(penstock, "t") == [b"v"]


def test_a_delay_fault_delays_the_request(penstock: Broker) -> None:
    penstock.create_topic("t")
    penstock.faults.add(api="Produce", topic="t", times=1, delay=0.2)
    began = time.monotonic()
    write(penstock, "t", b"v")
    assert time.monotonic() - began >= 0.2


def test_injected_fetch_error_of_one_partition_leaves_the_other_partition_readable(penstock: Broker) -> None:
    penstock.create_topic("t", partitions=2)
    with penstock.client() as client, client.producer() as producer:
        for partition in (0, 1):
            producer.send("t", b"%d" % partition, partition=partition)
    rule = penstock.faults.add(api="Fetch", topic="t", partition=0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2)
    assert values(penstock, "t") == [b"0", b"1"]
    assert rule.hits == 2


def test_broker_stops_without_delay_although_a_fault_rule_holds_back_a_reply(
    penstock: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a request that is still held makes the stop wait for all of its grace, longer than `stop` itself may take
    monkeypatch.setattr("penstock.testing.broker.STOP_GRACE_S", 2 * START_LIMIT_S)
    penstock.create_topic("t")
    penstock.faults.add(api="Produce", lose_reply=True)
    producer = Producer({"bootstrap.servers": penstock.bootstrap, "linger.ms": 0, "log_level": 0})
    rule = penstock.faults.rules[0]
    producer.produce("t", b"v")
    while not rule.hits:
        producer.poll(0.01)
    penstock.stop()
    producer.purge()
    producer.flush(5)


# --- the plugin ---------------------------------------------------------------------------------------------------


def test_importing_the_pytest_plugin_imports_no_module_of_the_broker() -> None:
    probe = (
        "import sys, penstock.testing.plugin, penstock.testing;"
        "print([name for name in sys.modules if name.startswith('penstock.') and 'testing' not in name])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.programs
def test_pytest_does_not_rewrite_the_asserts_of_an_installed_broker(tmp_path: Path) -> None:
    """Installs the package with a wheel's list of files, by which pytest chooses the modules to rewrite. An editable
    install has no such list."""
    site, project = tmp_path / "site", tmp_path / "project"
    installed = site / "penstock-0.1.0.dist-info"
    for directory in (installed, project):
        directory.mkdir(parents=True)
    (site / "penstock").symlink_to(Path(penstock_package.__file__).parent)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock\nVersion: 0.1.0\n")
    (installed / "entry_points.txt").write_text("[pytest11]\npenstock = penstock.testing.plugin\n")
    (installed / "RECORD").write_text("penstock/__init__.py,,\npenstock/broker/requests/fault_rules.py,,\n")
    (project / "test_it.py").write_text(
        "import penstock.broker.requests.fault_rules as module\n"
        "def test_it(): assert type(module.__loader__).__name__ == 'SourceFileLoader'\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project)]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_unknown_attribute_of_penstock_testing_raises_attribute_error() -> None:
    import penstock.testing

    with pytest.raises(AttributeError, match="Nonsense"):
        _ = penstock.testing.Nonsense


@pytest.mark.programs
def test_broker_fixture_works_in_the_tests_of_another_project(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_it(penstock):
            penstock.create_topic("orders", partitions=3)
            assert penstock.records("orders") == []
        """
    )
    pytester.runpytest_subprocess("-p", "no:randomly").assert_outcomes(passed=1)
