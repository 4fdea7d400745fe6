"""`penstock txn` lists and describes transactions, and aborts transactions that no coordinator will end.

A transaction hangs if it is open in a partition and no coordinator knows it: the last stable offset does not advance,
so every read_committed consumer waits. `hanging` finds such partitions, `abort` writes the missing marker. Any Kafka
broker serves the requests used here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.cli import output
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, duration, verb
from penstock.cli.parser import listed
from penstock.protocol.vocabulary import NO_TRANSACTION_TIMEOUT_MS, TRANSACTION_COORDINATOR

if TYPE_CHECKING:
    from penstock.cli.connect import Broker

NO_COORDINATOR_EPOCH = 0  # the coordinator epoch for a producer's first transaction: no marker has named one yet
TERMINATE_TIMEOUT_MS = 60_000  # timeout of the id's next transaction, which this command never begins
DEFAULT_MAX_AGE = "15m"  # the default of transaction.max.timeout.ms, the longest that a transaction may last


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    listing = verb(verbs, "list", "list transactional ids", run_list)
    connection(listing)
    listing.add_argument("--state", action="append", default=[], help="Empty, Ongoing, PrepareCommit, … (repeatable)")
    listing.add_argument("--producer-id", type=int, action="append", default=[], help="repeatable")
    listing.add_argument("--longer-than", type=duration, default=-1, metavar="15m", help="open for longer than this")

    describe = verb(verbs, "describe", "show state, producer, age and partitions of transactional ids", run_describe)
    connection(describe)
    describe.add_argument("ids", nargs="+", metavar="TRANSACTIONAL_ID")

    terminate = verb(
        verbs,
        "terminate",
        "abort the open transactions of transactional ids, prepared or not, and fence their producers",
        run_terminate,
    )
    connection(terminate)
    terminate.add_argument("ids", nargs="+", metavar="TRANSACTIONAL_ID")

    hanging = verb(verbs, "hanging", "find transactions that no coordinator will end", run_hanging)
    connection(hanging)
    hanging.add_argument("topics", nargs="*", metavar="TOPIC", help="default: all")
    hanging.add_argument(
        "--max-age",
        type=duration,
        default=DEFAULT_MAX_AGE,
        metavar=DEFAULT_MAX_AGE,
        help="minimum age of a hanging transaction; not below the brokers' transaction.max.timeout.ms",
    )

    abort = verb(
        verbs, "abort", "end a hanging transaction on one partition; its records are never committed", run_abort
    )
    connection(abort)
    abort.add_argument("topic", metavar="TOPIC")
    abort.add_argument("partition", type=int, metavar="PARTITION")
    abort.add_argument(
        "--start-offset", type=int, required=True, help="first offset of the transaction, as `hanging` shows"
    )


# --- list, describe -----------------------------------------------------------------------------------------------


def run_list(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, failure
    from penstock.protocol.messages import api_66_list_transactions as api
    from penstock.transactions.states import LABELS

    request = api.ListTransactionsRequest(
        state_filters=args.state, producer_id_filters=args.producer_id, duration_filter=args.longer_than
    )
    found = []
    with connect(args) as broker:
        for node in _nodes(broker):
            answer: api.ListTransactionsResponse = broker.ask(request, node=node)
            if answer.error_code:
                raise failure(f"node {node}", answer.error_code, None)
            if answer.unknown_state_filters:
                raise Failure(
                    f"there is no transaction state {', '.join(answer.unknown_state_filters)}: use "
                    f"{listed(LABELS.values())}",
                    Exit.USAGE,
                )
            found += [
                {
                    "transactional_id": each.transactional_id,
                    "state": each.transaction_state,
                    "producer_id": each.producer_id,
                    "coordinator": node,
                }
                for each in answer.transaction_states
            ]
    found.sort(key=lambda row: str(row["transactional_id"]))
    columns = ["transactional_id", "state", "producer_id", "coordinator"]
    output.rows(args.output, columns, found, empty="no transactions")
    return Exit.OK


def run_describe(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome

    rows, failures = [], []
    with connect(args) as broker:
        for each, node in _describe(broker, args.ids):
            if each.error_code:
                failures.append((each.transactional_id, each.error_code, None))
                continue
            is_open = each.transaction_state == "Ongoing"
            rows.append(
                {
                    "transactional_id": each.transactional_id,
                    "state": each.transaction_state,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "timeout_ms": each.transaction_timeout_ms,
                    "two_phase": each.transaction_timeout_ms == NO_TRANSACTION_TIMEOUT_MS,
                    "age_ms": _now_ms() - each.transaction_start_time_ms if is_open else None,
                    "coordinator": node,
                    "partitions": [f"{topic.topic}-{index}" for topic in each.topics for index in topic.partitions],
                }
            )
    columns = ["transactional_id", "state", "producer_id", "producer_epoch", "timeout_ms", "two_phase", "age_ms"]
    return outcome(args.output, [*columns, "coordinator", "partitions"], rows, failures)


def _describe(broker: Broker, ids: Iterable[str]) -> Iterator[tuple[Any, int]]:
    """Yields the state of each transactional id, with the node id of its coordinator."""
    from penstock.protocol.messages import api_65_describe_transactions as api

    for node, names in _by_coordinator(broker, ids).items():
        for state in broker.ask(api.DescribeTransactionsRequest(transactional_ids=names), node=node).transaction_states:
            yield state, node


def _by_coordinator(broker: Broker, ids: Iterable[str]) -> dict[int, list[str]]:
    from penstock.cli.connect import failure
    from penstock.protocol.messages import api_10_find_coordinator as api

    grouped: dict[int, list[str]] = {}
    request = api.FindCoordinatorRequest(key_type=TRANSACTION_COORDINATOR, coordinator_keys=list(ids))
    for found in broker.ask(request).coordinators:
        if found.error_code:
            raise failure(found.key, found.error_code, found.error_message)
        grouped.setdefault(found.node_id, []).append(found.key)
    return grouped


def _nodes(broker: Broker) -> list[int]:
    from penstock.protocol.messages import api_60_describe_cluster as api

    return sorted(each.broker_id for each in broker.ask(api.DescribeClusterRequest()).brokers)


# --- terminate ----------------------------------------------------------------------------------------------------


def run_terminate(args: argparse.Namespace) -> int:
    """Aborts the open transaction of each transactional id: InitProducerId with this id makes the coordinator abort
    it."""
    from penstock.cli.connect import connect, outcome, refusals
    from penstock.client.transactions import Transactions

    rows, failures = [], []
    with connect(args) as broker:
        for each, _ in _describe(broker, args.ids):
            if each.error_code:
                failures.append((each.transactional_id, each.error_code, None))
                continue
            producer = Transactions(broker.client.asynchronous, each.transactional_id, TERMINATE_TIMEOUT_MS)
            with refusals():
                broker.run(producer.start())
            was_open = each.transaction_state == "Ongoing"
            result = "aborted" if was_open else "nothing was open"
            rows.append({"transactional_id": each.transactional_id, "state": each.transaction_state, "result": result})
    return outcome(args.output, ["transactional_id", "state", "result"], rows, failures)


# --- hanging, abort -----------------------------------------------------------------------------------------------


class Open(NamedTuple):
    """Describes a transaction that is open in a partition's log."""

    topic: str
    partition: int
    leader: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int


