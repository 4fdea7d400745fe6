"""Starts brokers for tests with stock clients, and runs Kafka's own tools.

The fixture `broker` starts a broker process like a user does. All tests of this directory share it, and every test
creates its own topics. `PENSTOCK_TEST_BOOTSTRAP=host:port` runs the same tests against any other broker. To check the
tests themselves, run them against Apache Kafka.
"""

from __future__ import annotations

import base64
import gc
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tools import kafka
from tools.java_tests import require_jars


@dataclass(slots=True, frozen=True)
class RunningBroker:
    bootstrap: str
    data: Path | None = None  # None for an external broker

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
    # Its log goes to a file: a full pipe without a reader would block the broker.
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    found = re.match(r"ready (\S+)", process.stdout.readline())
    assert found, f"the broker did not start: {log.read_text()}"
    try:
        yield RunningBroker(found[1], data)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
    assert process.returncode == 0, "a clean stop leaves with 0"


@pytest.fixture(scope="session")
def bootstrap(broker: RunningBroker) -> str:
    return broker.bootstrap


@pytest.fixture
def collected() -> Iterator[None]:
    """Collects the unclosed objects of a test before the next test begins, because their warnings would fail that
    test."""
    yield
    gc.collect()


NewTopicName = Callable[..., str]


@pytest.fixture
def topic(bootstrap: str) -> NewTopicName:
    """Returns a function that creates a topic with a unique name: `topic(partitions=3, **{"max.message.bytes":
    "1000"})`."""

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"t-{secrets.token_hex(6)}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        created = admin.create_topics([NewTopic(name, partitions, 1, config=configs)], operation_timeout=120)
        created[name].result(timeout=120)
        return name

    return create


KafkaTool = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def kafka_jars() -> None:
    require_jars()


class ToolRunner:
    """Runs Kafka's tools one after the other in one JVM (ToolRunner.java)."""

    def __init__(self) -> None:
        source = Path(__file__).parent / "ToolRunner.java"
        flags = ("-Xmx384M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        self._process = subprocess.Popen(
            kafka.tool_command(str(source), flags=flags),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, class_name: str, *args: str, stdin: str) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = [base64.b64encode(word.encode()).decode() for word in (class_name, stdin, *args)]
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        code, out, err = self._process.stdout.readline().rstrip("\n").split(" ")
        return subprocess.CompletedProcess(
            [class_name, *args], int(code), base64.b64decode(out).decode(), base64.b64decode(err).decode()
        )

    def close(self) -> None:
        self._process.communicate(timeout=120)


@pytest.fixture(scope="session")
def kafka_tool(kafka_jars: None) -> Iterator[KafkaTool]:
    """Returns a function that runs one of Kafka's tool classes. With `ok=False`, the tool may fail."""
    runner = ToolRunner()

    def run(class_name: str, *args: str, stdin: str = "", ok: bool = True) -> subprocess.CompletedProcess[str]:
        done = runner.run(class_name, *args, stdin=stdin)
        if ok:
            assert done.returncode == 0, f"{class_name} left with {done.returncode}: {done.stdout}\n{done.stderr}"
        return done

    yield run
    runner.close()


#: Builds a package of the module in tests/clients/franz and returns the program.
FranzBuilder = Callable[[str], Path]
DOWNLOAD_S, BUILD_S = 60, 180


@pytest.fixture(scope="session")
def franz(tmp_path_factory: pytest.TempPathFactory) -> FranzBuilder:
    """Returns a function that builds a Go program of tests/clients/franz.

    Skips the tests if Go is not installed, or if franz-go can't be downloaded. A compiler error fails the test.
    """
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no Go here")
    source, home = Path(__file__).parent / "franz", tmp_path_factory.mktemp("franz")

    @cache
    def build(package: str) -> Path:
        program = home / f"program-{package.strip('./') or 'main'}"
        try:
            subprocess.run([go, "mod", "download"], cwd=source, capture_output=True, timeout=DOWNLOAD_S, check=True)
            command = [go, "build", "-o", str(program), package]
            built = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=BUILD_S, check=False)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as problem:
            pytest.skip(f"franz-go can't be downloaded and built here: {problem}")
        assert built.returncode == 0, built.stderr
        return program

    return build
