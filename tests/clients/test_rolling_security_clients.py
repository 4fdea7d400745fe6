"""Tests that stock clients can write and read while a cluster is changed from plaintext to SASL_SSL with ACLs.

The test follows the steps of docs/operations.md: it restarts `penstock start` processes one after the other, and runs
the commands of each step.
"""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.node.local_security import (
    ADMIN,
    APP,
    NODE,
    LocalSecurity,
    librdkafka_properties,
    local_security,
    write_client_files,
)
from tools import kafka
from tools.process_cluster import ProcessCluster
from tools.rolling_security import BEFORE, BOTH, NODES_SECURED, SECURED, NodePorts, step_properties

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE_S = 120


class Rolling:
    """Runs three processes, and applies the operator's steps to them."""

    def __init__(self, home: Path) -> None:
        self.security: LocalSecurity = local_security(str(home / "security"), "127.0.0.1")
        self.cluster = ProcessCluster(home)
        self.cluster.lay_out()
        more = iter(kafka.free_ports(6))
        self.ports = {
            node.node_id: NodePorts(node.port, node.controller_port, next(more), next(more))
            for node in self.cluster.nodes.values()
        }
        self._first = {
            node.node_id: dict(line.split("=", 1) for line in node.properties.read_text().splitlines())
            for node in self.cluster.nodes.values()
        }
        self.clear = ",".join(f"127.0.0.1:{ports.clear}" for ports in self.ports.values())
        self.secured = ",".join(f"127.0.0.1:{ports.secured}" for ports in self.ports.values())
        self._files = write_client_files(str(home / "security"), self.security, self.secured)
        self.as_admin = ["--bootstrap", self.secured, "--command-config", self._files[ADMIN]]

    @property
    def app_properties(self) -> str:
        return self._files[APP]

    def write(self, node: int, step: int) -> None:
        properties = {**self._first[node], **step_properties(self.ports, node, step, self.security)}
        lines = [f"{name}={value}\n" for name, value in properties.items()]
        self.cluster.nodes[node].properties.write_text("".join(lines))

    def roll(self, step: int) -> None:
        """Restarts one node after the other, and waits each time until `penstock cluster status` reports no problem."""
        asking = ["--bootstrap", self.clear] if step == BOTH else self.as_admin
        for number, node in self.cluster.nodes.items():
            self.cluster.stop(number)
            self.write(number, step)
            node.spawn()
            while main(["cluster", "status", "--once", *asking]) != Exit.OK:
                assert node.running, node.log.read_text()


@dataclass
class Work:
    """Holds the numbers that the clients of one library wrote and read, on their own topic."""

    library: str
    written: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    next_number: int = 0

    @property
    def topic(self) -> str:
        return f"orders-{self.library}"

    @property
    def group(self) -> str:
        return f"readers-{self.library}"

    def number(self) -> int:
        self.next_number += 1
        return self.next_number


#: Writes and reads until the event is set. The settings are librdkafka's.
Session = Callable[[Work, dict[str, str], threading.Event], None]


def with_confluent(work: Work, settings: dict[str, str], stop: threading.Event) -> None:
    problems: list[str] = []

    def note(error: Any, number: int) -> None:
        problems.append(str(error)) if error else work.written.append(number)

    producer = Producer({**settings, "acks": "all", "enable.idempotence": True, "linger.ms": 5})
    consumer = Consumer({**settings, "group.id": work.group, "auto.offset.reset": "earliest"})
    consumer.subscribe([work.topic])
    while not stop.is_set():
        number = work.number()
        producer.produce(work.topic, str(number), on_delivery=lambda error, _, number=number: note(error, number))
        producer.poll(0)
        message = consumer.poll(0.02)
        if message is not None and not message.error():  # such errors are passing: a coordinator moves, for example
            work.read.append(int(message.value()))
    assert producer.flush(PATIENCE_S) == 0
    consumer.close()
    assert problems == []


def aiokafka_settings(settings: dict[str, str]) -> dict[str, Any]:
    """Returns the settings under aiokafka's names."""
    found: dict[str, Any] = {"bootstrap_servers": settings["bootstrap.servers"].split(",")}
    if "sasl.username" in settings:
        found |= {
            "security_protocol": settings["security.protocol"],
            "sasl_mechanism": settings["sasl.mechanisms"],
            "sasl_plain_username": settings["sasl.username"],
            "sasl_plain_password": settings["sasl.password"],
            "ssl_context": ssl.create_default_context(cafile=settings["ssl.ca.location"]),
        }
    return found


