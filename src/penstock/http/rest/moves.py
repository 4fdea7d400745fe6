"""Moves replicas between nodes and between log directories, by plans that run as operations.

An operation that is cancelled starts no further moves. Moves that the cluster has begun continue: `/v1/reassignments`
and `/v1/nodes/N/moves` cancel them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.client.cluster_admin import ClusterAdmin
from penstock.client.cordons import set_cordoned
from penstock.client.directory_moves import DirectoryMoves, NodeMove, plan_rows, starting_point
from penstock.client.replica_moves import MovePlan, Planner, ReplicaMoves, plan_moves
from penstock.http.operations import OperationError
from penstock.http.rest.cluster import NODE
from penstock.http.rest.fields import Field, list_of
from penstock.http.rest.problems import Problem
from penstock.http.rest.routes import Call, Route
from penstock.metadata.directory_balance import DirectoryMove, balance, evacuate
from penstock.metadata.moves import PlanError, drain, rebalance

if TYPE_CHECKING:
    from penstock.client.client import AsyncClient
    from penstock.client.cluster_admin import Holdings
    from penstock.client.cluster_facts import Facts
    from penstock.http.operations import Operation
    from penstock.http.rest.service import Service

AT_ONCE = 10
KEPT_FREE_BYTES = 64 * 1024 * 1024
#: A cancelled operation leaves the moves that it has begun, so it leaves their throttle, too.
THROTTLE_STAYS = "The throttle stays until the moves have ended; an operation that is cancelled leaves it in place."


# --- between nodes


async def drain_nodes(service: Service, call: Call) -> Any:
    """Moves every replica off the given nodes. Meanwhile these nodes get no new replicas."""
    nodes = set(call.body["nodes"])
    facts, _ = await service.state()
    there = {node.node_id for node in facts.nodes}.union(*(part.replicas for part in facts.partitions.values()))
    if not nodes or not nodes <= there:
        raise Problem(404, f"The field 'nodes' can't be {sorted(nodes)}: the cluster has nodes {sorted(there)}.")

    def planner(placement: Any, racks: Any, sizes: Any) -> Any:
        return drain(placement, racks, nodes, sizes)

    # Only some topics leave the nodes: the nodes stay in use.
    close = [] if call.body.get("topics") else sorted(nodes)
    return await _begin(service, call, "drain", f"moves replicas off nodes {sorted(nodes)}", planner, close=close)


async def rebalance_cluster(service: Service, call: Call) -> Any:
    """Evens out replicas and leaders over all nodes; with `onto`, moves replicas only to these nodes."""
    onto = set(call.body.get("onto", ()))

    def planner(placement: Any, racks: Any, sizes: Any) -> Any:
        if not onto <= racks.keys():
            raise PlanError(f"The field 'onto' can't be {sorted(onto)}: the running brokers are {sorted(racks)}")
        return rebalance(placement, racks, sizes, onto=onto)

    about = f"moves a fair share of replicas to nodes {sorted(onto)}" if onto else "evens out replicas and leaders"
    return await _begin(service, call, "rebalance", about, planner, elect_all=not onto, reopen=sorted(onto))


async def _begin(
    service: Service,
    call: Call,
    kind: str,
    about: str,
    planner: Planner,
    *,
    elect_all: bool = False,
    close: Sequence[int] = (),
    reopen: Sequence[int] = (),
) -> Any:
    client = await service.client()
    going = await ClusterAdmin(client).reassignments()
    facts, _ = await service.state()
    topics = call.body.get("topics", ())
    for name in topics:
        service.topic(name)
    try:
        plan = await service.aside(partial(plan_moves, facts, going, planner, topics, elect_all=elect_all, close=close))
    except PlanError as error:
        raise Problem(409, f"{error}.") from error
    dry = call.body.get("dry_run", False)

    async def work(operation: Operation) -> None:
        shown = {
            "elections": len(plan.elected),
            "cordoned": plan.closing,
            "moves": await service.aside(plan.rows, facts),
        }
        operation.result.update(dry_run=dry, **shown)
        if not dry:
            reopened = sorted(set(reopen) & facts.cordoned)
            await _carry_out(operation, ReplicaMoves(client), call, plan, facts, reopened)

    return service.begin(kind, about, work, unit="partitions", total=len(plan.moves))


async def _carry_out(
    operation: Operation, moves: ReplicaMoves, call: Call, plan: MovePlan, facts: Facts, reopen: Sequence[int]
) -> None:
    for sentence in [*await moves.cordon(plan.closing, "*"), *await moves.cordon(reopen, None)]:
        operation.note(sentence)
    throttle = call.body.get("throttle_bytes_per_second")
    if throttle:
        await moves.throttle(throttle, plan.moves, [node.node_id for node in facts.nodes if not node.fenced])
        operation.note(THROTTLE_STAYS)
    async for ended in moves.carry_out(plan.moves, call.body.get("at_once", AT_ONCE)):
        operation.advance(ended)
    for sentence in await moves.elect(plan.elected):
        operation.note(sentence)
    if throttle:
        for sentence in await moves.unthrottle():
            operation.note(sentence)


# --- between log directories of one node


async def balance_directories(service: Service, call: Call) -> Any:
    def plan(holdings: Holdings) -> list[DirectoryMove]:
        return balance(*starting_point(holdings), call.body.get("keep_free_bytes", KEPT_FREE_BYTES))

    about = f"evens out the log directories of node {call.path['node']}"
    return await _begin_directories(service, call, "balance", about, plan)


async def evacuate_directory(service: Service, call: Call) -> Any:
    """Moves every replica out of a log directory. Meanwhile the directory gets no new replicas."""
    node, path = call.path["node"], posixpath.normpath(call.body["directory"])
    client = await service.client()
    directories = (await ClusterAdmin(client).holdings(node)).directories
    if path not in [each.path for each in directories]:
        known = ", ".join(each.path for each in directories)
        raise Problem(404, f"Node {node} has no log directory {path!r}: it has {known}.")

    def plan(holdings: Holdings) -> list[DirectoryMove]:
        return evacuate(path, *starting_point(holdings), call.body.get("keep_free_bytes", KEPT_FREE_BYTES))

    cordoned = sorted(each.path for each in directories if each.cordoned)
    cordon = None if path in cordoned else ",".join([*cordoned, path])
    about = f"moves all replicas out of {path} of node {node}"
    return await _begin_directories(service, call, "evacuate", about, plan, path=path, cordon=cordon)


async def _begin_directories(
    service: Service,
    call: Call,
    kind: str,
    about: str,
    plan: Callable[[Holdings], list[DirectoryMove]],
    *,
    path: str = "",
    cordon: str | None = None,
) -> Any:
    client, node = await service.client(), call.path["node"]
    cluster = ClusterAdmin(client)

    async def planned() -> list[NodeMove]:
        return [(node, move) for move in await service.aside(plan, await cluster.holdings(node))]

    try:
        moves = await planned()
    except PlanError as error:
        raise Problem(409, f"{error}.") from error
    dry = call.body.get("dry_run", False)

    async def work(operation: Operation) -> None:
        operation.result.update(dry_run=dry, moves=plan_rows(moves))
        if dry:
            return
        if cordon is not None:
            await _cordon(operation, client, node, cordon, path)
        left = moves
        while left:
            await _move(operation, DirectoryMoves(client), call, left)
            # The directory may have got replicas between the plan and the cordon.
            left = await planned() if path else []
            operation.total = operation.done + len(left)

    return service.begin(kind, about, work, unit="replicas", total=len(moves))


async def _cordon(operation: Operation, client: AsyncClient, node: int, directories: str, path: str) -> None:
    def reached(holdings: Holdings) -> bool:
        return any(each.path == path and each.cordoned for each in holdings.directories)

    problem = await set_cordoned(client, node, directories, reached)
    if problem is not None:
        operation.note(problem)


async def _move(operation: Operation, directories: DirectoryMoves, call: Call, moves: Sequence[NodeMove]) -> None:
    node, throttle = call.path["node"], call.body.get("throttle_bytes_per_second")
    failed = 0
    if throttle:
        await directories.throttle(throttle, [node])
        operation.note(THROTTLE_STAYS)
    async for _ in directories.wait([node]):  # moves that another operator began
        pass
    async for step in directories.carry_out(moves, call.body.get("at_once", AT_ONCE)):
        operation.advance(step.ended)
        failed += len(step.failures)
        for sentence in step.failures:
            operation.note(sentence)
    if throttle:
        for sentence in await directories.unthrottle([node]):
            operation.note(sentence)
    if failed:
        raise OperationError(f"{failed} replicas could not be moved: start the operation again when the cause is gone")


DRY = Field("boolean", "true makes the plan, which the operation shows, and moves nothing")
HOW = {
    "at_once": Field("integer", f"moves at the same time; default: {AT_ONCE}", low=1, high=1000),
    "throttle_bytes_per_second": Field("integer", "limit of each node; default: no limit", low=1),
    "dry_run": DRY,
}
TOPICS = list_of(Field("string"), "only these topics")
KEEP_FREE = Field("integer", "free space that the plan leaves in every directory; default: 64 MiB", low=0)
ROUTES = (
    Route(
        "POST",
        "/v1/cluster/drain",
        "Moves every replica off nodes, to take them out",
        drain_nodes,
        body={"nodes": list_of(Field("integer", low=0), required=True), "topics": TOPICS, **HOW},
        status=202,
        own_acls=True,
    ),
    Route(
        "POST",
        "/v1/cluster/rebalance",
        "Evens out replicas and leaders over all nodes, or moves a fair share to new nodes",
        rebalance_cluster,
        body={"onto": list_of(Field("integer", low=0), "only to these nodes"), "topics": TOPICS, **HOW},
        status=202,
        own_acls=True,
    ),
    Route(
        "POST",
        "/v1/nodes/{node}/balance",
        "Evens out the bytes of a node's log directories",
        balance_directories,
        path=NODE,
        body={"keep_free_bytes": KEEP_FREE, **HOW},
        status=202,
        own_acls=True,
    ),
    Route(
        "POST",
        "/v1/nodes/{node}/evacuate",
        "Moves all replicas out of a log directory, to take its disk out",
        evacuate_directory,
        path=NODE,
        body={"directory": Field("string", required=True), "keep_free_bytes": KEEP_FREE, **HOW},
        status=202,
        own_acls=True,
    ),
)
