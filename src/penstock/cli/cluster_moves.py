"""`penstock cluster drain|add|rebalance|moves|cancel` shows a plan, carries it out in waves and reports progress.

A plan counts moves under way as finished. The same command, run again after an interruption, therefore waits for those
moves and plans only the remaining moves.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.cli import output
from penstock.cli.confirm import ask
from penstock.cli.cordon import set_cordoned
from penstock.cli.exit import Exit, Failure
from penstock.client.cluster_facts import Facts, readable
from penstock.protocol.vocabulary import ConfigOperation, ResourceType

if TYPE_CHECKING:
    from penstock.cli.connect import Broker
    from penstock.client.cluster_admin import Reassignment
    from penstock.metadata.moves import Move
    from penstock.protocol.vocabulary import TopicPartition

LOOK_EVERY_S = 0.5
RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


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
    plan: Any,
    done: str,
    *,
    elect_all: bool = False,
    close: Collection[int] = (),
    reopen: Collection[int] = (),
) -> int:
    """Shows a plan and carries it out.

    Before the moves, cordons the nodes in `close`, so that they get no new replicas, and uncordons the nodes in
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
            placement, racks, sizes = _starting_point(facts, going, args.topic)
            moves = plan(placement, racks, sizes)
        except PlanError as problem:
            raise Failure(str(problem), Exit.FAILED) from problem
        _show(args, moves, facts)
        ended = {**placement, **{move.partition: move.after for move in moves}}
        wanted = ended if elect_all else {move.partition: move.after for move in moves}
        elected = [each for each, replicas in wanted.items() if facts.partitions[each].leader not in replicas[:1]]
        if elected:
            output.note(f"{output.counted(len(elected), 'partition')} to be led by the preferred replica")
        up = {node.node_id for node in facts.nodes if not node.fenced}
        closing = sorted((set(close) & up) - facts.cordoned)
        if closing:
            output.note(f"{_named(closing)} to get no new replicas until `penstock cluster add {_words(closing)}`")
        if args.dry_run:
            return Exit.OK
        if (moves or elected or closing) and not args.yes:
            ask("go on?")
        _cordon(broker, closing, "*")
        _cordon(broker, sorted(set(reopen) & facts.cordoned), None)
        if not moves and not going and not elected:
            output.note(f"nothing to move: {done}")
            return Exit.OK
        try:
            _carry_out(broker, args, moves, facts)
            while close and (rest := _planned_again(broker, args, plan)):
                # new topics may have placed replicas on the node before the cordon took effect
                _carry_out(broker, args, *rest)
            _elect(broker, elected)
        except KeyboardInterrupt:
            output.note("moves that have begun go on; the same command again waits for them and does the rest,")
            output.note("and `penstock cluster cancel` takes them back")
            raise
    output.note(done)
    return Exit.OK


def _planned_again(broker: Broker, args: argparse.Namespace, plan: Any) -> tuple[list[Move], Facts] | None:
    from penstock.cli.cluster_status import read_facts

    facts = read_facts(broker)
    moves = plan(*_starting_point(facts, broker.run(broker.cluster.reassignments()), args.topic))
    return (moves, facts) if moves else None


def _starting_point(
    facts: Facts, going: Mapping[TopicPartition, Reassignment], topics: Sequence[str]
) -> tuple[dict[TopicPartition, tuple[int, ...]], dict[int, str | None], dict[TopicPartition, int]]:
    """Returns the replicas of each partition, the racks of all usable brokers, and the sizes of partitions.

    For a partition that is being reassigned, returns its replicas after the reassignment.
    """
    placement = {
        each: going[each].target if each in going else part.replicas
        for each, part in facts.partitions.items()
        if not topics or each[0] in topics
    }
    racks = {node.node_id: node.rack for node in facts.nodes if not node.fenced}
    sizes: dict[TopicPartition, int] = {}
    for held in facts.sizes.values():
        for each, held_bytes in held.items():
            sizes[each] = max(sizes.get(each, 0), held_bytes)
    return placement, racks, sizes


def _show(args: argparse.Namespace, moves: Sequence[Move], facts: Facts) -> None:
    rows = []
    total = 0
    for move in moves:
        leader = facts.partitions[move.partition].leader
        size = facts.sizes.get(leader, {}).get(move.partition, 0) if move.copies else 0
        total += size * len(move.adding)
        rows.append(
            {
                "topic": move.partition[0],
                "partition": move.partition[1],
                "from": list(move.before),
                "to": list(move.after),
                "adding": list(move.adding),
                "removing": list(move.removing),
                "bytes": size * len(move.adding),
            }
        )
    shown = rows if args.output == "json" else [{**row, "bytes": readable(int(str(row["bytes"])))} for row in rows]
    if moves or args.output == "json":
        output.rows(args.output, ["topic", "partition", "from", "to", "adding", "removing", "bytes"], shown)
    copied = sum(move.copies for move in moves)
    if moves:
        to_copy = f"{output.counted(copied, 'partition')} to copy ({readable(total)})"
        output.note(f"{to_copy}, {len(moves) - copied} only to be led elsewhere")


