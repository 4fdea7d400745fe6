"""`penstock topic` creates, lists, describes, alters and deletes topics, with requests that any Kafka broker serves;
`penstock topic compact` needs the REST API of a Penstock node."""

from __future__ import annotations

import argparse
import fnmatch
from typing import Any

from penstock.cli import output, topic_compact, topic_trim
from penstock.cli.exit import Exit, Failure
from penstock.cli.options import connection, pairs, positive_int16, positive_int32, verb
from penstock.cli.rest import rest_options
from penstock.protocol.vocabulary import EARLIEST, LATEST, ConfigOperation, ResourceType

OWN_CONFIG = 1  # DescribeConfigs' source of a value that was set on the topic itself


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    create = verb(verbs, "create", "create topics", run_create)
    connection(create)
    create.add_argument("names", nargs="+", metavar="NAME")
    create.add_argument(
        "-p", "--partitions", type=positive_int32, default=-1, help="default: the broker's num.partitions"
    )
    create.add_argument("-r", "--replication-factor", type=positive_int16, default=-1, help="default: the broker's")
    create.add_argument(
        "--assignment", metavar="0:1,1:0", help="brokers of each partition instead: 0:1 is a leader and a follower"
    )
    create.add_argument("-c", "--config", action="append", default=[], metavar="NAME=VALUE", help="a topic config")
    create.add_argument("--if-not-exists", action="store_true", help="leave topics that exist as they are")
    create.add_argument("--dry-run", action="store_true", help="only check whether it could be done")

    listing = verb(verbs, "list", "list topics", run_list)
    connection(listing)
    listing.add_argument("pattern", nargs="?", default="*", help="names to list, with * and ? (default: all)")
    listing.add_argument("--internal", action="store_true", help="internal topics too")

    describe = verb(verbs, "describe", "show partitions, leaders, replicas, offsets and configs", run_describe)
    connection(describe)
    describe.add_argument("names", nargs="*", metavar="NAME", help="default: all topics that are not internal")

    alter = verb(verbs, "alter", "add partitions, set and unset configs", run_alter)
    connection(alter)
    alter.add_argument("name", metavar="NAME")
    alter.add_argument("-p", "--partitions", type=positive_int32, help="the new count; it can only grow")
    alter.add_argument("-c", "--config", action="append", default=[], metavar="NAME=VALUE", help="set a topic config")
    alter.add_argument("--unset", action="append", default=[], metavar="NAME", help="go back to a config's default")
    alter.add_argument("--dry-run", action="store_true", help="only check whether it could be done")

    trim = verb(verbs, "trim", "delete the oldest records of a topic", topic_trim.run_trim)
    connection(trim)
    trim.add_argument("topic", metavar="NAME")
    trim.add_argument("--partition", type=int, action="append", default=[], help="repeatable; default: all")
    trim.add_argument("--before", type=int, required=True, metavar="OFFSET", help="first record to keep; -1 keeps none")
    how = trim.add_mutually_exclusive_group()
    how.add_argument("-y", "--yes", action="store_true", help="don't ask after showing what is deleted")
    how.add_argument("-n", "--dry-run", action="store_true", help="only show what would be deleted")

    compact = verb(verbs, "compact", "compact a node's replicas of topics now", topic_compact.run_compact)
    rest_options(compact)
    compact.add_argument("names", nargs="+", metavar="NAME", help="topics with compact in their cleanup.policy")

    delete = verb(verbs, "delete", "delete topics and their records", run_delete)
    connection(delete)
    delete.add_argument("names", nargs="+", metavar="NAME")
    delete.add_argument("--if-exists", action="store_true", help="ignore topics that do not exist")


# --- create, delete, alter ----------------------------------------------------------------------------------------


