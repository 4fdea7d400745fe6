"""Tests `penstock txn` against a running broker."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer
from hanging_transaction import open_one
from test_transactions_confluent import read

from penstock.cli.exit import Exit
from penstock.cli.main import main
from penstock.client.producer import ProducerSettings
from penstock.client.sync import Client

NewTopicName = Callable[..., str]


@pytest.fixture
def txn(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*words: str) -> Any:
        assert main(["txn", *words, "--bootstrap", bootstrap, "--output", "json"]) == Exit.OK
        return json.loads(capsys.readouterr().out)

    return run


def test_txn_commands_list_and_describe_transactions(
    bootstrap: str, topic: NewTopicName, txn: Callable[..., Any]
) -> None:
    name, written = f"x-{secrets.token_hex(6)}", topic(partitions=3)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0})
    producer.init_transactions(20)
    producer.begin_transaction()
    for index in (2, 0):
        producer.produce(written, b"open", partition=index)
    producer.flush(20)
    [described] = txn("describe", name)
    assert (described["state"], described["producer_epoch"]) == ("Ongoing", 0)
    assert described["partitions"] == [f"{written}-0", f"{written}-2"]
    assert described["age_ms"] >= 0
    assert name in [each["transactional_id"] for each in txn("list", "--state", "Ongoing")]
    assert name not in [each["transactional_id"] for each in txn("list", "--state", "Ongoing", "--longer-than", "1h")]
    [mine] = txn("list", "--producer-id", str(described["producer_id"]))
    assert mine["transactional_id"] == name
    producer.commit_transaction(20)
    assert txn("describe", name)[0]["state"] == "CompleteCommit"
    assert txn("hanging", written, "--max-age", "0s") == []


def test_txn_commands_show_and_terminate_a_prepared_transaction(
    bootstrap: str, topic: NewTopicName, txn: Callable[..., Any]
) -> None:
    name, written = f"x-{secrets.token_hex(6)}", topic()
    with Client(bootstrap) as client:
        producer = client.producer(ProducerSettings(transactional_id=name, two_phase_commit=True))
        producer.start()
        producer.begin()
        producer.send(written, b"prepared")
        producer.prepare()
        producer.close()
    [described] = txn("describe", name)
    assert (described["state"], described["two_phase"]) == ("Ongoing", True)
    assert name in [each["transactional_id"] for each in txn("list", "--state", "Ongoing")]
    [done] = txn("terminate", name)
    assert done == {"transactional_id": name, "state": "Ongoing", "result": "aborted"}
    assert txn("terminate", name)[0]["result"] == "nothing was open"
    assert txn("describe", name)[0]["two_phase"] is False
    assert read(bootstrap, written) == []


def test_txn_commands_find_and_abort_a_hanging_transaction(
    bootstrap: str, topic: NewTopicName, txn: Callable[..., Any]
) -> None:
    written = topic()
    hanging = open_one(bootstrap, written)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(written, b"behind it", partition=0)
    producer.flush(20)
    assert read(bootstrap, written) == []
    assert txn("hanging", written, "--max-age", "2h") == []
    [found] = txn("hanging", written)
    assert (found["topic"], found["producer_id"], found["producer_epoch"]) == (written, hanging.producer_id, 3)
    assert found["age_ms"] > 3_500_000
    [done] = txn("abort", written, "0", "--start-offset", str(found["start_offset"]))
    assert done["result"] == "aborted"
    assert txn("hanging", written) == []
    assert read(bootstrap, written) == [b"behind it"]


def test_txn_commands_return_an_exit_code_for_missing_transactions_and_topics(
    bootstrap: str, topic: NewTopicName
) -> None:
    def code(*words: str) -> int:
        return main(["txn", *words, "--bootstrap", bootstrap])

    assert code("describe", "nobody-has-this") == Exit.NOT_FOUND
    assert code("terminate", "nobody-has-this") == Exit.NOT_FOUND
    assert code("list", "--state", "Sleeping") == Exit.USAGE
    assert code("hanging", "no-such-topic") == Exit.NOT_FOUND
    assert code("abort", "no-such-topic", "0", "--start-offset", "0") == Exit.NOT_FOUND
    assert code("abort", topic(), "0", "--start-offset", "0") == Exit.NOT_FOUND
