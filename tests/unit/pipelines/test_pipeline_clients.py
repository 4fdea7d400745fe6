"""Tests that every client of a pipeline gets the pipeline's `kafka.*` options. Needs no Spark."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from penstock.cli.exit import Exit, Failure
from penstock.cli.main import main
from penstock.cli.pipeline_session import reached
from penstock.cli.pipeline_session import topic as known_topic
from penstock.client.sync import Client
from penstock.pipelines.topics import Topic, bounds, counted_partitions, create_like, exists, partitions_of
from penstock.testing import Broker

OPTIONS = {"kafka.client.id": "mine", "Kafka.Request.Timeout.Ms": "20000", "startingOffsets": "earliest"}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Collects the client id and the request timeout of each client that is created."""
    found: list[tuple[str, float]] = []
    init = Client.__init__

    def look(self: Client, *args: object, **named: object) -> None:
        settings = named["settings"]
        found.append((settings.client_id, settings.request_timeout_s))  # type: ignore[attr-defined]
        init(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Client, "__init__", look)
    return found


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"t": 2}) as made:
        yield made


def test_pipeline_connects_to_brokers_with_the_client_options_of_the_topic(
    broker: Broker, made: list[tuple[str, float]]
) -> None:
    topic = Topic(broker.bootstrap, "t", OPTIONS)
    assert partitions_of(topic) == 2
    assert bounds(topic) == {0: (0, 0), 1: (0, 0)}
    assert exists(topic)
    assert not create_like(topic, 5)
    assert len(made) >= 5
    assert set(made) == {("mine", 20.0)}


def test_pipeline_command_looks_up_its_topic_with_the_client_options_of_the_command_line(
    broker: Broker, made: list[tuple[str, float]]
) -> None:
    given = [f"{name}={value}" for name, value in OPTIONS.items()]
    args = argparse.Namespace(bootstrap=broker.bootstrap, command_config=None, timeout=5.0, option=given)
    found = known_topic(args, "t")
    assert found.options == OPTIONS
    assert found.cluster_id
    with reached(args, found) as reply:
        assert reply.existing(["t"])
    assert made == [("mine", 20.0)] * 2


def test_pipeline_command_refuses_invalid_client_options_before_spark_starts(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "pipeline",
        "archive",
        "t",
        "nowhere",
        "-b",
        broker.bootstrap,
        "--option",
        "kafka.security.protocol=SASL_X",
    ]
    assert main(words) == Exit.USAGE
    assert "kafka.security.protocol is SASL_X" in capsys.readouterr().err
    given = ["kafka.request.timeout.ms=soon"]
    args = argparse.Namespace(bootstrap=broker.bootstrap, command_config=None, timeout=5.0, option=given)
    with pytest.raises(Failure, match="does not take 'soon'"):
        known_topic(args, "t")


def test_message_about_one_partition_uses_the_singular() -> None:
    assert [counted_partitions(count) for count in (1, 2)] == ["1 partition", "2 partitions"]
