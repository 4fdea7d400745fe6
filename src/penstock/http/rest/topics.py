"""Implements operations on topics and configs: list, describe, create, delete, add partitions, trim, change configs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.client.admin import Admin, NewTopic
from penstock.client.cluster_facts import PartitionFacts
from penstock.http.overview import PARTITIONS_MAX, Row, one_topic
from penstock.http.rest.cluster import PAGE, paged, rate_rows
from penstock.http.rest.fields import Field, list_of, object_of
from penstock.http.rest.problems import Problem
from penstock.http.rest.routes import Call, Route
from penstock.http.roles import Role
from penstock.net.yielding import yield_between_slices
from penstock.protocol.vocabulary import ConfigOperation, ResourceType

if TYPE_CHECKING:
    from penstock.http.rest.service import Service

#: Resources with configs, by their name in the path.
RESOURCES = {"topics": ResourceType.TOPIC, "brokers": ResourceType.BROKER, "groups": ResourceType.GROUP}


def _largest_first(name: str) -> Callable[[Row], Any]:
    return lambda row: (-(row[name] if row[name] is not None else -1), row["topic"])


#: Orders of the list of topics. Numbers come with the largest first; unknown numbers are last.
SORTS: dict[str, Callable[[Row], Any]] = {
    "topic": lambda row: (row["internal"], row["topic"]),
    **{name: _largest_first(name) for name in ("partitions", "records_per_second", "bytes", "problems", "end_offset")},
}


async def list_topics(service: Service, call: Call) -> Any:
    _, overview = await service.state()
    text, internal, visible = call.query.get("search", ""), call.query.get("internal", True), service.visible_topics()
    rows = []
    for number, row in enumerate(overview.topics):
        await yield_between_slices(number)
        if text in row["topic"] and (internal or not row["internal"]) and visible(row["topic"]):
            rows.append(row)
    sort = SORTS[call.query.get("sort", "topic")]
    return paged(await asyncio.to_thread(sorted, rows, key=sort), call, "topics")


async def describe_topic(service: Service, call: Call) -> Any:
    """Answers with leader, in-sync set and lag of the topic's partitions.

    The partitions come from this node's metadata, because a topic may be newer than the cached facts.
    """
    name = call.path["topic"]
    topic = service.topic(name)
    facts, _ = await service.state()
    known = {
        (name, index): facts.partitions.get((name, index))
        or PartitionFacts(part.leader, part.leader_epoch, part.replicas, part.isr)
        for index, part in topic.partitions.items()
    }
    if not known.keys() <= facts.partitions.keys():
        facts = replace(facts, partitions={**facts.partitions, **known})
    start, limit = call.query.get("start", 0), call.query.get("limit", PARTITIONS_MAX)
    described = await asyncio.to_thread(one_topic, facts, name, known, start, limit)
    return {**described, "rate_history": rate_rows(service.history.rates.of_topic(name))}


async def create_topic(service: Service, call: Call) -> Any:
    body = call.body
    wanted = NewTopic(
        body["name"],
        body.get("partitions", -1),
        body.get("replication_factor", -1),
        configs=body.get("configs"),
    )
    dry = body.get("validate_only", False)
    await Admin(await service.client()).create_topics([wanted], validate_only=dry)
    if not dry:
        await service.caught_up(lambda image: body["name"] in image.topics)
    return {"topic": body["name"], "created": not dry}


async def delete_topic(service: Service, call: Call) -> Any:
    name = call.path["topic"]
    await Admin(await service.client()).delete_topics([name])
    await service.caught_up(lambda image: name not in image.topics)
    return {"deleted": name}


async def add_partitions(service: Service, call: Call) -> Any:
    dry = call.body.get("validate_only", False)
    name, total = call.path["topic"], call.body["total"]
    await Admin(await service.client()).create_partitions(name, total, validate_only=dry)
    if not dry:
        await service.caught_up(lambda image: name not in image.topics or len(image.topics[name].partitions) >= total)
    return {"topic": name, "partitions": total, "changed": not dry}


async def trim_topic(service: Service, call: Call) -> Any:
    before = {(call.path["topic"], each["partition"]): each["before"] for each in call.body["partitions"]}
    for topic, index in before:
        service.partition(topic, index)
    starts = await Admin(await service.client()).delete_records(before)
    return {"starts": [{"partition": index, "start_offset": offset} for (_, index), offset in sorted(starts.items())]}


def _resource(call: Call) -> tuple[int, str]:
    kind = RESOURCES.get(call.path["resource"])
    if kind is None:
        raise Problem(404, f"{call.path['resource']!r} have no configs: use one of {', '.join(RESOURCES)}.")
    name = call.path["name"]
    if kind is ResourceType.BROKER and not (name.isascii() and name.isdecimal() and len(name) <= 10):
        raise Problem(400, f"The broker's name can't be {name[:40]!r}: give its node id.")
    return kind, name


async def describe_configs(service: Service, call: Call) -> Any:
    kind, name = _resource(call)
    found = await Admin(await service.client()).describe_configs(kind, name, documentation=True)
    return {
        "configs": [
            {
                "name": each.name,
                "value": None if each.is_sensitive else each.value,
                "sensitive": each.is_sensitive,
                "read_only": each.read_only,
                "source": each.config_source,
                "documentation": each.documentation,
            }
            for each in found
        ]
    }


async def change_configs(service: Service, call: Call) -> Any:
    kind, name = _resource(call)
    if kind is ResourceType.BROKER:
        service.require(Role.ADMIN)
    changes = [(key, int(ConfigOperation.SET), value) for key, value in call.body.get("set", {}).items()]
    changes += [(key, int(ConfigOperation.DELETE), None) for key in call.body.get("unset", [])]
    if not changes:
        raise Problem(400, "There is nothing to change: give the field 'set' or the field 'unset'.")
    dry = call.body.get("validate_only", False)
    await Admin(await service.client()).alter_configs(kind, name, changes, validate_only=dry)
    return {"changed": not dry}


TOPIC = {"topic": Field("string", "name of the topic")}
RESOURCE = {"resource": Field("string", "topics, brokers or groups"), "name": Field("string", "name of the resource")}
DRY = Field("boolean", "true checks the change and makes none")
ROUTES = (
    Route(
        "GET",
        "/v1/topics",
        "Lists topics with sizes and rates",
        list_topics,
        query={
            **PAGE,
            "search": Field("string", "only topics with this text in their name"),
            "internal": Field("boolean", "false leaves internal topics out"),
            "sort": Field("string", "order of the topics; default: topic", choices=tuple(SORTS)),
        },
        own_acls=True,
    ),
    Route(
        "POST",
        "/v1/topics",
        "Creates a topic",
        create_topic,
        body={
            "name": Field("string", required=True),
            "partitions": Field("integer", "default: num.partitions", low=1, high=10_000),
            "replication_factor": Field("integer", "default: default.replication.factor", low=1, high=32_767),
            "configs": Field("object", "configs by name"),
            "validate_only": DRY,
        },
        status=201,
        own_acls=True,
    ),
    Route(
        "GET",
        "/v1/topics/{topic}",
        "Describes a topic and its partitions",
        describe_topic,
        path=TOPIC,
        query=PAGE,
        own_acls=True,
    ),
    Route("DELETE", "/v1/topics/{topic}", "Deletes a topic and its records", delete_topic, path=TOPIC, own_acls=True),
    Route(
        "POST",
        "/v1/topics/{topic}/partitions",
        "Adds partitions to a topic",
        add_partitions,
        path=TOPIC,
        body={"total": Field("integer", required=True, low=1, high=10_000), "validate_only": DRY},
        own_acls=True,
    ),
    Route(
        "POST",
        "/v1/topics/{topic}/trim",
        "Deletes the records before given offsets; -1 deletes all records",
        trim_topic,
        path=TOPIC,
        body={
            "partitions": list_of(
                object_of(
                    {
                        "partition": Field("integer", required=True, low=0),
                        "before": Field("integer", required=True, low=-1),
                    }
                ),
                required=True,
            )
        },
        own_acls=True,
    ),
    Route(
        "GET",
        "/v1/configs/{resource}/{name}",
        "Lists the configs of a resource",
        describe_configs,
        path=RESOURCE,
        own_acls=True,
    ),
    Route(
        "PATCH",
        "/v1/configs/{resource}/{name}",
        "Sets configs, or returns them to their defaults",
        change_configs,
        path=RESOURCE,
        body={
            "set": Field("object", "new values by name"),
            "unset": list_of(Field("string"), "names of configs that get their default again"),
            "validate_only": DRY,
        },
        own_acls=True,
    ),
)
