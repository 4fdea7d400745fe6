"""`penstock cluster status`: one look at a cluster, or on a terminal one every two seconds."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.exit import Exit
from penstock.client.cluster_facts import (
    Facts,
    NodeFacts,
    PartitionFacts,
    node_rows,
    partition_rows,
    readable,
    summary,
)

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.client.client import AsyncClient
    from penstock.client.cluster_admin import ClusterAdmin

NODE_COLUMNS = [
    *("node", "address", "rack", "state", "controller", "leaders", "replicas", "out_of_sync", "under_replicated"),
    *("under_min_isr", "offline", "bytes", "lag", "metadata_lag"),
]
PARTITION_COLUMNS = [
    *("topic", "partition", "leader", "leader_epoch", "replicas", "isr", "adding", "end_offset", "lag", "bytes"),
    "problem",
]
ASK_A_NODE_S = 5.0  # one that hangs must not keep the others from being shown


def run_status(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        if args.output == "json":
            facts = look(broker)
            output.record("json", as_json(facts))
        elif sys.stdout.isatty() and not args.once:
            _watch(broker, args)
        else:
            facts = look(broker)
            print(output.printable(headline(facts)))
            output.rows("table", *_table(facts, args), empty="nothing is wrong" if args.problems else "no partitions")
    return Exit.OK


def look(broker: Broker) -> Facts:
    return broker.run(gather(broker.client.asynchronous, broker.cluster))


async def gather(client: AsyncClient, admin: ClusterAdmin) -> Facts:
    """Everything that status shows. A node that doesn't answer is left out of what only it knows."""
    import asyncio

    from penstock.protocol.errors import KafkaError

    described = await admin.describe_brokers()
    metadata = await client.metadata(None)
    quorum = (await admin.describe_quorum()).topics[0].partitions[0]
    names = [topic.name for topic in metadata.topics if topic.name is not None]
    least = await admin.topic_configs(names, "min.insync.replicas") if names else {}
    partitions = {
        (topic.name or "", part.partition_index): PartitionFacts(
            part.leader_id,
            part.leader_epoch,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
            int(least.get(topic.name or "", {}).get("min.insync.replicas") or 1),
        )
        for topic in metadata.topics
        for part in topic.partitions
    }
    told = [*quorum.current_voters, *quorum.observers]
    end = max((each.log_end_offset for each in told), default=0)
    facts = Facts(
        described.cluster_id,
        quorum.leader_id,
        quorum.leader_epoch,
        [
            NodeFacts(each.broker_id, f"{each.host}:{each.port}", each.rack, each.is_fenced)
            for each in described.brokers
        ],
        partitions,
        [each.replica_id for each in quorum.current_voters],
        {each.replica_id: max(0, end - each.log_end_offset) for each in told if each.log_end_offset >= 0},
    )
    facts.moving = {each: found.adding for each, found in (await admin.reassignments()).items()}

    async def ask(node: int) -> None:
        try:
            async with asyncio.timeout(ASK_A_NODE_S):
                holdings = await admin.holdings(node)
                held = holdings.replicas
                if holdings.cordoned:
                    facts.cordoned.add(node)
                facts.sizes[node] = {each: replica.size for each, replica in held.items()}
                facts.ends[node] = await admin.end_offsets(node, held)
        except (KafkaError, TimeoutError):
            pass

    await asyncio.gather(*(ask(node.node_id) for node in facts.nodes if not node.fenced))
    return facts


def as_json(facts: Facts) -> dict[str, Any]:
    return {**summary(facts), "brokers": node_rows(facts), "partition_states": partition_rows(facts)}


def headline(facts: Facts) -> str:
    said = summary(facts)
    wrong = [f"{said[name]} {name.replace('_', ' ')}" for name in ("fenced", "under_replicated", "under_min_isr")]
    wrong = [each for each in (*wrong, f"{said['offline']} offline") if not each.startswith("0 ")]
    state = ", ".join(wrong) or "all in sync"
    moving = f", {said['moving']} moving" if said["moving"] else ""
    return (
        f"cluster {said['cluster_id']}  {said['nodes']} nodes  controller {said['controller']}"
        f" (epoch {said['controller_epoch']})  {said['partitions']} partitions: {state}{moving}"
    )


def _table(facts: Facts, args: argparse.Namespace) -> tuple[list[str], list[dict[str, Any]]]:
    if args.partitions or args.problems:
        rows = [row for row in partition_rows(facts) if row["problem"] or not args.problems]
        columns = PARTITION_COLUMNS
    else:
        rows, columns = node_rows(facts), NODE_COLUMNS
    return columns, [{**row, "bytes": readable(row["bytes"]), "lag": _lag(row)} for row in rows]


def _lag(row: dict[str, Any]) -> Any:
    """A replica whose node doesn't answer may be behind by anything."""
    follows = row["replicas"] > row["leaders"] if "leaders" in row else len(row["replicas"]) > 1
    return "unknown" if row["lag"] is None and follows else row["lag"]


def _watch(broker: Broker, args: argparse.Namespace) -> None:
    """Draws it again and again until Ctrl-C; a cluster that doesn't answer for a while is waited for."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from penstock.cli.exit import Failure

    drawn: Group | None = None
    with Live(auto_refresh=False, screen=False) as live:
        while True:
            try:
                facts = look(broker)
                title = Text(
                    output.printable(headline(facts)), style="bold" if summary(facts)["offline"] == 0 else "bold red"
                )
                drawn = Group(title, output.rich_table(*_table(facts, args)))
                live.update(drawn, refresh=True)
            except Failure as problem:
                if drawn is None:
                    raise
                live.update(
                    Group(Text(output.printable(f"no answer: {problem.message}"), style="red"), drawn), refresh=True
                )
            time.sleep(args.every)
