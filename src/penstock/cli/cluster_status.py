"""`penstock cluster status` shows a cluster's state: once, or refreshed every two seconds on a terminal."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.cli import output
from penstock.cli.exit import Exit
from penstock.client.cluster_facts import (
    PROBLEMS,
    Facts,
    NodeFacts,
    PartitionFacts,
    health,
    node_rows,
    partition_rows,
    readable,
    summary,
    troubles,
)

if TYPE_CHECKING:
    from rich.console import Group

    from penstock.cli.connect import Broker
    from penstock.client.client import AsyncClient
    from penstock.client.cluster_admin import ClusterAdmin

# These columns fit into 80 characters; JSON has more keys.
NODE_COLUMNS = ["node", "address", "rack", "state", "quorum", "leads", "replicas", "behind", "bytes", "lag"]
PARTITION_COLUMNS = ["partition", "leader", "replicas", "isr", "adding", "lag", "bytes", "problem"]
LEFT_OUT_IF_EMPTY = ("rack", "behind", "adding", "problem")
COLOURS = {
    "up": "green",
    "active": "bold",
    "cordoned": "yellow",
    "fenced": "red",
    "quarantined": "red",
    "silent": "red",
    "unknown": "yellow",
    **dict.fromkeys(PROBLEMS, "red"),
}
ASK_A_NODE_S = 5.0  # a node that hangs must not delay the display of the others


def run_status(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        if args.output != "json" and sys.stdout.isatty() and not args.once:
            _watch(broker, args)
        facts = read_facts(broker)
    if args.output == "json":
        output.record("json", as_json(facts))
    elif sys.stdout.isatty():
        from rich.console import Console

        Console().print(_drawn(facts, args))
    else:
        print("\n".join(map(output.printable, headlines(facts))))
        output.rows("table", *_table(facts, args), empty="nothing is wrong" if args.problems else "no partitions")
    found = troubles(facts)
    if found:
        output.note(f"penstock: the cluster needs attention: {', '.join(found)}")
    return Exit.NEEDS_ATTENTION if found else Exit.OK


def run_health(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        facts = read_facts(broker)
    found = health(summary(facts), facts.controller if facts.controller >= 0 else None)
    output.record(args.output, found)
    accepted = ("healthy", "degraded") if args.degraded else ("healthy",)
    return Exit.OK if found["status"] in accepted else Exit.NEEDS_ATTENTION


def read_facts(broker: Broker) -> Facts:
    return broker.run(gather(broker.client.asynchronous, broker.cluster))


async def gather(client: AsyncClient, admin: ClusterAdmin) -> Facts:
    """Collects the facts that `status` shows. Leaves out facts that only an unreachable node knows."""
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
            NodeFacts(each.broker_id, f"{each.host}:{each.port}", each.rack, each.is_fenced, each.quarantine)
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
    told = {**summary(facts), "troubles": troubles(facts)}
    return {**told, "brokers": node_rows(facts), "partition_states": partition_rows(facts)}


def headlines(facts: Facts) -> tuple[str, str]:
    """Returns the two lines above the table: the cluster's identity and its health."""
    said = summary(facts)
    count = output.counted
    size = f"{count(said['nodes'], 'node')}, {count(said['partitions'], 'partition')}"
    moving = [f"{said['moving']} moving"] if said["moving"] else []
    state = ", ".join([*(troubles(facts) or ["all in sync"]), *moving])
    return f"cluster {said['cluster_id']}: {size}, controller {said['controller']}", state


def _table(facts: Facts, args: argparse.Namespace) -> tuple[list[str], list[dict[str, Any]]]:
    if args.partitions or args.problems:
        found = [row for row in partition_rows(facts) if row["problem"] or not args.problems]
        rows = [{**row, "partition": f"{row['topic']}-{row['partition']}"} for row in found]
        columns = PARTITION_COLUMNS
    else:
        rows = [
            {**row, "quorum": row["controller"], "leads": row["leaders"], "behind": row["out_of_sync"]}
            for row in node_rows(facts)
        ]
        columns = NODE_COLUMNS
    shown = [{**row, "bytes": readable(row["bytes"]), "lag": _lag(row)} for row in rows]
    return [name for name in columns if name not in LEFT_OUT_IF_EMPTY or any(row[name] for row in rows)], shown


def _drawn(facts: Facts, args: argparse.Namespace) -> Group:
    """Returns the status as text for a terminal."""
    from rich.console import Group
    from rich.text import Text

    what, state = map(output.printable, headlines(facts))
    columns, rows = _table(facts, args)
    lines = [Text(what, style="bold"), Text(state, style="bold red" if troubles(facts) else "bold green")]
    return Group(*lines, *([output.rich_table(columns, rows, COLOURS)] if rows else []))


def _lag(row: dict[str, Any]) -> Any:
    """Returns the lag in a row of the table; "unknown" if a node with a replica did not respond."""
    follows = row["replicas"] > row["leaders"] if "leaders" in row else len(row["replicas"]) > 1
    return "unknown" if row["lag"] is None and follows else row["lag"]


def _watch(broker: Broker, args: argparse.Namespace) -> NoReturn:
    """Redraws the status until Ctrl-C, even while no node of the cluster responds."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from penstock.cli.exit import Failure

    drawn: Group | None = None
    with Live(auto_refresh=False, screen=False) as live:
        while True:
            try:
                drawn = _drawn(read_facts(broker), args)
                live.update(drawn, refresh=True)
            except Failure as problem:
                if drawn is None:
                    raise
                silence = Text(output.printable(f"no answer: {problem.message}"), style="red")
                live.update(Group(silence, drawn), refresh=True)
            time.sleep(args.every)
