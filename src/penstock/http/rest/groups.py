"""Implements operations on groups: list, describe with members and lag, reset offsets (or only show the new offsets, in
a dry run), and delete.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.client.group_admin import GroupAdmin, Offsets, lag_of, lag_rows, partitions_of_group
from penstock.client.group_members import partition_names
from penstock.http.rest.cluster import PAGE, paged
from penstock.http.rest.fields import Field, list_of
from penstock.http.rest.problems import Problem
from penstock.http.rest.routes import Call, Route
from penstock.net.yielding import yield_between_slices
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import EARLIEST, LATEST, TopicPartition

if TYPE_CHECKING:
    from penstock.http.rest.service import Service

#: Partitions of one reset.
RESET_MAX = 5_000
#: Members of an answer, and names of partitions of all its members.
MEMBERS_MAX, MEMBER_PARTITIONS_MAX = 1_000, 10_000
TARGETS = ("earliest", "latest", "timestamp_ms", "offset", "shift")


async def list_groups(service: Service, call: Call) -> Any:
    admin = GroupAdmin(await service.client())
    types = [call.query["type"]] if "type" in call.query else []
    text = call.query.get("search", "")
    return paged([row for row in await admin.list(types=types) if text in row["group"]], call, "groups")


async def describe_group(service: Service, call: Call) -> Any:
    async with service.describing:
        return await _description(service, call)


async def _description(service: Service, call: Call) -> dict[str, Any]:
    admin, group = GroupAdmin(await service.client()), call.path["group"]
    try:
        described = await admin.describe(group)
    except KafkaError as error:
        kinds = [row["type"] for row in await admin.list() if row["group"] == group]
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND or not kinds:
            raise
        raise Problem(
            409, f"{group!r} is a group of type {kinds[0]}, which this route can't describe: use /v1/share-groups."
        ) from error
    offsets = await admin.committed(group)
    partitions = await partitions_of_group(described, offsets)
    ends = await admin.offsets_at(partitions, LATEST)
    text, lags, found = call.query.get("search", ""), Counter[str](), []
    for number, partition in enumerate(partitions):
        await yield_between_slices(number)
        lag = lag_of(partition, offsets, ends)
        if lag is not None:  # of a topic that the caller may not describe, no offset is known
            lags[partition[0]] += lag
        if text in partition[0]:
            found.append(partition)
    page = paged(found, call, "partitions")
    return {
        "group": group,
        "state": described.state,
        **member_page(len(described.members), ((owner._asdict(), of) for owner, of in described.members.items())),
        "truncated": described.truncated,
        "lag": lags.total(),
        "lag_history": _lag_history(service, group, lags),
        **page,
        "partitions": lag_rows(page["partitions"], described, offsets, ends),
    }


def member_page(count: int, members: Iterable[tuple[Mapping[str, Any], Sequence[TopicPartition]]]) -> dict[str, Any]:
    """Returns the number of members, and a row for each of the first MEMBERS_MAX members.

    Each row has the number of the member's partitions, and their names while the response has room for more names.
    """
    room, rows = MEMBER_PARTITIONS_MAX, []
    for row, partitions in islice(members, MEMBERS_MAX):
        names = partition_names(partitions[:room])
        room -= len(names)
        rows.append({**row, "partition_count": len(partitions), "partitions": names})
    return {"member_count": count, "members": rows}


def _lag_history(service: Service, group: str, lags: Counter[str]) -> list[tuple[int, int]]:
    """Returns pairs (time, lag) of the last hour and of now. Each lag is the sum over the topics in `lags`."""
    history, now_ms = service.history.lags, service.broker.clock.wall_ms()
    history.add_sample(group, now_ms, lags)
    return [*(each for each in history.samples(group, lags) if each[0] < now_ms), (now_ms, lags.total())]


async def delete_group(service: Service, call: Call) -> Any:
    await GroupAdmin(await service.client()).delete(call.path["group"])
    return {"deleted": call.path["group"]}


async def reset_offsets(service: Service, call: Call) -> Any:
    """Moves a group's committed offsets to the target that the request names: one of TARGETS.

    A dry run changes nothing and shows the new offsets.
    """
    given = [name for name in TARGETS if call.body.get(name, False) is not False]
    if len(given) != 1:
        raise Problem(400, f"Give exactly one of the fields {', '.join(TARGETS)}.")
    admin, group = GroupAdmin(await service.client()), call.path["group"]
    before = await admin.committed(group)
    await asyncio.sleep(0)
    wanted = await _partitions(service, call, before)
    target = await reset_targets(admin, given[0], call.body[given[0]], wanted, before)
    dry = call.body.get("dry_run", False)
    refused = {} if dry else await admin.commit(group, target)
    errors = {partition: code.name for partition, code in refused.items()}
    return {"dry_run": dry, "partitions": await reset_rows(before, target, errors)}


async def reset_rows(before: Offsets, target: Offsets, errors: Mapping[TopicPartition, str]) -> list[dict[str, Any]]:
    """Returns a row for each partition of a reset: the old offset, the new offset, and the error if there was one."""
    rows = []
    for number, partition in enumerate(sorted(target)):
        await yield_between_slices(number)
        rows.append(
            {
                "topic": partition[0],
                "partition": partition[1],
                "before": before.get(partition),
                "after": target[partition],
                "kafka_error": errors.get(partition),
            }
        )
    return rows


async def _partitions(service: Service, call: Call, before: Offsets) -> list[TopicPartition]:
    topics = call.body.get("topics")
    if topics is None:
        if not before:
            raise Problem(
                404, f"Group {call.path['group']!r} has no committed offsets: name topics in the field 'topics'."
            )
        return sorted(before)
    wanted = partitions_of_topics(service, topics)
    if len(wanted) > RESET_MAX:
        raise Problem(400, f"A reset of {len(wanted)} partitions is too large (limit: {RESET_MAX}): name fewer topics.")
    return wanted


def partitions_of_topics(service: Service, topics: list[str]) -> list[TopicPartition]:
    """Returns the partitions of topics, sorted. Raises Problem if a topic does not exist."""
    found = {name: service.topic(name) for name in topics}
    return sorted((name, index) for name, topic in found.items() for index in topic.partitions)


async def reset_targets(
    admin: GroupAdmin, target: str, value: int, wanted: list[TopicPartition], before: Offsets
) -> Offsets:
    """Returns the new offset of each partition, limited to the range of its log. Leaves out partitions of deleted
    topics."""
    first, last = await admin.offsets_at(wanted, EARLIEST), await admin.offsets_at(wanted, LATEST)
    match target:
        case "earliest":
            chosen = first
        case "latest":
            chosen = last
        case "offset":
            chosen = dict.fromkeys(last, value)
        case "shift":
            chosen = {each: before.get(each, last[each]) + value for each in last}
        case _:
            found = await admin.offsets_at(wanted, value)
            chosen = {each: found[each] if found.get(each, -1) >= 0 else last[each] for each in last}
    limited: Offsets = {}
    for number, each in enumerate(last):
        await yield_between_slices(number)
        if each in first:
            limited[each] = min(max(chosen[each], first[each]), last[each])
    return limited


GROUP = {"group": Field("string", "id of the group; write a slash as %2F")}
ROUTES = (
    Route(
        "GET",
        "/v1/groups",
        "Lists groups of every type",
        list_groups,
        query={
            **PAGE,
            "type": Field("string", "only groups of this type: classic, consumer, share or streams"),
            "search": Field("string", "only groups with this text in their id"),
        },
        own_acls=True,
    ),
    Route(
        "GET",
        "/v1/groups/{group}",
        "Describes a group with members and lag, and one page of its partitions",
        describe_group,
        path=GROUP,
        query={**PAGE, "search": Field("string", "only partitions of topics with this text in their name")},
        own_acls=True,
    ),
    Route("DELETE", "/v1/groups/{group}", "Deletes a group without members", delete_group, path=GROUP, own_acls=True),
    Route(
        "POST",
        "/v1/groups/{group}/reset-offsets",
        "Moves the committed offsets of a group without members",
        reset_offsets,
        path=GROUP,
        body={
            "topics": list_of(Field("string"), "default: all topics with committed offsets"),
            "earliest": Field("boolean", "true: to the first record"),
            "latest": Field("boolean", "true: to the end"),
            "timestamp_ms": Field("integer", "to the first record at or after this time", low=0),
            "offset": Field("integer", "to this offset", low=0),
            "shift": Field("integer", "by this number of records, negative for back"),
            "dry_run": Field("boolean", "true answers with the new offsets and commits nothing"),
        },
        own_acls=True,
    ),
)
