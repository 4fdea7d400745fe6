"""Brokers for stock clients to talk to, and Kafka's own tools.

`broker` is a broker in a process of its own, started as a user starts one, shared by the tests of this directory:
every test makes its own topics. `PENSTOCK_TEST_BOOTSTRAP=host:port` runs the same tests against any other broker,
such as Apache Kafka, which is how the tests themselves are checked.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tools import kafka

TOOL_LIMIT_S = 90.0
MEGABYTE = 1 << 20


@dataclass(slots=True, frozen=True)
class RunningBroker:
    bootstrap: str
    data: Path | None = None  # None for one that somebody else started

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    elsewhere = os.environ.get("PENSTOCK_TEST_BOOTSTRAP")
    if elsewhere:
        yield RunningBroker(elsewhere)
        return
    home = tmp_path_factory.mktemp("broker")
    data, log = home / "data", home / "broker.log"
    command = [sys.executable, "-m", "penstock.cli.main", "up", "--port", "0", "--data", str(data)]
    # Its log goes to a file: a pipe that nobody reads would stop the broker when it is full.
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    found = re.match(r"ready (\S+)", process.stdout.readline())
    assert found, f"the broker did not start: {log.read_text()}"
    try:
        yield RunningBroker(found[1], data)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0, "a clean stop leaves with 0"


@pytest.fixture(scope="session")
def bootstrap(broker: RunningBroker) -> str:
    return broker.bootstrap


NewTopicName = Callable[..., str]


@pytest.fixture
def topic(bootstrap: str) -> NewTopicName:
    """Creates a topic of a name nobody has used: `topic(partitions=3, **{"max.message.bytes": "1000"})`."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"t-{secrets.token_hex(6)}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        created = admin.create_topics([NewTopic(name, partitions, 1, config=configs)], operation_timeout=20)
        created[name].result(timeout=30)
        return name

    return create


KafkaTool = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def kafka_jars() -> None:
    """Skips where Java or the jars are missing, except in CI, where they have to be there."""
    try:
        kafka.java()
        if os.environ.get("CI"):
            kafka.install()
        elif not kafka.installed():
            pytest.skip("Kafka's jars are not installed: python -m tools.kafka install")
    except kafka.KafkaUnavailable as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def kafka_tool(kafka_jars: None) -> KafkaTool:
    """Runs one of Kafka's classes to its end; `ok=False` for one that is meant to fail."""

    def run(
        class_name: str, *args: str, stdin: str | None = None, ok: bool = True, timeout: float = TOOL_LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        done = kafka.run_tool(class_name, *args, stdin=stdin, timeout=timeout)
        if ok:
            assert done.returncode == 0, f"{class_name} left with {done.returncode}: {done.stdout}\n{done.stderr}"
        return done

    return run