def with_aiokafka(work: Work, settings: dict[str, str], stop: threading.Event) -> None:
    async def session() -> None:
        common = aiokafka_settings(settings)
        reading = {"group_id": work.group, "auto_offset_reset": "earliest"}
        writing = {"acks": "all", "enable_idempotence": True, "request_timeout_ms": PATIENCE_S * 1000}
        async with (
            AIOKafkaProducer(**common, **writing) as producer,
            AIOKafkaConsumer(work.topic, **common, **reading) as consumer,
        ):
            while not stop.is_set():
                number = work.number()
                await producer.send_and_wait(work.topic, str(number).encode())
                work.written.append(number)
                for records in (await consumer.getmany(timeout_ms=20)).values():
                    work.read += [int(record.value) for record in records]

    asyncio.run(session())


SESSIONS: dict[str, Session] = {
    "confluent": with_confluent,
    "aiokafka": with_aiokafka,
}


class Clients:
    """Runs one session of each library in a thread of its own."""

    def __init__(self, works: list[Work], settings: dict[str, str]) -> None:
        self._stop = threading.Event()
        self._problems: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(SESSIONS[work.library], work, settings)) for work in works
        ]

    def _run(self, session: Session, work: Work, settings: dict[str, str]) -> None:
        try:
            session(work, settings, self._stop)
        except BaseException as problem:
            self._problems.append(problem)

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._problems:
            raise self._problems[0]


def content(topic: str, settings: dict[str, str], count: int) -> list[int]:
    """Returns the numbers in the topic, from its beginning to its end."""
    consumer = Consumer({**settings, "group.id": f"check-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[int] = []
    while len(found) < count and (message := consumer.poll(PATIENCE_S)) is not None:
        assert message.error() is None, message.error()
        found.append(int(message.value()))
    rest = [int(message.value()) for message in consumer.consume(1000, 1.0)]
    consumer.close()
    return found + rest


def set_users(rolling: Rolling, home: Path) -> None:
    for user in (NODE, ADMIN, APP):
        file = home / "password"
        file.write_text(rolling.security.passwords[user] + "\n")
        assert main(["user", "set", user, "--password-file", str(file), "--bootstrap", rolling.clear]) == Exit.OK


def allow_the_application(rolling: Rolling) -> None:
    allowed = ["acl", "allow", "--principal", f"User:{APP}", *rolling.as_admin]
    assert main([*allowed, "--topic", "orders-", "--prefixed"]) == Exit.OK
    assert main([*allowed, "--group", "*"]) == Exit.OK


def test_stock_clients_write_and_read_while_a_cluster_of_processes_is_secured_step_by_step(tmp_path: Path) -> None:
    rolling = Rolling(tmp_path)
    works = [Work(library) for library in SESSIONS]
    clear = {"bootstrap.servers": rolling.clear}
    secured = librdkafka_properties(rolling.security, rolling.secured, APP)
    for node in rolling.ports:
        rolling.write(node, BEFORE)
    with rolling.cluster:
        admin = AdminClient(clear)
        for created in admin.create_topics([NewTopic(work.topic, 2, 3) for work in works]).values():
            created.result(60)
        set_users(rolling, tmp_path)
        with Clients(works, clear):
            rolling.roll(BOTH)
            allow_the_application(rolling)
        before = [len(work.written) for work in works]
        with Clients(works, secured):
            rolling.roll(NODES_SECURED)
            rolling.roll(SECURED)
        for work, count in zip(works, before, strict=True):
            assert count > 10, work.library
            assert len(work.written) > count + 10, work.library
            found = content(work.topic, secured, len(work.written))
            assert set(work.read) <= set(found), work.library
            assert len(work.read) > 10, work.library
            assert sorted(found) == sorted(work.written), work.library
        with pytest.raises(KafkaException):
            AdminClient({**clear, "log_level": 0}).list_topics(timeout=2)
        if kafka.installed():
            describe_with_kafkas_tool(rolling)


def describe_with_kafkas_tool(rolling: Rolling) -> None:
    words = ("--describe", "--bootstrap-server", rolling.secured, "--command-config", rolling.app_properties)
    command = kafka.tool_command("org.apache.kafka.tools.TopicCommand", *words)
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "orders-confluent" in said.stdout, said.stderr
