"""Implements operations on the cluster: status, nodes, replication, quorum, elections, compaction, directories."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.client.cluster_admin import PREFERRED, UNCLEAN, ClusterAdmin
from penstock.client.cluster_facts import partition_rows, problem
from penstock.client.quarantine import release
from penstock.client.replica_moves import copied_share
from penstock.http.causes import NodeContext, causes, health, move_row
from penstock.http.node_metrics import version
from penstock.http.overview import ATTENTION_MAX, damaged_rows, failover_rows, pipeline_rows
from penstock.http.rate_history import RatePoint
from penstock.http.rest.fields import PARTITIONS, Field, list_of, object_of, partition_keys
from penstock.http.rest.problems import Problem
from penstock.http.rest.routes import Call, Route

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.client.cluster_facts import Facts
    from penstock.http.operations import Operation
    from penstock.http.rest.service import Service
    from penstock.protocol.errors import ErrorCode
    from penstock.protocol.vocabulary import TopicPartition

PAGE_MAX = 1000
PAGE = {
    "limit": Field("integer", f"rows of the answer, at most {PAGE_MAX}", low=1, high=PAGE_MAX),
    "start": Field("integer", "rows to leave out before the first", low=0),
}


def paged(rows: list[Any], call: Call, name: str) -> dict[str, Any]:
    """Returns one page of the rows, with the total number of rows."""
    start = call.query.get("start", 0)
    return {"total": len(rows), "start": start, name: rows[start : start + call.query.get("limit", 100)]}


def _failed_partitions(failed: Mapping[TopicPartition, ErrorCode]) -> dict[str, Any]:
    """Returns a response body that lists the partitions for which a change failed, with Kafka's error codes."""
    return {
        "failed": [
            {"topic": topic, "partition": index, "kafka_error": code.name}
            for (topic, index), code in sorted(failed.items())
        ]
    }


async def cluster_status(service: Service, call: Call) -> Any:
    facts, overview = await service.state()
    return {**overview.summary, "controller": facts.controller, "controller_epoch": facts.controller_epoch}


async def cluster_overview(service: Service, call: Call) -> Any:
    """Answers with everything that the first page of a console shows."""
    _, overview = await service.state()
    broker, context = service.broker, _context(service)
    return {
        **overview.summary,
        "seen_by": broker.node_id,
        "version": version(),
        "quorum": _quorum(broker),
        "brokers": overview.nodes,
        "topics_that_need_attention": overview.wrong_topics[:ATTENTION_MAX],
        "partitions_that_need_attention": overview.attention,
        "damaged_replicas_of_this_node": damaged_rows(broker),
        "failovers": failover_rows(broker),
        "health": health(overview.summary, context),
        "causes": list(causes(overview.nodes, context)),
        "directory_moves_of_this_node": [move_row(each) for each in broker.moves.figures()[:PAGE_MAX]],
        "history": rate_rows([*service.history.rates.of_all(), _rates_now(service, overview.summary)]),
    }


def _rates_now(service: Service, summary: Mapping[str, Any]) -> RatePoint:
    now_ms = service.broker.clock.wall_ms()
    return RatePoint(now_ms, summary["records_per_second"], summary["bytes_per_second"])


def rate_rows(points: Sequence[RatePoint]) -> list[dict[str, Any]]:
    return [
        {"at_ms": each.at_ms, "records_per_second": each.records, "bytes_per_second": each.bytes} for each in points
    ]


def _context(service: Service) -> NodeContext:
    broker = service.broker
    failed = {each.path: str(each.failure.strerror or each.failure) for each in broker.logs.dirs if each.failure}
    return NodeContext(
        broker.node_id,
        list(broker.controller.failovers),
        failed,
        damaged_rows(broker),
        list(broker.logs.dirs.free_space.short().values()),
        service.warnings,
    )


async def list_pipelines(service: Service, call: Call) -> Any:
    return {"pipelines": pipeline_rows(await service.pipelines())}


async def list_nodes(service: Service, call: Call) -> Any:
    _, overview = await service.state()
    return {"nodes": overview.nodes}


async def replication_status(service: Service, call: Call) -> Any:
    facts, _ = await service.state()
    return await asyncio.to_thread(_replication_page, facts, call)


