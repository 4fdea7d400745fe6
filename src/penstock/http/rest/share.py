"""Implements operations on share groups: list, describe, reset offsets, and release, archive or drain records in
flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.share.share_rows import share_rows
from penstock.client.group_admin import GroupAdmin
from penstock.client.share_admin import SHARE, Refusal, ShareAdmin, in_flight, is_idle, members_of, offset_rows
from penstock.http.rest.cluster import PAGE, paged
from penstock.http.rest.fields import Field, list_of
from penstock.http.rest.groups import RESET_MAX, member_page, partitions_of_topics, reset_rows, reset_targets
from penstock.http.rest.problems import Problem
from penstock.http.rest.routes import Call, Route
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import Acknowledge

if TYPE_CHECKING:
    from penstock.http.operations import Operation
    from penstock.http.rest.service import Service

CHANGES = {"release": Acknowledge.RELEASE, "archive": Acknowledge.REJECT}
TARGETS = ("earliest", "latest", "offset")


async def list_share_groups(service: Service, call: Call) -> Any:
    text = call.query.get("search", "")
    rows = await GroupAdmin(await service.client()).list(types=[SHARE])
    return paged([row for row in rows if text in row["group"]], call, "groups")


async def describe_share_group(service: Service, call: Call) -> Any:
    admin, group = ShareAdmin(await service.client()), call.path["group"]
    described = await admin.describe(group)
    rows = offset_rows(await admin.offsets(group))
    return {
        "group": group,
        "state": described.group_state,
        **member_page(len(described.members), members_of(described)),
        "lag": sum(row["lag"] or 0 for row in rows),
        **paged(rows, call, "partitions"),
    }


async def list_windows(service: Service, call: Call) -> Any:
    """Answers with the records in flight in each partition of a share group, and with the range of their offsets."""
    topics = [call.query["topic"]] if "topic" in call.query else []
    admin, group = ShareAdmin(await service.client()), call.path["group"]
    page = paged(await admin.partitions(group, topics), call, "windows")
    return {**page, "windows": await admin.windows_of(group, page["windows"])}


async def list_own_windows(service: Service, call: Call) -> Any:
    broker = service.broker
    return {"node": broker.node_id, "windows": share_rows(broker.share_partitions, broker.metadata.image)}


async def reset_share_offsets(service: Service, call: Call) -> Any:
    given = [name for name in TARGETS if call.body.get(name, False) is not False]
    if len(given) != 1:
        raise Problem(400, f"Give exactly one of the fields {', '.join(TARGETS)}.")
    client, group = await service.client(), call.path["group"]
    admin = ShareAdmin(client)
    before = {(topic, part.partition_index): part.start_offset for topic, part in await admin.offsets(group)}
    topics = call.body.get("topics")
    wanted = sorted(before) if topics is None else partitions_of_topics(service, topics)
    if not wanted:
        raise Problem(404, f"Share group {group!r} has no offsets: name topics in the field 'topics'.")
    if len(wanted) > RESET_MAX:
        raise Problem(400, f"A reset of {len(wanted)} partitions is too large (limit: {RESET_MAX}): name fewer topics.")
    target = await reset_targets(GroupAdmin(client), given[0], call.body[given[0]], wanted, before)
    dry = call.body.get("dry_run", False)
    refusals = [] if dry else await admin.alter_offsets(group, target)
    refused = {each.what: each for each in refusals}
    if group in refused:
        raise _refused(refused[group])
    errors = {
        (topic, index): ErrorCode(refused[f"{topic}-{index}"].code).name
        for topic, index in (target if refused else ())
        if f"{topic}-{index}" in refused
    }
    return {"dry_run": dry, "partitions": await reset_rows(before, target, errors)}


def _refused(refusal: Refusal) -> KafkaError:
    code = ErrorCode(refusal.code)
    return KafkaError(code, f"{refusal.what}: {refusal.message or code.name}")


async def delete_share_group(service: Service, call: Call) -> Any:
    client, group = await service.client(), call.path["group"]
    await ShareAdmin(client).describe(group)
    await GroupAdmin(client).delete(group)
    return {"deleted": group}


async def delete_share_offsets(service: Service, call: Call) -> Any:
    group, topic = call.path["group"], call.path["topic"]
    for refusal in await ShareAdmin(await service.client()).delete_offsets(group, [topic]):
        raise _refused(refusal)
    return {"group": group, "deleted": topic}


async def change_records(service: Service, call: Call) -> Any:
    """Releases or archives the records in flight with offsets `first` to `last` of one partition."""
    kind = CHANGES.get(call.body["change"])
    if kind is None:
        raise Problem(400, f"The field 'change' can't be {call.body['change'][:40]!r}: give {' or '.join(CHANGES)}.")
    first, last = call.body["first"], call.body.get("last", call.body["first"])
    if last < first:
        raise Problem(400, f"The field 'last' can't be {last}: give {first} or more.")
    place = (call.body["topic"], call.body["partition"])
    refusal = await ShareAdmin(await service.client()).change(call.path["group"], place, first, last, kind)
    if refusal is not None:
        raise _refused(refusal)
    return {"topic": place[0], "partition": place[1], "first": first, "last": last, "change": call.body["change"]}


async def drain_share_group(service: Service, call: Call) -> Any:
    """Starts an operation that archives all records in flight of a share group whose members are running."""
    client, group = await service.client(), call.path["group"]
    admin = ShareAdmin(client)
    found = await admin.windows(group, call.body.get("topics", ()))
    if is_idle(found):
        raise Problem(
            409,
            f"There is nothing to drain: no member of {group!r} fetches records, so no record is in flight. To skip "
            "records, reset the group's offsets to latest.",
        )
    windows = [each for each in found if in_flight(each)]
    dry = call.body.get("dry_run", False)

    async def work(operation: Operation) -> None:
        archived: list[dict[str, Any]] = []
        operation.result.update(dry_run=dry, partitions=archived)
        if dry:
            archived += map(_row, windows)
            return
        async for window, refusal in admin.drain(group, windows):
            if refusal is not None:
                operation.note(str(_refused(refusal)))
            else:
                archived.append(_row(window))
            operation.advance()

    about = f"archives the records in flight of share group {group}"
    return service.begin("share.drain", about, work, unit="partitions", total=len(windows))


def _row(window: dict[str, Any]) -> dict[str, Any]:
    return {"topic": window["topic"], "partition": window["partition"], "records": in_flight(window)}


GROUP = {"group": Field("string", "id of the share group; write a slash as %2F")}
TOPICS = list_of(Field("string"), "default: all topics with offsets")
ROUTES = (
    Route(
        "GET",
        "/v1/share-groups",
        "Lists share groups",
        list_share_groups,
        query={**PAGE, "search": Field("string", "only groups with this text in their id")},
        own_acls=True,
    ),
    Route(
        "GET",
        "/v1/share-groups/{group}",
        "Describes a share group with members, and one page of its start offsets and lags",
        describe_share_group,
        path=GROUP,
        query=PAGE,
        own_acls=True,
    ),
    Route(
        "GET",
        "/v1/share-groups/{group}/windows",
        "Shows the window of each partition, with the records in flight and the members that hold them",
        list_windows,
        path=GROUP,
        query={**PAGE, "topic": Field("string", "only this topic")},
        own_acls=True,
    ),
    Route(
        "GET",
        "/v1/share-windows",
        "Shows the windows of all share groups in partitions that this node leads",
        list_own_windows,
    ),
    Route(
        "POST",
        "/v1/share-groups/{group}/reset-offsets",
        "Moves the start offsets of a share group without members",
        reset_share_offsets,
        path=GROUP,
        body={
            "topics": TOPICS,
            "earliest": Field("boolean", "true: to the first record"),
            "latest": Field("boolean", "true: to the end"),
            "offset": Field("integer", "to this offset", low=0),
            "dry_run": Field("boolean", "true answers with the new offsets and changes nothing"),
        },
        own_acls=True,
    ),
    Route(
        "POST",
        "/v1/share-groups/{group}/records",
        "Releases or archives records in flight",
        change_records,
        path=GROUP,
        body={
            "topic": Field("string", required=True),
            "partition": Field("integer", required=True, low=0, high=2**31 - 1),
            "first": Field("integer", "first offset", required=True, low=0),
            "last": Field("integer", "last offset; default: the first", low=0),
            "change": Field("string", "release or archive", required=True),
        },
        own_acls=True,
    ),
    Route(
        "POST",
        "/v1/share-groups/{group}/drain",
        "Archives all records in flight of a running share group",
        drain_share_group,
        path=GROUP,
        body={"topics": TOPICS, "dry_run": Field("boolean", "true shows what would be archived")},
        status=202,
        own_acls=True,
    ),
    Route(
        "DELETE",
        "/v1/share-groups/{group}",
        "Deletes a share group without members",
        delete_share_group,
        path=GROUP,
        own_acls=True,
    ),
    Route(
        "DELETE",
        "/v1/share-groups/{group}/offsets/{topic}",
        "Deletes the offsets of a share group in one topic",
        delete_share_offsets,
        path={**GROUP, "topic": Field("string", "name of the topic")},
        own_acls=True,
    ),
)