def run_hanging(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, failure

    with connect(args) as broker:
        topics = broker.topics(args.topics or None)
        for topic in topics:
            if topic.error_code:
                raise failure(topic.name or "?", topic.error_code, None)
        now_ms = _now_ms()
        old = [each for each in _open_transactions(broker, topics) if now_ms - each.last_timestamp > args.max_age]
        found = _unknown_to_coordinators(broker, old)
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "start_offset": each.start_offset,
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "coordinator_epoch": each.coordinator_epoch,
            "last_timestamp": each.last_timestamp,
            "age_ms": now_ms - each.last_timestamp,
        }
        for each in found
    ]
    columns = ["topic", "partition", "start_offset", "producer_id", "producer_epoch", "age_ms"]
    output.rows(args.output, columns, rows, empty="no hanging transactions")
    return Exit.OK


def _open_transactions(broker: Broker, topics: Iterable[Any]) -> Iterator[Open]:
    from penstock.protocol.messages import api_61_describe_producers as api

    led: dict[int, dict[str, list[int]]] = {}
    for topic in topics:
        for partition in topic.partitions:
            if partition.leader_id >= 0:
                led.setdefault(partition.leader_id, {}).setdefault(topic.name, []).append(partition.partition_index)
    for node, partitions in led.items():
        request = api.DescribeProducersRequest(
            topics=[api.TopicRequest(name=name, partition_indexes=indexes) for name, indexes in partitions.items()]
        )
        for answered in broker.ask(request, node=node).topics:
            for each in answered.partitions:
                if each.error_code:
                    output.note(
                        f"penstock: {answered.name}-{each.partition_index}: {each.error_message or 'no answer'}"
                    )
                for producer in each.active_producers:
                    if producer.current_txn_start_offset >= 0:
                        yield _open(answered.name, each.partition_index, node, producer)