def _replication_page(facts: Facts, call: Call) -> dict[str, Any]:
    wanted = facts.partitions
    if call.query.get("problems", False):
        wanted = {key: part for key, part in wanted.items() if problem(part) is not None}
    if call.query.get("not_preferred", False):
        wanted = {
            key: part for key, part in wanted.items() if part.leader >= 0 and part.leader not in part.replicas[:1]
        }
    page = paged(sorted(wanted), call, "partitions")
    return {**page, "partitions": partition_rows(facts, {key: wanted[key] for key in page["partitions"]})}


async def describe_quorum(service: Service, call: Call) -> Any:
    return _quorum(service.broker)


def _quorum(broker: Broker) -> dict[str, Any]:
    quorum = broker.metadata.quorum()
    return {
        "leader": quorum.leader_id,
        "epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "voters": [voter.node_id for voter in quorum.voters],
    }


async def force_election(service: Service, call: Call) -> Any:
    """Elects the preferred leaders of the given partitions. If none are given, the quorum's leader resigns."""
    partitions = call.body.get("partitions")
    if partitions is not None:
        kind = UNCLEAN if call.body.get("unclean", False) else PREFERRED
        admin = ClusterAdmin(await service.client())
        failed = await admin.elect_leaders(partition_keys(partitions), kind=kind)
        return _failed_partitions(failed)
    if call.body.get("unclean", False):
        raise Problem(400, "The field 'unclean' is allowed only with 'partitions': the quorum has no unclean election.")
    metadata = service.broker.metadata
    if not metadata.leading:
        leader = metadata.quorum().leader_id
        raise Problem(409, f"Node {leader} leads the quorum: send the request to that node.", leader=leader)
    epoch = metadata.quorum().leader_epoch
    metadata.step_down()
    service.note_change("RESIGN")
    return {"resigned": service.broker.node_id, "epoch": epoch}


async def compact_log(service: Service, call: Call) -> Any:
    """Compacts this node's replicas of the named topics, as an operation. Without topics, writes a metadata
    snapshot."""
    topics = call.body.get("topics")
    if topics is None:
        written = await service.broker.metadata.snapshot()
        service.note_change("SNAPSHOT")
        return {"snapshot": written}
    broker, cleaner = service.broker, service.cleaner
    if cleaner is None:
        raise Problem(409, "This node compacts no logs: set log.cleaner.enable=true.")
    for name in topics:
        service.topic(name)
    wanted = set(topics)
    logs = [each.log for each in broker.partitions if each.topic in wanted and each.is_open]
    refused = sorted({log.topic for log in logs if not log.config.compact})
    if refused:
        raise Problem(409, f"Topic {refused[0]!r} is not compacted: add compact to its cleanup.policy.")
    service.note_change("COMPACT")

    async def work(operation: Operation) -> None:
        operation.result["partitions"] = compacted = []
        for log in logs:
            result = await cleaner.clean_now(log)
            row: dict[str, Any] = {"topic": log.topic, "partition": log.partition}
            if result is not None:
                row |= {"records_read": result.records_read, "records_kept": result.records_kept}
            compacted.append(row)
            operation.advance()

    about = f"compacts the replicas of {', '.join(sorted(wanted))} on node {broker.node_id}"
    return service.begin("compaction", about, work, unit="replicas", total=len(logs))


async def list_directories(service: Service, call: Call) -> Any:
    admin = ClusterAdmin(await service.client())
    node = call.path["node"]
    holdings = await admin.holdings(node)
    counts: dict[str, int] = {}
    for replica in holdings.replicas.values():
        counts[replica.directory] = counts.get(replica.directory, 0) + 1
    return {
        "directories": [
            {
                "path": each.path,
                "error": each.error.name if each.error else None,
                "total_bytes": each.total_bytes,
                "usable_bytes": each.usable_bytes,
                "cordoned": each.cordoned,
                "replicas": counts.get(each.path, 0),
            }
            for each in holdings.directories
        ],
        "moves": [
            {"topic": topic, "partition": index, **asdict(future)}
            for (topic, index), future in sorted(holdings.futures.items())
        ],
    }


