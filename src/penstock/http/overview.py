"""Turns facts about a cluster into the rows that JSON and the console show, sorted and limited in number.

Pure code, which can run in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from penstock.client.cluster_facts import Facts, PartitionFacts, largest, node_rows, partition_rows, problem, summary
from penstock.http.pipelines import Pipeline
from penstock.http.rates import Rate, Sums

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.protocol.vocabulary import TopicPartition

ATTENTION_MAX = 100
#: Damaged replicas that metrics and pages list.
DAMAGED_MAX = 100
PARTITIONS_MAX = 1000

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Overview:
    summary: Row
    nodes: list[Row]
    attention: list[Row]
    """Partitions that are offline, under min ISR or under-replicated: at most ATTENTION_MAX, the worst first, and of
    equally bad ones users' topics before internal topics."""
    wrong_topics: list[Row]
    """All topics with problems, in the same order as `attention`."""
    topics: list[Row]
    """The topics by name, Kafka's internal topics last."""


def topic_sums(facts: Facts) -> dict[str, Sums]:
    """Returns the sums over each topic's partitions. Leaves out partitions whose leader did not respond."""
    found: dict[str, tuple[int, int, int]] = {}
    for (topic, index), part in facts.partitions.items():
        count, end, size = found.get(topic, (0, 0, 0))
        told = facts.ends.get(part.leader, {}).get((topic, index))
        if told is not None:
            count, end = count + 1, end + told
            size += facts.sizes.get(part.leader, {}).get((topic, index), 0)
        found[topic] = (count, end, size)
    return {topic: Sums(*sums) for topic, sums in found.items()}


def overview(facts: Facts, sums: Mapping[str, Sums], rates: Mapping[str, Rate]) -> Overview:
    wrong = {key: part for key, part in facts.partitions.items() if problem(part) is not None}
    rows = partition_rows(facts, wrong)
    rows.sort(key=lambda row: (*_order(row), row["partition"]))
    told = {**summary(facts), "attention": len(rows)}
    told["records_per_second"] = sum(rate.records for rate in rates.values()) if rates else None
    told["bytes_per_second"] = sum(rate.bytes for rate in rates.values()) if rates else None
    topics = _topics(facts, sums, rates)
    counts = {row["topic"]: row["partitions"] for row in topics}
    return Overview(told, node_rows(facts), rows[:ATTENTION_MAX], _wrong_topics(rows, counts), topics)


def _order(row: Row) -> tuple[int, bool, str]:
    worst_first = ("offline", "under min ISR", "under-replicated")
    return worst_first.index(row["problem"]), is_internal(row["topic"]), row["topic"]


def is_internal(topic: str) -> bool:
    return topic.startswith("__")


def _wrong_topics(rows: Sequence[Row], counts: Mapping[str, int]) -> list[Row]:
    """Returns one row for each pair of a topic and a problem.

    A row for each partition would be too much: the failure of a node affects very many partitions.
    """
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["topic"], row["problem"]), []).append(row)
    return [
        {
            "topic": topic,
            "problem": what,
            "partitions": len(members),
            "of": counts[topic],
            "out_of_sync": sorted({node for row in members for node in row["replicas"] if node not in row["isr"]}),
            "lag": largest(row["lag"] for row in members),
        }
        for (topic, what), members in found.items()
    ]


def _topics(facts: Facts, sums: Mapping[str, Sums], rates: Mapping[str, Rate]) -> list[Row]:
    rows: dict[str, Row] = {}
    for (topic, _), part in facts.partitions.items():
        row = rows.get(topic)
        if row is None:
            known, rate = sums[topic], rates.get(topic)
            row = rows[topic] = {
                "topic": topic,
                "internal": is_internal(topic),
                "partitions": 0,
                "replicas": 0,
                "end_offset": known.end if known.partitions else None,
                "bytes": known.size if known.partitions else None,
                "records_per_second": None if rate is None else rate.records,
                "bytes_per_second": None if rate is None else rate.bytes,
                "problems": 0,
            }
        row["partitions"] += 1
        row["replicas"] = max(row["replicas"], len(part.replicas))
        row["problems"] += problem(part) is not None
    return sorted(rows.values(), key=lambda row: (row["internal"], row["topic"]))


def one_topic(
    facts: Facts,
    topic: str,
    partitions: Mapping[TopicPartition, PartitionFacts],
    start: int = 0,
    limit: int = PARTITIONS_MAX,
) -> Row:
    """Returns how many partitions the topic has, and the states of at most `limit` partitions from partition `start`
    on."""
    shown = dict(sorted(partitions.items())[start : start + limit])
    return {"topic": topic, "partitions": len(partitions), "partition_states": partition_rows(facts, shown)}


def damaged_rows(broker: Broker) -> list[Row]:
    """Returns one row for each replica of this node that has a damaged batch. The row gives the reason."""
    found = sorted(broker.logs.corruptions.items())
    return [{"topic": topic, "partition": index, "reason": why} for (topic, index), why in found[:DAMAGED_MAX]]


def failover_rows(broker: Broker) -> list[Row]:
    """Returns the failovers that this node's controller has noticed since the newest snapshot."""
    return [
        {
            "broker": each.broker_id,
            "elected_ms": each.elected_ms,
            "partitions": each.partitions,
            "how": each.how,
            "detected_ms": each.detected_ms,
        }
        for each in broker.controller.failovers
    ]


def pipeline_rows(pipelines: Sequence[Pipeline]) -> list[Row]:
    return [asdict(each) for each in pipelines]