def _open(topic: str, partition: int, leader: int, producer: Any) -> Open:
    return Open(
        topic,
        partition,
        leader,
        producer.producer_id,
        producer.producer_epoch,
        producer.coordinator_epoch,
        producer.current_txn_start_offset,
        producer.last_timestamp,
    )


def _unknown_to_coordinators(broker: Broker, candidates: Sequence[Open]) -> list[Open]:
    """Returns the transactions that no coordinator will end.

    Either no coordinator knows the transaction's producer, or the coordinator's transaction does not include the
    partition.
    """
    from penstock.protocol.messages import api_66_list_transactions as api

    if not candidates:
        return []
    request = api.ListTransactionsRequest(producer_id_filters=sorted({each.producer_id for each in candidates}))
    ids = {
        listed.transactional_id
        for node in _nodes(broker)
        for listed in broker.ask(request, node=node).transaction_states
    }
    known = {
        (state.producer_id, topic.topic, index)
        for state, _ in (_describe(broker, ids) if ids else ())
        for topic in state.topics
        for index in topic.partitions
    }
    return [each for each in candidates if (each.producer_id, each.topic, each.partition) not in known]


def run_abort(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, failure, outcome

    where = f"{args.topic}-{args.partition}"
    with connect(args) as broker:
        (topic,) = broker.topics([args.topic])
        if topic.error_code:
            raise failure(args.topic, topic.error_code, None)
        topic.partitions = [each for each in topic.partitions if each.partition_index == args.partition]
        found = [each for each in _open_transactions(broker, [topic]) if each.start_offset == args.start_offset]
        if not found:
            raise Failure(
                f"{where} has no open transaction that starts at offset {args.start_offset}:  "
                f"`penstock txn hanging {args.topic}` shows the open ones",
                Exit.NOT_FOUND,
            )
        code = _write_abort(broker, found[0])
    row = {"topic": args.topic, "partition": args.partition, "producer_id": found[0].producer_id, "result": "aborted"}
    if code:
        return outcome(args.output, [], [], [(where, code, None)])
    return outcome(args.output, list(row), [row], [])


def _write_abort(broker: Broker, hanging: Open) -> int:
    from penstock.protocol.messages import api_27_write_txn_markers as api

    marker = api.WritableTxnMarker(
        producer_id=hanging.producer_id,
        producer_epoch=hanging.producer_epoch,
        transaction_result=False,
        topics=[api.WritableTxnMarkerTopic(name=hanging.topic, partition_indexes=[hanging.partition])],
        coordinator_epoch=max(hanging.coordinator_epoch, NO_COORDINATOR_EPOCH),
    )
    answer = broker.ask(api.WriteTxnMarkersRequest(markers=[marker]), node=hanging.leader)
    return int(answer.markers[0].topics[0].partitions[0].error_code)


def _now_ms() -> int:
    from penstock.node.clock import SystemClock

    return SystemClock().wall_ms()