async def release_node(service: Service, call: Call) -> Any:
    """Releases a node from quarantine. In the answer, `released` is false if the node was not in quarantine."""
    node = call.path["node"]
    return {"node": node, "released": await release(await service.client(), node)}


async def move_replicas(service: Service, call: Call) -> Any:
    admin = ClusterAdmin(await service.client())
    wanted = {(each["topic"], each["partition"]): each["directory"] for each in call.body["replicas"]}
    failed = await admin.move_replicas(call.path["node"], wanted)
    return _failed_partitions(failed)


async def list_reassignments(service: Service, call: Call) -> Any:
    """Answers with the reassignments in progress, each with the progress of its slowest new replica."""
    found = await ClusterAdmin(await service.client()).reassignments()
    facts, _ = await service.state()
    page = paged(sorted(found), call, "reassignments")
    rows = []
    for key in page["reassignments"]:
        copied, lag = copied_share(facts, key, found[key].adding)
        rows.append({"topic": key[0], "partition": key[1], **asdict(found[key]), "copied_percent": copied, "lag": lag})
    return {**page, "reassignments": rows}


async def reassign(service: Service, call: Call) -> Any:
    wanted = {(each["topic"], each["partition"]): each.get("replicas") for each in call.body["partitions"]}
    await ClusterAdmin(await service.client()).reassign(wanted)
    return {"accepted": len(wanted)}


NODE = {"node": Field("integer", "node id", low=0)}
ROUTES = (
    Route("GET", "/v1/cluster/status", "Summarizes the cluster", cluster_status),
    Route("GET", "/v1/cluster/overview", "Summarizes nodes, problems and failovers", cluster_overview),
    Route("GET", "/v1/pipelines", "Lists the pipelines of this machine with rates and lag", list_pipelines),
    Route("GET", "/v1/cluster/nodes", "Lists the nodes with their leaders, replicas and lag", list_nodes),
    Route(
        "GET",
        "/v1/cluster/replication-status",
        "Lists partitions with leader, in-sync set and lag",
        replication_status,
        query={
            **PAGE,
            "problems": Field("boolean", "true lists only partitions with a problem"),
            "not_preferred": Field("boolean", "true lists only partitions that are not led by their first replica"),
        },
    ),
    Route("GET", "/v1/cluster/quorum", "Describes the metadata quorum as this node sees it", describe_quorum),
    Route(
        "POST",
        "/v1/cluster/force-election",
        "Makes the quorum's leader resign, or elects the preferred leaders of named partitions",
        force_election,
        body={"partitions": PARTITIONS, "unclean": Field("boolean", "true lets a replica out of sync lead")},
    ),
    Route(
        "POST",
        "/v1/cluster/compact-log",
        "Writes a metadata snapshot on this node now, or compacts this node's replicas of named topics now",
        compact_log,
        body={"topics": list_of(Field("string"), "compacted topics; default: the metadata log")},
    ),
    Route(
        "GET", "/v1/nodes/{node}/directories", "Lists a node's log directories and moves", list_directories, path=NODE
    ),
    Route("POST", "/v1/nodes/{node}/release", "Releases a node from quarantine", release_node, path=NODE, body={}),
    Route(
        "POST",
        "/v1/nodes/{node}/moves",
        "Starts to move replicas between log directories of a node; the current directory cancels a move",
        move_replicas,
        path=NODE,
        body={
            "replicas": list_of(
                object_of(
                    {
                        "topic": Field("string", required=True),
                        "partition": Field("integer", required=True, low=0),
                        "directory": Field("string", required=True),
                    }
                ),
                required=True,
            )
        },
        status=202,
    ),
    Route("GET", "/v1/reassignments", "Lists the reassignments in progress", list_reassignments, query=PAGE),
    Route(
        "POST",
        "/v1/reassignments",
        "Starts reassignments; a partition without replicas cancels its reassignment",
        reassign,
        body={
            "partitions": list_of(
                object_of(
                    {
                        "topic": Field("string", required=True),
                        "partition": Field("integer", required=True, low=0),
                        "replicas": list_of(Field("integer", low=0), "new replicas, the preferred leader first"),
                    }
                ),
                required=True,
            )
        },
        status=202,
    ),
)