def _carry_out(broker: Broker, args: argparse.Namespace, moves: Sequence[Move], facts: Facts) -> None:
    """Submits the moves in waves and waits for each wave to finish."""
    copied = sorted((move for move in moves if move.copies), key=lambda move: move.partition)
    if args.throttle:
        _throttle(broker, args.throttle, copied, [node.node_id for node in facts.nodes if not node.fenced])
    with output.Progress("moved", total=len(moves), unit="partitions") as progress:
        _wait(broker, progress=None)  # wait for moves that an earlier run or another operator began
        for start in range(0, len(moves), args.at_once):
            wave = moves[start : start + args.at_once]
            broker.run(broker.cluster.reassign({move.partition: move.after for move in wave}))
            _wait(broker, progress)
            progress.add(start + len(wave) - progress.done)
    if args.throttle:
        _unthrottle(broker)


def _cordon(broker: Broker, nodes: Sequence[int], directories: str | None) -> None:
    """Sets cordoned.log.dirs of the nodes to `directories`. None unsets the config, which uncordons the nodes."""
    for node in nodes:
        set_cordoned(broker, node, directories, lambda held: held.cordoned == (directories is not None))


def _elect(broker: Broker, partitions: Sequence[TopicPartition]) -> None:
    if partitions:
        for (topic, index), code in broker.run(broker.cluster.elect_leaders(partitions)).items():
            output.note(f"{topic}-{index}: its preferred leader was not elected: {code.name}")


def _wait(broker: Broker, progress: output.Progress | None) -> None:
    """Waits until no move is under way. Adds each finished partition to `progress`."""
    left: int | None = None
    while True:
        going = broker.run(broker.cluster.reassignments())
        if progress is not None and left is not None and len(going) < left:
            progress.add(left - len(going))
        if not going:
            return
        left = len(going)
        time.sleep(LOOK_EVERY_S)


# --- throttles: Kafka's own configs, so that Kafka's own tools can show and remove them -----------------------------


def _throttle(broker: Broker, rate: int, moves: Sequence[Move], nodes: Sequence[int]) -> None:
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for move in moves:
        topic, index = move.partition
        leaders.setdefault(topic, []).extend(f"{index}:{node}" for node in move.before)
        followers.setdefault(topic, []).extend(f"{index}:{node}" for node in move.adding)
    for topic in leaders:
        values = (",".join(leaders[topic]), ",".join(followers[topic]))
        _alter(
            broker,
            ResourceType.TOPIC,
            topic,
            [(name, ConfigOperation.SET, value) for name, value in zip(THROTTLED, values)],
        )
    if moves:
        for node in nodes:
            _alter(broker, ResourceType.BROKER, str(node), [(name, ConfigOperation.SET, str(rate)) for name in RATES])


def _unthrottle(broker: Broker) -> None:
    """Removes all replication throttles, even throttles that other tools set. Called only when no move is under way."""
    from penstock.protocol.errors import KafkaError

    topics = [topic.name for topic in broker.topics() if topic.name]
    set_on = broker.run(broker.cluster.topic_configs(topics, *THROTTLED)) if topics else {}
    for topic, configs in set_on.items():
        if any(configs.values()):
            _alter(broker, ResourceType.TOPIC, topic, [(name, ConfigOperation.DELETE, None) for name in THROTTLED])
    for node in broker.client.nodes():
        try:
            broker.client.alter_configs(
                ResourceType.BROKER, str(node.node_id), [(name, ConfigOperation.DELETE, None) for name in RATES]
            )
        except KafkaError as problem:
            output.note(f"node {node.node_id} is still throttled because its configs could not be changed: {problem}")


def _alter(broker: Broker, kind: int, name: str, changes: list[tuple[str, int, str | None]]) -> None:
    from penstock.cli.connect import refusals

    with refusals():
        broker.client.alter_configs(kind, name, changes)


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
            _unthrottle(broker)
    return Exit.OK


def _arrived(facts: Facts, partition: TopicPartition, adding: Collection[int]) -> dict[str, Any]:
    """Returns the progress of the slowest new replica of a partition.

    The progress is the replica's size as a percentage of the leader's size, and the number of records that it lacks.
    """
    leader = facts.partitions[partition].leader if partition in facts.partitions else -1
    whole = facts.sizes.get(leader, {}).get(partition)
    parts = [facts.sizes.get(node, {}).get(partition, 0) for node in adding]
    lags = [lag for node in adding if (lag := facts.lag(partition, node)) is not None]
    share = None if not whole or not parts else f"{min(100, min(parts) * 100 // whole)} %"
    return {"copied": share, "lag": max(lags) if lags else None}


def run_cancel(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        going = broker.run(broker.cluster.reassignments())
        if going:
            broker.run(broker.cluster.reassign(dict.fromkeys(going)))
            _wait(broker, progress=None)
        _unthrottle(broker)
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
    """Deletes a node's replica and copies it again: removes the node from the partition's replicas, then adds it."""
    from penstock.cli.cluster_status import read_facts
    from penstock.cli.connect import connect

    topic, _, index = args.partition.rpartition("-")
    node = args.replica
    with connect(args) as broker:
        facts = read_facts(broker)
        partition = (topic, int(index)) if index.isdigit() else ("", 0)
        if partition not in facts.partitions:
            raise Failure(f"the cluster has no partition {args.partition}", Exit.NOT_FOUND)
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
            _wait(broker, progress=None)
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
