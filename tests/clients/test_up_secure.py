"""Tests `penstock up --secure`: clients connect with exactly the settings that the command prints."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.client.client_security import credentials_of
from penstock.client.login import Login

COMMAND = [sys.executable, "-m", "penstock.cli.main"]
Begin = Callable[..., tuple["subprocess.Popen[str]", dict[str, Any], dict[str, Any]]]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Returns a function that starts `penstock up --secure`.

    The function returns the process, its ready line, and the settings that it prints for clients.
    """
    begun: list[subprocess.Popen[str]] = []

    def start(*words: str) -> tuple[subprocess.Popen[str], dict[str, Any], dict[str, Any]]:
        line = [*COMMAND, "up", "--secure", "--port", "0", "--no-http", "--output", "json", *words]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        begun.append(process)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline()), json.loads(process.stdout.readline())

    yield start
    for process in begun:
        if process.returncode is None:
            process.kill()
            process.communicate()


def end(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    return process.returncode


def exchange(config: dict[str, str]) -> None:
    """Creates a topic with the given client settings, produces a record and consumes it."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    admin = AdminClient(config)
    (created,) = admin.create_topics([NewTopic(topic, 1)]).values()
    created.result(60)
    producer = Producer({**config, "enable.idempotence": True})
    producer.produce(topic, b"hello")
    assert producer.flush(60) == 0
    consumer = Consumer({**config, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = None
    while message is None:
        message = consumer.poll(60)
        assert message is not None, "no record within a minute"
    assert message.error() is None
    assert message.value() == b"hello"
    consumer.close()


def test_settings_printed_by_up_secure_work_with_confluent_kafka_and_the_command_line(
    begin: Begin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(tmp_path / "data")
    process, ready, told = begin("--data", data)
    exchange(told["confluent"])
    wrong = {**told["confluent"], "sasl.password": "wrong"}
    refused = AdminClient({**wrong, "log_level": 0})
    with pytest.raises(KafkaException):
        refused.list_topics(timeout=2)
    bootstrap = ("--bootstrap", ready["bootstrap"])
    assert main(["topic", "list", *bootstrap, "--command-config", told["client_properties"]]) == Exit.OK
    assert "orders-" in capsys.readouterr().out
    assert main(["user", "list", *bootstrap, "--command-config", told["client_properties"]]) == Exit.OK
    assert main(["acl", "list", *bootstrap, "--command-config", told["admin_properties"]]) == Exit.OK
    allowing = ["acl", "allow", "--operation", "read", *bootstrap, "--principal", "User:eve", "--topic", "orders"]
    assert main([*allowing, "--command-config", told["client_properties"]]) not in (Exit.OK, Exit.USAGE)
    assert main([*allowing, "--command-config", told["admin_properties"]]) == Exit.OK
    spark = {name.removeprefix("kafka."): value for name, value in told["spark"].items()}
    del spark["bootstrap.servers"]
    login = credentials_of(spark).login
    assert isinstance(login, Login)
    assert login.username == "app"
    assert end(process) == Exit.OK
    assert main(["up", "--data", data, "--port", "0", "--no-http"]) == Exit.USAGE
    process, _, again = begin("--data", data)
    assert again["confluent"]["sasl.password"] == told["confluent"]["sasl.password"]
    exchange(again["confluent"])
    assert end(process) == Exit.OK


def test_up_secure_with_ephemeral_removes_its_files_at_the_end(begin: Begin) -> None:
    process, _, told = begin("--ephemeral")
    exchange(told["confluent"])
    assert Path(told["client_properties"]).exists()
    assert end(process) == Exit.OK
    assert not Path(told["client_properties"]).parent.exists()


@pytest.mark.slow
def test_settings_printed_by_up_secure_work_with_a_cluster_of_three_nodes(begin: Begin, tmp_path: Path) -> None:
    process, _, told = begin("--nodes", "3", "--data", str(tmp_path / "data"))
    metadata = AdminClient(told["confluent"]).list_topics(timeout=60)
    assert len(metadata.brokers) == 3
    exchange(told["confluent"])
    assert end(process) == Exit.OK


def test_up_secure_refuses_a_data_directory_without_users(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\n")
    assert main(["up", "--secure", "--data", str(tmp_path), "--port", "0", "--no-http"]) == Exit.USAGE