def run_create(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome, with_near_configs
    from penstock.protocol.errors import ErrorCode
    from penstock.protocol.messages import api_19_create_topics as api

    assignments = _assignments(args.assignment) if args.assignment else []
    if assignments and (args.partitions > 0 or args.replication_factor > 0):
        raise Failure(
            "--assignment already sets partitions and replicas: leave --partitions and --replication-factor out",
            Exit.USAGE,
        )
    configs = [api.CreatableTopicConfig(name=n, value=v) for n, v in pairs(args.config, "--config").items()]
    wanted = [
        api.CreatableTopic(
            name=name,
            num_partitions=args.partitions,
            replication_factor=args.replication_factor,
            assignments=[
                api.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
                for index, brokers in enumerate(assignments)
            ],
            configs=configs,
        )
        for name in args.names
    ]
    request = api.CreateTopicsRequest(topics=wanted, timeout_ms=int(args.timeout * 1000), validate_only=args.dry_run)
    with connect(args) as broker:
        answer: api.CreateTopicsResponse = broker.ask(request)
    done = "would be created" if args.dry_run else "created"
    rows, failures = [], []
    for topic in answer.topics:
        exists = topic.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and args.if_not_exists
        if topic.error_code and not exists:
            message = with_near_configs(topic.error_message, (each.name for each in configs))
            failures.append((topic.name, topic.error_code, message))
            continue
        partitions = topic.num_partitions if topic.num_partitions > 0 else None
        factor = topic.replication_factor if topic.replication_factor > 0 else None
        result = "exists" if exists else done
        rows.append({"topic": topic.name, "result": result, "partitions": partitions, "replication_factor": factor})
    return outcome(args.output, ["topic", "result", "partitions", "replication_factor"], rows, failures)


def _assignments(text: str) -> list[list[int]]:
    try:
        return [[int(broker) for broker in partition.split(":")] for partition in text.split(",")]
    except ValueError:
        raise Failure(f"--assignment takes broker ids such as 0:1,1:0, not {text!r}", Exit.USAGE) from None


def run_delete(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome
    from penstock.protocol.errors import ErrorCode
    from penstock.protocol.messages import api_20_delete_topics as api

    request = api.DeleteTopicsRequest(
        topics=[api.DeleteTopicState(name=name) for name in args.names],
        topic_names=list(args.names),
        timeout_ms=int(args.timeout * 1000),
    )
    with connect(args) as broker:
        answer: api.DeleteTopicsResponse = broker.ask(request)
    rows, failures = [], []
    for topic in answer.responses:
        missing = topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and args.if_exists
        if topic.error_code and not missing:
            failures.append((topic.name or "?", topic.error_code, topic.error_message))
        else:
            rows.append({"topic": topic.name, "result": "not there" if missing else "deleted"})
    return outcome(args.output, ["topic", "result"], rows, failures)


def run_alter(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect, outcome
    from penstock.protocol.messages import api_37_create_partitions as grow
    from penstock.protocol.messages import api_44_incremental_alter_configs as change

    changes = [
        change.AlterableConfig(name=n, config_operation=ConfigOperation.SET, value=v)
        for n, v in pairs(args.config, "--config").items()
    ]
    changes += [
        change.AlterableConfig(name=name, config_operation=ConfigOperation.DELETE, value=None) for name in args.unset
    ]
    if not changes and args.partitions is None:
        raise Failure("nothing to alter: give --partitions, --config or --unset", Exit.USAGE)
    rows, failures = [], []
    with connect(args) as broker:
        if args.partitions is not None:
            topic = grow.CreatePartitionsTopic(name=args.name, count=args.partitions, assignments=None)
            asked = grow.CreatePartitionsRequest(
                topics=[topic], timeout_ms=int(args.timeout * 1000), validate_only=args.dry_run
            )
            for grown in broker.ask(asked).results:
                rows.append({"topic": grown.name, "change": f"partitions={args.partitions}", "code": grown.error_code})
                failures += [(grown.name, grown.error_code, grown.error_message)] if grown.error_code else []
        if changes and not failures:
            resource = change.AlterConfigsResource(
                resource_type=ResourceType.TOPIC, resource_name=args.name, configs=changes
            )
            asked_too = change.IncrementalAlterConfigsRequest(resources=[resource], validate_only=args.dry_run)
            for changed in broker.ask(asked_too).responses:
                said = ", ".join(f"{c.name}={c.value}" if c.value is not None else f"{c.name} unset" for c in changes)
                rows.append({"topic": changed.resource_name, "change": said, "code": changed.error_code})
                failures += [(args.name, changed.error_code, changed.error_message)] if changed.error_code else []
    result = "could be" if args.dry_run else "done"
    shown = [{"topic": row["topic"], "change": row["change"], "result": result} for row in rows if not row["code"]]
    return outcome(args.output, ["topic", "change", "result"], shown, failures)


# --- list, describe -----------------------------------------------------------------------------------------------


def run_list(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect
    from penstock.protocol.uuid import uuid_to_str

    with connect(args) as broker:
        topics = broker.topics()
    found = [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replication_factor": max((len(p.replica_nodes) for p in topic.partitions), default=0),
            "internal": topic.is_internal,
            "topic_id": uuid_to_str(topic.topic_id),
        }
        for topic in topics
        if (args.internal or not topic.is_internal) and fnmatch.fnmatchcase(topic.name or "", args.pattern)
    ]
    output.rows(args.output, ["topic", "partitions", "replication_factor"], found, empty="no topics")
    return Exit.OK


def run_describe(args: argparse.Namespace) -> int:
    from penstock.cli.connect import connect

    with connect(args) as broker:
        topics: dict[str, Any] = {}
        for topic in broker.existing(args.names or None):
            if topic.name is not None and (args.names or not topic.is_internal):
                topics[topic.name] = topic
        led = [
            (name, part.partition_index)
            for name, topic in topics.items()
            for part in topic.partitions
            if part.leader_id >= 0  # only the leader knows the offsets
        ]
        bounds = broker.offsets(led, EARLIEST), broker.offsets(led, LATEST)
        described = [
            _described(topic, bounds, broker.configs(ResourceType.TOPIC, name)) for name, topic in topics.items()
        ]
    if args.output == "json":
        output.rows("json", [], described)
        return Exit.OK
    columns = ["partition", "leader", "leader_epoch", "replicas", "isr", "start_offset", "end_offset"]
    for shown in described:
        print(f"{output.cell(shown['topic'])}  id {shown['topic_id']}  configs {output.cell(shown['configs'])}")
        output.rows("table", columns, shown["partitions"])
    if not described:
        output.note("no topics")
    return Exit.OK


def _described(topic: Any, bounds: tuple[Any, Any], configs: list[Any]) -> dict[str, Any]:
    from penstock.protocol.uuid import uuid_to_str

    starts, ends = bounds
    return {
        "topic": topic.name,
        "topic_id": uuid_to_str(topic.topic_id),
        "internal": topic.is_internal,
        "configs": {config.name: config.value for config in configs if config.config_source == OWN_CONFIG},
        "partitions": [
            {
                "partition": part.partition_index,
                "leader": part.leader_id if part.leader_id >= 0 else None,
                "leader_epoch": part.leader_epoch,
                "replicas": part.replica_nodes,
                "isr": part.isr_nodes,
                "offline": part.offline_replicas,
                "start_offset": starts.get((topic.name, part.partition_index)),
                "end_offset": ends.get((topic.name, part.partition_index)),
            }
            for part in sorted(topic.partitions, key=lambda part: int(part.partition_index))
        ],
    }
