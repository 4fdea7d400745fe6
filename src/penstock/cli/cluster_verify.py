"""`penstock cluster verify` reads every replica and compares it with the leader's replica, range by range."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.exit import Exit, Failure

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.client.comparison import Comparison, Target

COLUMNS = ["partition", "result", "replica", "first_offset", "last_offset", "at_offset", "what"]


def run_verify(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        targets = _targets(broker, args.topics)
        found = [] if _by_spark(args) else _here(broker, targets, args)
    if _by_spark(args):
        found = _spread(targets, args)
    differences = sum(len(each.differences) for each in found)
    if args.output == "json":
        output.rows("json", [], [_as_json(each) for each in found])
    else:
        output.rows("table", COLUMNS, [row for each in found for row in _rows(each)], empty="no partitions")
    read = sum(each.read_bytes for each in found)
    ranges = sum(each.ranges for each in found)
    said = [output.counted(len(found), "partition"), output.counted(ranges, "range"), output.counted(read, "byte")]
    output.note(f"{', '.join(said)} read")
    differ = "1 range differs" if differences == 1 else f"{differences} ranges differ"
    output.note(differ if differences else "all that was compared is the same")
    return Exit.FAILED if differences else Exit.OK


def _by_spark(args: argparse.Namespace) -> bool:
    return bool(args.spark or args.master)


def _targets(broker: Broker, wanted: Sequence[str]) -> list[Target]:
    from penstock.client.comparison import Target

    topics = {topic.name or "": topic for topic in broker.topics()}
    chosen: list[tuple[Any, Any]] = []
    for word in wanted or sorted(topics):
        if word in topics:
            chosen += [(topics[word], part) for part in topics[word].partitions]
            continue
        name, _, index = word.rpartition("-")
        found = (
            [part for part in topics[name].partitions if str(part.partition_index) == index] if name in topics else []
        )
        if not found:
            raise Failure(
                f"there is no topic or partition {word}: `penstock topic list` shows the topics", Exit.NOT_FOUND
            )
        chosen.append((topics[name], found[0]))
    names = sorted({topic.name for topic, _ in chosen})
    policies = broker.run(broker.cluster.topic_configs(names, "cleanup.policy")) if names else {}
    return [
        Target(
            (topic.name, part.partition_index),
            topic.topic_id,
            part.leader_id,
            tuple(part.replica_nodes),
            compacted="compact" in (policies.get(topic.name, {}).get("cleanup.policy") or ""),
        )
        for topic, part in sorted(chosen, key=lambda each: (each[0].name, each[1].partition_index))
    ]


def _here(broker: Broker, targets: Sequence[Target], args: argparse.Namespace) -> list[Comparison]:
    """Compares the replicas of one partition after the other, in this process."""
    found = []
    with output.Progress("compared", total=len(targets), unit="partitions") as progress:
        for target in targets:
            found.append(broker.run(_compare(broker, target, args.range, args.rate)))
            progress.add()
    return found


async def _compare(broker: Broker, target: Target, range_offsets: int, rate: int | None) -> Comparison:
    from penstock.client.comparison import at_rate, compare_replicas, unread
    from penstock.protocol.errors import KafkaError

    try:
        client = broker.client.asynchronous
        return await compare_replicas(client, target, range_offsets=range_offsets, paced=at_rate(rate))
    except KafkaError as error:
        return unread(target, error.message or error.code.name)


def _spread(targets: Sequence[Target], args: argparse.Namespace) -> list[Comparison]:
    """Compares the replicas of all partitions in Spark tasks."""
    from penstock.cli.pipeline_session import progress_lines, spark_session
    from penstock.pipelines.verify import verify
    from penstock.pipelines.watching import told, watched

    def line(seconds: float) -> str:
        work = watch.look()
        return told("compared", work.tasks, work.all_tasks, "parts", seconds)

    with spark_session(args, "cluster verify") as spark, watched(spark) as watch, progress_lines(line):
        return verify(spark, args.bootstrap, targets, range_offsets=args.range, rate=args.rate, timeout_s=args.timeout)


def _rows(found: Comparison) -> list[dict[str, Any]]:
    name = f"{found.partition[0]}-{found.partition[1]}"
    rows = [
        {
            "partition": name,
            "result": "differs",
            "replica": each.replica,
            "first_offset": each.first,
            "last_offset": each.last,
            "at_offset": each.offset,
            "what": each.what,
        }
        for each in found.differences
    ]
    for node, why in sorted(found.left_out.items()):
        rows.append({"partition": name, "result": "not compared", "replica": node, "what": why})
    if not found.differences and found.compared:
        behind = "; ".join(f"node {node} lags by {lag}" for node, lag in sorted(found.behind.items()))
        rows.append(
            {
                "partition": name,
                "result": "same" if len(found.compared) > 1 else "one replica",
                "replica": found.compared,
                "first_offset": found.first,
                "last_offset": found.end - 1 if found.end > found.first else None,
                "what": behind or None,
            }
        )
    return rows


def _as_json(found: Comparison) -> dict[str, Any]:
    return {
        "topic": found.partition[0],
        "partition": found.partition[1],
        "leader": found.leader,
        "compared": found.compared,
        "not_compared": {str(node): why for node, why in found.left_out.items()},
        "behind": {str(node): lag for node, lag in found.behind.items()},
        "first_offset": found.first,
        "end_offset": found.end,
        "ranges": found.ranges,
        "digest": found.digest,
        "differences": [
            {
                "replica": each.replica,
                "first_offset": each.first,
                "last_offset": each.last,
                "at_offset": each.offset,
                "what": each.what,
            }
            for each in found.differences
        ],
    }
