"""Reports whether a node is alive and ready, with reasons, and whether the cluster is healthy. Changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.cluster_facts import health
from penstock.http.rest.fields import Field
from penstock.http.rest.problems import Problem
from penstock.http.rest.routes import Call, Route
from penstock.metadata.quarantine import quarantine_reason
from penstock.protocol.vocabulary import NO_NODE

if TYPE_CHECKING:
    from penstock.broker.broker import Broker
    from penstock.http.rest.service import Service


def reasons_not_alive(broker: Broker) -> list[str]:
    """Returns the reasons why the node can't recover without a restart; an empty list if it is alive."""
    directories = list(broker.logs.dirs)
    if directories and all(each.offline for each in directories):
        return ["all log directories have failed"]
    if broker.logs.dirs.metadata.failure is not None:
        return ["the directory of the metadata log has failed"]
    return []


def reasons_not_ready(broker: Broker) -> list[str]:
    """Returns the reasons why clients should use other nodes for now; an empty list if the node is ready."""
    reasons = reasons_not_alive(broker)
    if not broker.metadata.in_contact:
        reasons.append("this node hears from no leader of the quorum")
    known = broker.metadata.image.brokers.get(broker.node_id)
    if known is not None and known.fenced:
        quarantine = quarantine_reason(broker.metadata.image, broker.node_id)
        reasons.append("the controller has fenced this node" if quarantine is None else "this node is in quarantine")
    if known is not None and known.in_controlled_shutdown:
        reasons.append("this node is shutting down")
    return reasons


async def livez(service: Service, call: Call) -> Any:
    return _told("alive", reasons_not_alive(service.broker))


async def readyz(service: Service, call: Call) -> Any:
    return _told("ready", reasons_not_ready(service.broker))


def _told(word: str, reasons: list[str]) -> dict[str, Any]:
    if reasons:
        raise Problem(503, f"This node is not {word}: {', '.join(reasons)}.", reasons=reasons)
    return {"status": word}


async def cluster_health(service: Service, call: Call) -> Any:
    """Answers with the cluster's status (healthy, degraded or unhealthy), the counts that explain it, and the
    controller."""
    _, overview = await service.state()
    metadata = service.broker.metadata
    leader = metadata.quorum().leader_id if metadata.in_contact else NO_NODE
    return health(overview.summary, None if leader == NO_NODE else leader)


async def health_check(service: Service, call: Call) -> Any:
    """Answers 200 if the cluster is healthy, else 503. With the query `degraded`, a degraded cluster gets 200, too."""
    found = await cluster_health(service, call)
    accepted = ("healthy", "degraded") if call.query.get("degraded", False) else ("healthy",)
    if found["status"] not in accepted:
        raise Problem(503, f"The cluster is {found['status']}.", health=found)
    return found


ROUTES = (
    Route("GET", "/livez", "Tells whether this node can go on without a restart", livez, public=True),
    Route("GET", "/readyz", "Tells whether this node serves clients", readyz, public=True),
    Route("GET", "/v1/cluster/health", "Tells whether the cluster is healthy, degraded or unhealthy", cluster_health),
    Route(
        "GET",
        "/v1/cluster/health-check",
        "Answers 503 if the cluster is not healthy",
        health_check,
        query={"degraded": Field("boolean", "true accepts under-replicated partitions and fenced nodes, too")},
    ),
)
