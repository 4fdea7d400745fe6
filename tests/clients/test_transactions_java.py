"""Tests transactions with the Java client, which uses transaction version 2, and with Kafka's own tools."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from hanging_transaction import open_one
from test_transactions_confluent import read

from conftest import RunningBroker
from tools import kafka

pytestmark = [pytest.mark.java, pytest.mark.slow]

NewTopicName = Callable[..., str]
KafkaTool = Callable[..., "subprocess.CompletedProcess[str]"]

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
SCENARIOS = [
    "commit and abort",
    "an epoch per transaction",
    "fencing",
    "fenced while open",
    "fenced by an admin",
    "offsets",
    "offsets of a consumer-protocol group",
    "read committed stops at an open transaction",
    "timeout",
    "timeout too long",
    "abort of nothing",
    "transactions are listed and described",
    "a hundred in a row",
]


@pytest.fixture(scope="module")
def said(bootstrap: str, kafka_jars: None) -> dict[str, str]:
    """Returns the failure of each scenario; an empty text if the scenario succeeded."""
    source = Path(__file__).parent / "TransactionClient.java"
    command = kafka.tool_command(str(source), bootstrap, f"java-{secrets.token_hex(4)}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("ok "):
            found[line[3:]] = ""
        elif line.startswith("failed "):
            name, _, why = line[7:].partition(": ")
            found[name] = why
    assert found, f"the program printed nothing: {done.stderr}"
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_transaction_scenario_of_the_java_client_succeeds(said: dict[str, str], scenario: str) -> None:
    assert said.get(scenario, "did not run") == ""


def test_kafkas_tool_lists_and_describes_transactions_and_aborts_a_hanging_transaction(
    bootstrap: str, topic: NewTopicName, kafka_tool: KafkaTool
) -> None:
    def transactions(*args: str) -> str:
        return kafka_tool(TRANSACTIONS, "--bootstrap-server", bootstrap, *args).stdout

    name, written = f"x-{secrets.token_hex(6)}", topic(partitions=2)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(written, b"open", partition=1)
    producer.flush(20)
    assert name in transactions("list")
    described = transactions("describe", "--transactional-id", name)
    assert "Ongoing" in described
    assert f"{written}-1" in described
    hanging = open_one(bootstrap, written)
    found = transactions("find-hanging", "--topic", written)
    assert str(hanging.producer_id) in found
    assert found.count(written) == 1  # the transaction that its producer will end is not listed
    transactions("abort", "--topic", written, "--partition", "0", "--start-offset", str(hanging.start_offset))
    assert str(hanging.producer_id) not in transactions("find-hanging", "--topic", written)
    assert read(bootstrap, written) == []
    producer.commit_transaction(20)


def test_kafkas_dump_log_tool_prints_transaction_records_and_markers(
    broker: RunningBroker, topic: NewTopicName, kafka_tool: KafkaTool
) -> None:
    if broker.data is None:
        pytest.skip("the broker's files are elsewhere")
    name, written = f"x-{secrets.token_hex(6)}", topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(20)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(written, b"some", partition=0)
        producer.flush(20)
        end(20)
    logs = [str(path) for path in broker.data.glob("__transaction_state-*/*.log") if path.stat().st_size]
    shown = kafka_tool(DUMP_LOG, "--transaction-log-decoder", "--print-data-log", "--files", ",".join(logs)).stdout
    mine = [line for line in shown.splitlines() if name in line]
    states = [line.partition('"transactionStatus":')[2][0] for line in mine]
    assert states == list("0124135")  # Empty, then twice Ongoing, Prepare and Complete
    assert "isvalid: false" not in shown
    data = broker.data / f"{written}-0" / "00000000000000000000.log"
    shown = kafka_tool(DUMP_LOG, "--print-data-log", "--files", str(data)).stdout
    assert "endTxnMarker: COMMIT coordinatorEpoch: 0" in shown
    assert "endTxnMarker: ABORT coordinatorEpoch: 0" in shown
    index = data.with_suffix(".txnindex")
    assert "producerId" in kafka_tool(DUMP_LOG, "--files", str(index)).stdout
