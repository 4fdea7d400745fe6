"""Tests the checks before every HTTP route: requests forged by web pages, roles, and the caller's ACLs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.http.guard import forged_change
from penstock.http.messages import CHANGES, Request
from penstock.http.rest.api import ROUTES
from penstock.http.roles import Role, Roles, parse_roles
from penstock.testing import Broker

HTTP = {"penstock.http.listener": "127.0.0.1:0"}
LIMIT_S = 60.0
PAGES = ("/", "/metrics", "/v1/cluster/overview", "/v1/events", "/v1/share-windows", "/v1/pipelines")


def ask(broker: Broker, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> int:
    url = broker.node.http.url
    assert url is not None
    sent = {"Content-Type": "application/json"} if method in CHANGES else {}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url.rstrip("/") + path, data, {**sent, **(headers or {})}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def change(origin: str = "", site: str = "") -> Request:
    kind = "application/json"
    return Request("POST", "/v1/topics", content_type=kind, host="node:9644", origin=origin, site=site)


# --- forged changes -----------------------------------------------------------------------------------


def test_change_request_from_a_program_or_from_the_nodes_own_console_is_accepted() -> None:
    assert forged_change(change()) is None
    assert forged_change(change(origin="http://node:9644", site="same-origin")) is None
    assert forged_change(change(origin="https://NODE:9644")) is None
    assert forged_change(change(site="none")) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://node:1"},
        {"origin": "node:9644"},
        {"origin": "http://node:9644.evil.example"},
        {"site": "cross-site"},
        {"site": "same-site"},
        {"origin": "http://node:9644", "site": "cross-site"},
    ],
)
def test_change_request_from_a_web_page_of_another_site_is_refused(headers: dict[str, str]) -> None:
    refusal = forged_change(change(**headers))
    assert refusal is not None
    assert refusal.status == 403


def test_read_request_from_a_web_page_of_any_site_is_accepted() -> None:
    assert forged_change(Request("GET", "/v1/topics", origin="http://evil.example", site="cross-site")) is None


# --- roles --------------------------------------------------------------------------------------------


def test_user_with_several_http_roles_has_the_highest_of_them() -> None:
    roles = Roles(
        parse_roles("view=User:ann; admin=User:CN=bob,O=Org ;operate=User:eve;view=User:eve"), frozenset({"User:root"})
    )
    assert roles.of("User:ann") is Role.VIEW
    assert roles.of("User:CN=bob,O=Org") is Role.ADMIN
    assert roles.of("User:eve") is Role.OPERATE
    assert roles.of("User:root") is Role.ADMIN
    assert roles.of("User:ANN") is None


def test_user_has_at_least_the_http_role_that_is_given_to_all_users() -> None:
    roles = Roles(parse_roles("view=User:*;admin=User:ann"))
    assert (roles.of("User:x"), roles.of("User:ann")) == (Role.VIEW, Role.ADMIN)


def test_every_user_has_role_admin_over_http_if_no_roles_are_configured() -> None:
    assert Roles({}).of("User:ANONYMOUS") is Role.ADMIN


@pytest.mark.parametrize(
    "text", ["ann", "view", "view=ann", "view=:ann", "view=User:", "root=User:ann", "User:ann=view"]
)
def test_error_about_an_invalid_http_role_entry_contains_the_entry(text: str) -> None:
    with pytest.raises(ValueError, match=r"penstock\.http\.roles has the entry"):
        parse_roles(text)


def test_every_http_route_that_makes_changes_requires_a_higher_role_than_view() -> None:
    for route in ROUTES:
        need = route.need
        assert (need is None) == (route.template in ("/livez", "/readyz"))
        if need is not None:
            assert (need.role > Role.VIEW) == (route.method in CHANGES)


@contextmanager
def with_role(role: str) -> Iterator[Broker]:
    with Broker(topics={"t": 1}, config={**HTTP, "penstock.http.roles": f"{role}=User:ANONYMOUS"}) as broker:
        yield broker


def test_http_user_with_role_view_may_read_but_not_make_changes() -> None:
    with with_role("view") as broker:
        for path in (*PAGES, "/v1/topics", "/v1/topics/t/records?partition=0", "/v1/groups", "/v1/configs/brokers/1"):
            assert ask(broker, "GET", path) == 200, path
        for route in ROUTES:
            if route.method in CHANGES:
                path = route.template.replace("{node}", "1").replace("{", "").replace("}", "")
                assert ask(broker, route.method, path, {}) == 403, path
        assert "topic" not in broker.node.broker.metadata.image.topics


def test_http_user_with_role_operate_may_change_topics_but_not_brokers() -> None:
    with with_role("operate") as broker:
        assert ask(broker, "POST", "/v1/topics", {"name": "made"}) == 201
        assert ask(broker, "PATCH", "/v1/configs/topics/t", {"set": {"retention.ms": "60000"}}) == 200
        assert ask(broker, "PATCH", "/v1/configs/brokers/1", {"set": {"log.retention.ms": "60000"}}) == 403


def test_http_user_with_role_admin_may_change_brokers() -> None:
    with with_role("admin") as broker:
        assert ask(broker, "PATCH", "/v1/configs/brokers/1", {"set": {"log.retention.ms": "60000"}}) == 200


def test_http_user_without_a_role_may_use_only_the_health_probes_and_the_files_of_the_console() -> None:
    with Broker(config={**HTTP, "penstock.http.roles": "admin=User:ann"}) as broker:
        for path in (*PAGES, "/v1/topics", "/v1/nothing", "/nothing", "/v1/openapi.json"):
            assert ask(broker, "GET", path) == 403, path
        for path in ("/livez", "/readyz", "/console/console.css", "/console/app.js", "/console/favicon.svg"):
            assert ask(broker, "GET", path) == 200, path
