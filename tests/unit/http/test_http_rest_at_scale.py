"""Tests every GET route on a node with many partitions and groups: no route may block the event loop for long."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rest_harness import ask, ended

from loop_steps import asyncio_loop, cpu_of_callbacks, lines_of_callbacks
from penstock.http import view
from penstock.http.rest.api import ROUTES
from penstock.http.rest.routes import Route
from penstock.testing import Broker
from scale import CREW, EVERYTHING, INVENTED, INVENTED_PARTITIONS, WIDE, Scale, broker_of

pytestmark = pytest.mark.exhaustive

#: A step of a request may use this much CPU time.
STEP_MAX_S = 0.020
#: A step of a request may run this many lines of Python, at a third of the partitions: three times as many take 20 ms.
STEP_MAX_LINES = 80_000
#: Paths that need what the broker does not have.
WITHOUT = ("/v1/operations/{operation}",)
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
GETS = [each for each in ROUTES if each.method == "GET" and each.template not in WITHOUT]


def path_of(route: Route) -> str:
    """Returns the route's path for the largest resource that it can show, and for the largest page."""
    group = CREW if "share" in route.template else EVERYTHING
    values = {"topic": WIDE, "node": "1", "resource": "topics", "name": WIDE, "group": group, "id": "billing"}
    path = route.template
    for name in route.path:
        path = path.replace("{" + name + "}", urllib.parse.quote(values[name], safe=""))
    given = {name: "0" for name, each in route.query.items() if each.required or name == "partition"}
    if "limit" in route.query:
        given["limit"] = str(route.query["limit"].high)
    return f"{path}?{urllib.parse.urlencode(given)}" if given else path


@pytest.fixture(autouse=True)
def uncached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "FRESH_S", 0.0)
    monkeypatch.setattr(view, "LONGEST_S", 0.0)


#: Every path of the walk, by the name of its route; also the groups with invented partitions.
PATHS = {each.name: path_of(each) for each in GETS} | {
    f"describe_group {group}": f"/v1/groups/{group}?limit=1000" for group in INVENTED
}


def walk(broker: Broker, path: str) -> None:
    assert ask(broker, "GET", path).status in (200, 409 if "acls" in path else 200)


def changes_of(scale: Scale) -> dict[str, tuple[str, Any]]:
    """Returns the path and the body of changes that concern all partitions, by the name of their route.

    They change nothing, or fail for each partition.
    """
    names = {f"topic-{number}": scale.partitions for number in range(scale.topics)} | {WIDE: scale.wide}
    every = [{"topic": name, "partition": index} for name, count in names.items() for index in range(count)][:10_000]
    return {
        "reset_offsets": (f"/v1/groups/{EVERYTHING}/reset-offsets", {"earliest": True, "dry_run": True}),
        "reset_share_offsets": (f"/v1/share-groups/{CREW}/reset-offsets", {"earliest": True, "dry_run": True}),
        "force_election": ("/v1/cluster/force-election", {"partitions": every}),
        "reassign": ("/v1/reassignments", {"partitions": every}),
        "move_replicas": ("/v1/nodes/1/moves", {"replicas": [{**each, "directory": "/no"} for each in every]}),
        "rebalance_cluster": ("/v1/cluster/rebalance", {"dry_run": True}),
        "balance_directories": ("/v1/nodes/1/balance", {"dry_run": True}),
        "trim_topic": (
            f"/v1/topics/{WIDE}/trim",
            {"partitions": [{"partition": index, "before": 0} for index in range(scale.wide)]},
        ),
    }


def change(broker: Broker, scale: Scale, name: str) -> None:
    path, body = changes_of(scale)[name]
    answer = ask(broker, "POST", path, body)
    assert answer.status in (200, 202)
    if "operation" in answer.value:
        ended(broker, answer)


# --- a small share of the walk, by a count that depends on no clock

SOME = Scale(topics=10, partitions=200, wide=1000, groups=50)
CHANGED = sorted(changes_of(SOME))


