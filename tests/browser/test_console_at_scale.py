"""The console in Chromium on a node with 10,000 partitions and 1,000 groups: every page is paged and searched there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from console_page import IN_BROWSER, Console, chromium, playwright

from penstock.testing import Broker
from scale import CREW, EVERYTHING, WIDE, Scale, broker_of

pytestmark = IN_BROWSER

PAGES = (
    "overview",
    "nodes",
    "nodes/1",
    "topics",
    f"topics/{WIDE}/messages",
    f"topics/{WIDE}/partitions",
    f"topics/{WIDE}/configs",
    "groups",
    f"groups/{EVERYTHING}",
    "share",
    f"share/{CREW}",
    "transactions",
    "timeline",
    "moves",
    "events",
)
#: Bytes that the answers for one page, with one refresh of it, may have.
PAGE_MAX_BYTES = 1_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with broker_of(Scale(topics=75, partitions=100, wide=2500, groups=1000)) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def console(browser: Any, broker: Broker) -> Iterator[Console]:
    opened = Console(browser, str(broker.node.http.url))
    opened.count_answers()
    yield opened
    opened.close()


@pytest.mark.parametrize("where", PAGES)
def test_page_shows_its_first_rows_and_transfers_less_than_a_megabyte(console: Console, where: str) -> None:
    console.page.goto("about:blank")  # leaves nothing of the page before
    console.answers.clear()
    page = console.open(where)
    page.locator("main .table > .calm:visible" if where == "moves" else "main td:visible").first.wait_for()
    playwright.expect(page.locator("main > .problem")).to_be_hidden()
    console.shoot(f"scale-{where.replace('/', '-')}")
    answers = dict(console.answers)  # by URL: a page may be refreshed meanwhile
    assert answers or where == "events"  # events come as a stream
    assert sum(answers.values()) < PAGE_MAX_BYTES, answers


def test_topics_are_paged_and_searched_by_the_node(console: Console) -> None:
    page = console.open("topics")
    page.get_by_text("1–50 of 7").wait_for()
    page.get_by_role("button", name="next ›").click()
    page.get_by_text("51–").wait_for()
    page.get_by_label("search topics").fill("topic-74")
    playwright.expect(page.locator("main tbody tr")).to_have_count(1)


def test_partitions_of_a_topic_are_paged(console: Console) -> None:
    page = console.open(f"topics/{WIDE}/partitions")
    page.get_by_text("1–50 of 2,500").wait_for()
    page.get_by_role("button", name="next ›").click()
    page.get_by_text("51–100 of 2,500").wait_for()


def test_groups_and_the_partitions_of_a_group_are_paged_and_searched(console: Console) -> None:
    page = console.open("groups")
    page.get_by_text("of 1,00").wait_for()
    page.get_by_label("search groups").fill("group-999")
    page.locator("main tbody tr", has_text="group-999").click()
    page.wait_for_selector("h1:has-text('group-999')")
    page = console.open(f"groups/{EVERYTHING}")
    page.get_by_text("1–100 of 10,000").wait_for()
    page.get_by_label("search topics of this group").fill("topic-74")
    page.get_by_text("of 100").wait_for()
    playwright.expect(page.locator("main section tbody tr td", has_text="topic-74").first).to_be_visible()
