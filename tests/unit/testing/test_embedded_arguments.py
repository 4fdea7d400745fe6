"""Tests which arguments for properties, configs, topics and faults are accepted or refused with one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.requests.fault_rules import Faults
from penstock.sim.run.cluster import SimCluster
from penstock.testing import Broker, Cluster

NOTHING: Any = None
LIST: Any = ["orders"]
TEXT: Any = "3"
NUMBER: Any = 5
MAPPING: Any = {"retention.ms": 1000}


def test_values_of_configs_and_properties_may_be_numbers_or_bools_or_lists() -> None:
    config: dict[str, Any] = {
        "num.partitions": 3,
        "auto.create.topics.enable": False,
        "log.cleanup.policy": ["delete", "compact"],
    }
    with Broker(config=config) as broker:
        broker.create_topic("t", retention_ms=1000, preallocate=True)
        broker.create_topics({"u": -1}, configs={"min.cleanable.dirty.ratio": 0.25})
        with broker.client() as client:
            found = {config.name: config.value for config in client.describe_configs(2, "t")}
            wide = {topic.name: len(topic.partitions) for topic in client.list_topics()}
            other = {config.name: config.value for config in client.describe_configs(2, "u")}
        settings = broker.node.settings
        assert not settings.bool("auto.create.topics.enable")
    assert (found["retention.ms"], found["preallocate"], found["cleanup.policy"]) == ("1000", "true", "delete,compact")
    assert (wide, other["min.cleanable.dirty.ratio"]) == ({"t": 1, "u": 3}, "0.25")


@pytest.mark.parametrize(
    ("write", "kind", "sentence"),
    [
        (lambda: Broker(config={"num.partition": "3"}), ValueError, "no server property 'num.partition': did you mean"),
        (lambda: Broker(config={"num.partition": "3"}), ValueError, "num.partitions"),
        (lambda: Cluster(config={"nope": 1}), ValueError, "no server property 'nope': check its spelling"),
        (lambda: SimCluster(settings={"num.partition": 3}), ValueError, "did you mean num.partitions"),
        (
            lambda: Broker(config={"num.partitions": NOTHING}),
            TypeError,
            "property num.partitions can't be None: give a string",
        ),
        (lambda: Broker(topics=LIST), TypeError, r"names with partition counts, such as {'orders': 3}"),
        (lambda: Broker(topics={"orders": TEXT}), TypeError, "topic 'orders' has the partition count '3'"),
        (lambda: Broker().create_topic("t", retention_mss=1), ValueError, "'retention.mss': did you mean retention.ms"),
        (
            lambda: Broker().create_topics({"t": 1}, configs={"retention_ms": 1}),
            ValueError,
            "did you mean retention.ms",
        ),
        (lambda: Faults().add(error="NOT_LEADER"), ValueError, "'NOT_LEADER': did you mean NOT_LEADER_OR_FOLLOWER?"),
        (
            lambda: Broker().create_topic("t", config=MAPPING),
            TypeError,
            "each config as a keyword, such as retention_ms",
        ),
        (lambda: Broker().create_topic(NUMBER), TypeError, "5 is not a topic name: give a string"),
        (lambda: Broker(config={"authorizer.extra": "x"}), ValueError, "requires protection that Penstock"),
        (lambda: Cluster(nodes=TEXT), TypeError, "nodes is '3': write a whole number"),
        (lambda: Cluster(nodes=0), ValueError, "nodes is 0: write 1 or more"),
        (lambda: Faults().add(delay=1, times=TEXT), TypeError, "times is '3', which is not a whole number"),
        (lambda: Faults().add(error=9999), ValueError, "Kafka has no error with code 9999"),
        (lambda: Faults().add(api="Prodce", delay=1), ValueError, "there is no API 'Prodce': did you mean Produce?"),
    ],
)
def test_invalid_argument_is_refused_with_a_sentence_that_names_the_mistake(
    write: Callable[[], Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence.replace("?", r"\?")):
        write()


def test_error_name_of_a_fault_rule_is_case_insensitive() -> None:
    assert Faults().add(error="not_leader_or_follower").error == 6


def test_reading_a_partition_that_does_not_exist_raises_an_error(penstock: Broker) -> None:
    penstock.create_topic("t", 2)
    with pytest.raises(ValueError, match="topic 't' has no partition 5: it has 2 partitions, counted from 0"):
        penstock.records("t", 5)