@pytest.fixture(scope="module")
def some_partitions() -> Iterator[Broker]:
    with asyncio_loop(), broker_of(SOME) as running:
        yield running


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_rest_route_runs_a_limited_number_of_lines_per_callback_with_many_partitions(
    some_partitions: Broker, path: str
) -> None:
    walk(some_partitions, path)  # compiles codecs, opens connections
    with lines_of_callbacks(some_partitions) as longest:
        walk(some_partitions, path)
    assert longest.cost < STEP_MAX_LINES, longest.name


@pytest.mark.parametrize("name", CHANGED)
def test_change_of_all_partitions_over_rest_runs_a_limited_number_of_lines_per_callback(
    some_partitions: Broker, name: str
) -> None:
    change(some_partitions, SOME, name)
    with lines_of_callbacks(some_partitions) as longest:
        change(some_partitions, SOME, name)
    assert longest.cost < STEP_MAX_LINES, longest.name


def test_rest_group_description_omits_unknown_partitions_and_is_marked_truncated_if_an_assignment_is_too_long(
    some_partitions: Broker,
) -> None:
    group = ask(some_partitions, "GET", f"/v1/groups/{INVENTED_PARTITIONS}?limit=10").value
    (member,) = group["members"]
    assert (group["total"], group["member_count"], group["truncated"]) == (SOME.wide, 1, True)
    assert (member["partition_count"], len(member["partitions"])) == (SOME.wide, SOME.wide)
    assert {row["member"] for row in group["partitions"]} == {member["member"]}
    assert not ask(some_partitions, "GET", f"/v1/groups/{EVERYTHING}").value["truncated"]


def test_rest_answers_that_are_computed_in_many_callbacks_are_complete(some_partitions: Broker) -> None:
    known = SOME.topics * SOME.partitions + SOME.wide
    (directory,) = ask(some_partitions, "GET", "/v1/nodes/1/directories").value["directories"]
    assert directory["replicas"] == len(some_partitions.node.broker.partitions) > known
    group = ask(some_partitions, "GET", f"/v1/groups/{EVERYTHING}?limit=1000&start={known - 10}").value
    assert (group["total"], len(group["partitions"])) == (known, 10)
    assert {(row["committed"], row["end"] - row["lag"]) for row in group["partitions"]} == {(0, 0)}
    found = ask(some_partitions, "GET", f"/v1/groups/{EVERYTHING}?search=topic-3").value
    assert (found["total"], found["lag"]) == (SOME.partitions, group["lag"])
    windows = ask(some_partitions, "GET", f"/v1/share-groups/{CREW}/windows?start={SOME.wide - 5}").value
    assert [row["partition"] for row in windows["windows"]] == list(range(SOME.wide - 5, SOME.wide))
    hanging = ask(some_partitions, "GET", "/v1/hanging-transactions").value
    assert (hanging["total"], hanging["unread"]) == (0, [])
    with some_partitions.client() as client:
        topics = client.list_topics()
    assert sum(len(each.partitions) for each in topics) == known


# --- the whole walk, in CPU time

MANY = Scale(topics=75, partitions=100, wide=2500, groups=1000)


@pytest.fixture(scope="module", params=[{}, AUTHORIZER], ids=["open", "authorizer"])
def many_partitions(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with asyncio_loop(), broker_of(MANY, request.param) as running:
        yield running


@pytest.mark.slow
@pytest.mark.usefixtures("no_collections")  # a node that was started by the command line collects rarely
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_no_rest_route_blocks_the_event_loop_for_20_ms_with_10000_partitions_and_1000_groups(
    many_partitions: Broker, path: str
) -> None:
    _assert_short_steps(many_partitions, lambda: walk(many_partitions, path))


@pytest.mark.slow
@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("name", CHANGED)
def test_no_change_of_10000_partitions_over_rest_blocks_the_event_loop_for_20_ms(
    many_partitions: Broker, name: str
) -> None:
    _assert_short_steps(many_partitions, lambda: change(many_partitions, MANY, name))


def _assert_short_steps(broker: Broker, work: Callable[[], None]) -> None:
    figures = []
    for _ in range(5):  # the first one compiles codecs; a collection of garbage or another process may disturb some
        with cpu_of_callbacks(broker) as longest:
            work()
        if longest.cost < STEP_MAX_S:
            return
        figures.append(longest)
    pytest.fail(f"CPU seconds of the longest step: {figures}")
