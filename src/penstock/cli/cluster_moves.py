"""`penstock cluster drain|add|rebalance|moves|cancel` shows a plan, carries it out in waves and reports progress.

A plan counts moves under way as finished. So the same command, run again after an interruption, waits for the moves
under way and plans only the remaining moves.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.confirm import ask
from penstock.cli.exit import Exit, Failure
from penstock.client.cluster_facts import Facts, readable
from penstock.client.replica_moves import MovePlan, copied_share, plan_moves

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.metadata.moves import Move
    from penstock.protocol.vocabulary import TopicPartition


def run_drain(args: argparse.Namespace) -> int:
    from penstock.metadata.moves import drain

    def plan(placement: Any, racks: Any, sizes: Any) -> list[Move]:
        return drain(placement, racks, set(args.nodes), sizes)

    if args.topic:
        return _run(args, plan, f"nothing of {', '.join(args.topic)} is left on {_named(args.nodes)}")
    done = (
        f"nothing is left on {_named(args.nodes)}: "
        f"stop the drained nodes, then run `penstock cluster forget {_words(args.nodes)}`"
    )
    return _run(args, plan, done, close=args.nodes)


def run_add(args: argparse.Namespace) -> int:
    from penstock.metadata.moves import rebalance

    def plan(placement: Any, racks: Any, sizes: Any) -> list[Move]:
        missing = [node for node in args.nodes if node not in racks]
        if missing:
            raise Failure(
                f"{_named(missing)} is not among the running brokers: start the missing nodes first", Exit.NOT_FOUND
            )
        return rebalance(placement, racks, sizes, onto=set(args.nodes))

    return _run(args, plan, f"{_named(args.nodes)} has a fair share", reopen=args.nodes)


def run_rebalance(args: argparse.Namespace) -> int:
    from penstock.metadata.moves import rebalance

    return _run(args, rebalance, "the cluster is even", elect_all=True)


def _run(
    args: argparse.Namespace,
    planner: Any,
    done: str,
    *,
    elect_all: bool = False,
    close: Collection[int] = (),
    reopen: Collection[int] = (),
) -> int:
    """Shows a plan and carries it out.

    Before the moves, cordons the nodes in `close`: a cordoned node gets no new replicas. Uncordons the nodes in
    `reopen`.
    """
    from penstock.cli.cluster_status import read_facts
    from penstock.cli.connect import connect
    from penstock.metadata.moves import PlanError

    with connect(args) as broker:
        facts = read_facts(broker)
        there = {node.node_id for node in facts.nodes}.union(*(part.replicas for part in facts.partitions.values()))
        unknown = sorted(set(close) - there)
        if unknown:
            raise Failure(f"the cluster has no {_named(unknown)}: it has {_named(sorted(there))}", Exit.NOT_FOUND)
        going = broker.run(broker.cluster.reassignments())
        try:
            plan = plan_moves(facts, going, planner, args.topic, elect_all=elect_all, close=close)
        except PlanError as problem:
            raise Failure(str(problem), Exit.FAILED) from problem
        _show(args, plan, facts)
        if args.dry_run:
            return Exit.OK
        if plan and not args.yes:
            ask("go on?")
        _note(broker.run(broker.replica_moves.cordon(plan.closing, "*")))
        _note(broker.run(broker.replica_moves.cordon(sorted(set(reopen) & facts.cordoned), None)))
        if not plan.moves and not going and not plan.elected:
            output.note(f"nothing to move: {done}")
            return Exit.OK
        try:
            _carry_out(broker, args, plan.moves, facts)
            while close and (rest := _planned_again(broker, args, planner)):
                # new topics may have placed replicas on the node before the cordon took effect
                _carry_out(broker, args, *rest)
            _note(broker.run(broker.replica_moves.elect(plan.elected)))
        except KeyboardInterrupt:
            output.note("moves that have begun go on; the same command again waits for them and does the rest,")
            output.note("and `penstock cluster cancel` takes them back")
            raise
    output.note(done)
    return Exit.OK


def _planned_again(broker: Broker, args: argparse.Namespace, planner: Any) -> tuple[list[Move], Facts] | None:
    from penstock.cli.cluster_status import read_facts

    facts = read_facts(broker)
    moves = plan_moves(facts, broker.run(broker.cluster.reassignments()), planner, args.topic).moves
    return (moves, facts) if moves else None


def _show(args: argparse.Namespace, plan: MovePlan, facts: Facts) -> None:
    rows = plan.rows(facts)
    shown = rows if args.output == "json" else [{**row, "bytes": readable(row["bytes"])} for row in rows]
    if rows or args.output == "json":
        output.rows(args.output, ["topic", "partition", "from", "to", "adding", "removing", "bytes"], shown)
    if rows:
        copied = sum(move.copies for move in plan.moves)
        to_copy = f"{output.counted(copied, 'partition')} to copy ({readable(sum(row['bytes'] for row in rows))})"
        output.note(f"{to_copy}, {len(rows) - copied} only to be led elsewhere")
    if plan.elected:
        output.note(f"{output.counted(len(plan.elected), 'partition')} to be led by the preferred replica")
    if plan.closing:
        later = f"until `penstock cluster add {_words(plan.closing)}`"
        output.note(f"{_named(plan.closing)} to get no new replicas {later}")


def _carry_out(broker: Broker, args: argparse.Namespace, moves: Sequence[Move], facts: Facts) -> None:
    """Submits the moves in waves. Waits until all moves of a wave have ended before it submits the next wave."""
    if args.throttle:
        nodes = [node.node_id for node in facts.nodes if not node.fenced]
        broker.run(broker.replica_moves.throttle(args.throttle, sorted(moves, key=lambda move: move.partition), nodes))
    with output.Progress("moved", total=len(moves), unit="partitions") as progress:
        for ended in broker.steps(broker.replica_moves.carry_out(moves, args.at_once)):
            progress.add(ended)
    if args.throttle:
        _note(broker.run(broker.replica_moves.unthrottle()))


def _wait(broker: Broker, progress: output.Progress | None = None) -> None:
    """Waits until no move is under way. Adds each finished partition to `progress`."""
    for ended in broker.steps(broker.replica_moves.wait()):
        if progress is not None:
            progress.add(ended)


def _note(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        output.note(sentence)


# --- moves under way ------------------------------------------------------------------------------------------------


def run_moves(args: argparse.Namespace) -> int:
    from penstock.cli.cluster_status import read_facts
    from penstock.cli.connect import connect

    with connect(args) as broker:
        going = broker.run(broker.cluster.reassignments())
        facts = read_facts(broker) if going else None
        rows = []
        for (topic, index), each in sorted(going.items()):
            assert facts is not None
            rows.append(
                {
                    "topic": topic,
                    "partition": index,
                    "to": list(each.target),
                    "adding": list(each.adding),
                    "removing": list(each.removing),
                    **_arrived(facts, (topic, index), each.adding),
                }
            )
        columns = ["topic", "partition", "to", "adding", "removing", "copied", "lag"]
        output.rows(args.output, columns, rows, empty="nothing is being moved")
        if args.wait:
            with output.Progress("moved", total=len(going), unit="partitions") as progress:
                _wait(broker, progress)
            _note(broker.run(broker.replica_moves.unthrottle()))
    return Exit.OK


def _arrived(facts: Facts, partition: TopicPartition, adding: Collection[int]) -> dict[str, Any]:
    share, lag = copied_share(facts, partition, adding)
    return {"copied": None if share is None else f"{share} %", "lag": lag}


def run_cancel(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        going = broker.run(broker.cluster.reassignments())
        if going:
            broker.run(broker.cluster.reassign(dict.fromkeys(going)))
            _wait(broker)
        _note(broker.run(broker.replica_moves.unthrottle()))
    rows = [
        {"topic": topic, "partition": index, "result": "cancelled", "not_added": list(each.adding)}
        for (topic, index), each in sorted(going.items())
    ]
    output.rows(args.output, ["topic", "partition", "result", "not_added"], rows, empty="nothing is being moved")
    return Exit.OK


def run_forget(args: argparse.Namespace) -> int:
    from penstock.cli.cluster_status import read_facts
    from penstock.cli.connect import connect

    with connect(args) as broker:
        facts = read_facts(broker)
        for node in args.nodes:
            if any(each.node_id == node and not each.fenced for each in facts.nodes):
                raise Failure(f"node {node} is running and would register again at once: stop it first", Exit.FAILED)
            held = [each for each, part in facts.partitions.items() if node in part.replicas]
            if held:
                sentence = (
                    f"node {node} still has {output.counted(len(held), 'replica')}, such as {held[0][0]}-{held[0][1]}"
                )
                raise Failure(f"{sentence}: run `penstock cluster drain {node}` first", Exit.FAILED)
        for node in args.nodes:
            broker.run(broker.cluster.unregister_broker(node))
    output.rows(args.output, ["node", "result"], [{"node": node, "result": "forgotten"} for node in args.nodes])
    return Exit.OK


def run_reset(args: argparse.Namespace) -> int:
    """Makes a node copy a replica again: removes the node from the partition's replicas, then adds it again."""
    from penstock.cli.cluster_status import read_facts
    from penstock.cli.connect import connect

    topic, _, index = args.partition.rpartition("-")
    node = args.replica
    with connect(args) as broker:
        facts = read_facts(broker)
        partition = (topic, int(index)) if index.isdigit() else ("", 0)
        if partition not in facts.partitions:
            raise Failure(
                f"the cluster has no partition {args.partition}: `penstock topic list` shows the topics", Exit.NOT_FOUND
            )
        part = facts.partitions[partition]
        others = tuple(each for each in part.replicas if each != node)
        if node not in part.replicas:
            raise Failure(
                f"node {node} has no replica of {args.partition}: its replicas are on nodes {list(part.replicas)}",
                Exit.NOT_FOUND,
            )
        if not any(each in part.isr for each in others):
            raise Failure(
                f"no other replica of {args.partition} is in sync, so no copy can be made: "
                "wait until one of the other replicas is in sync",
                Exit.FAILED,
            )
        if partition in broker.run(broker.cluster.reassignments()):
            raise Failure(f"{args.partition} is being moved: wait, or run `penstock cluster cancel`", Exit.FAILED)
        dropped = facts.ends.get(node, {}).get(partition)
        size = facts.sizes.get(node, {}).get(partition)
        output.note(f"node {node} drops its copy of {args.partition} ({readable(size)}, end offset {dropped})")
        if not args.yes:
            ask("go on?")
        for replicas in (others, part.replicas):
            broker.run(broker.cluster.reassign({partition: replicas}))
            _wait(broker)
        after = read_facts(broker)
    output.record(
        args.output,
        {
            "partition": args.partition,
            "replica": node,
            "dropped_bytes": size,
            "dropped_end_offset": dropped,
            "copied_bytes": after.sizes.get(node, {}).get(partition),
            "copied_end_offset": after.ends.get(node, {}).get(partition),
            "in_sync": node in after.partitions[partition].isr,
        },
    )
    return Exit.OK


def _named(nodes: Sequence[int]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(map(str, nodes))}"


def _words(nodes: Sequence[int]) -> str:
    return " ".join(map(str, nodes))
