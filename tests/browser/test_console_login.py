"""The console in Chromium behind TLS and a login: what users with different roles see, and how they are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from console_page import IN_BROWSER, Console, chromium, playwright

from penstock.client.group_admin import GroupAdmin
from penstock.testing import Broker
from tools.certificates import Authority

pytestmark = IN_BROWSER

USERS = 'x.PlainLoginModule required user_ann="a" user_bob="b" user_carl="c" user_dora="d";'
PAGES = (
    "overview",
    "nodes",
    "nodes/1",
    "topics",
    "topics/orders/messages",
    "topics/orders/partitions",
    "topics/orders/configs",
    "groups",
    "groups/readers",
    "share",
    "transactions",
    "timeline",
    "moves",
    "pipelines",
    "access",
    "events",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    authority = Authority(Path(tmp_path_factory.mktemp("tls")), "ca")
    config = {
        "penstock.http.listener": "https://127.0.0.1:0",
        "penstock.http.roles": "view=User:ann;operate=User:bob;admin=User:carl",
        "listener.name.http.ssl.keystore.location": authority.store("http.pem", "node"),
        "listener.name.http.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.http.plain.sasl.jaas.config": USERS,
    }
    with Broker(topics={"orders": 2}, config=config) as running:
        with running.client() as client:
            client.run(GroupAdmin(client.asynchronous).commit("readers", {("orders", 0): 0}))
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


def console_of(browser: Any, broker: Broker, user: str, password: str) -> Console:
    login = {"username": user, "password": password}
    return Console(browser, str(broker.node.http.url), ignore_https_errors=True, http_credentials=login)


def test_a_user_who_may_only_view_sees_every_page_without_buttons_that_change_something(
    browser: Any, broker: Broker
) -> None:
    opened = console_of(browser, broker, "ann", "a")
    for where in PAGES:
        page = opened.open(where)
        page.locator("main .table").first.wait_for()
        page.get_by_text("User:ann (view)").wait_for()
        playwright.expect(page.locator("main > .problem")).to_be_hidden()
        assert page.locator("main .changes:visible, main .danger:visible").count() == 0, where
    opened.shoot("login-view")
    opened.close()


def test_user_with_the_role_operate_can_create_a_topic_and_is_told_why_a_user_cannot_be_added(
    browser: Any, broker: Broker
) -> None:
    opened = console_of(browser, broker, "bob", "b")
    page = opened.open("topics")
    page.get_by_role("button", name="Create topic…").click()
    page.get_by_label("Name", exact=True).fill("made")
    page.get_by_role("button", name="Create", exact=True).click()
    page.wait_for_selector("h1:has-text('made')")
    page = opened.open("access")
    page.get_by_role("button", name="Add a user…").click()
    page.locator("dialog input[name=user]").fill("eve")
    page.locator("dialog input[name=password]").fill("x")
    page.locator("dialog button[type=submit]").click()
    page.locator("dialog .problem", has_text="User:bob does not have the role admin").wait_for()
    opened.shoot("login-refused")
    opened.close()


def test_console_refuses_a_user_without_a_role_and_a_wrong_password(browser: Any, broker: Broker) -> None:
    for user, password, status in (("dora", "d", 403), ("ann", "wrong", 401)):
        opened = console_of(browser, broker, user, password)
        answer = opened.page.goto(str(broker.node.http.url))
        assert answer.status == status
        assert "Penstock" not in opened.page.title()
        opened.close()
