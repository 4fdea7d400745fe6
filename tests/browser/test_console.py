"""The console in Chromium, on three nodes under load, with a node killed: every page, and changes made by clicks.

Screenshots of all pages, light and dark, are kept in the directory that CONSOLE_SCREENSHOTS names.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from console_page import IN_BROWSER, Console, chromium, playwright

from penstock.client.group_admin import GroupAdmin
from penstock.client.producer import ProducerSettings
from penstock.client.sync import Client
from penstock.protocol.vocabulary import ConfigOperation, ResourceType
from penstock.records.varint import varint
from penstock.testing import Cluster

pytestmark = IN_BROWSER

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
GROUP = "billing/<b>night</b>"
PAGES = (
    "overview",
    "nodes",
    "nodes/1",
    "topics",
    "topics/orders/messages",
    "topics/orders/partitions",
    "topics/orders/configs",
    "groups",
    "groups/billing%2F%3Cb%3Enight%3C%2Fb%3E",
    "share",
    "share/crew",
    "transactions",
    "timeline",
    "moves",
    "pipelines",
    "access",
    "events",
    "topics/invoices/messages",
)
#: Pages that say that there is nothing: no operation, pipeline and user exists.
WITHOUT_ROWS = ("moves", "pipelines", "access")
#: Pages with a plot of samples that nobody looked at before.
WITH_PLOTS = ("overview", "topics/orders/partitions", PAGES[8])


@contextmanager
def load(cluster: Cluster) -> Iterator[None]:
    """Produces to the topic orders until the block ends."""
    stop = threading.Event()

    def run() -> None:
        number = 0
        with cluster.client() as client, client.producer() as producer:
            while not stop.is_set():
                orders = range(number, number + 20)
                producer.send_many("orders", [(b"k%d" % each, b'{"order": %d}' % each, (), None) for each in orders])
                producer.flush()
                number += 20
                stop.wait(0.05)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def holding(client: Client, group: str, topic: str) -> Iterator[None]:
    """Holds the ten records of a topic in flight, as a member of a new share group."""
    change = ("share.auto.offset.reset", int(ConfigOperation.SET), "earliest")
    client.alter_configs(ResourceType.GROUP, group, [change])
    with client.share_consumer(group, [topic]) as consumer:
        found: list[Any] = []
        while len(found) < 10:
            found += consumer.poll()
        yield


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a directory with an Avro schema for values of the topic invoices."""
    directory: Path = tmp_path_factory.mktemp("schemas")
    fields = [{"name": "number", "type": "long"}, {"name": "note", "type": "string"}]
    (directory / "invoices-value.avsc").write_text(json.dumps({"type": "record", "name": "Invoice", "fields": fields}))
    return directory


@pytest.fixture(scope="module")
def cluster(schemas: Path) -> Iterator[Cluster]:
    config: dict[str, str | int] = {
        "penstock.http.listener": "127.0.0.1:0",
        "default.replication.factor": 3,
        "penstock.events.topic.enable": "true",
        "penstock.schemas.dir": str(schemas),
        "penstock.history.interval.ms": 1000,
    }
    topics = {"orders": 6, "evil": 1, "jobs": 1, "invoices": 1}
    with Cluster(nodes=3, topics=topics, config=config) as running, running.client() as client:
        with client.producer() as producer:
            producer.send("evil", EVIL.encode(), EVIL.encode(), headers=((EVIL, EVIL.encode()),)).result()
            producer.send_many("orders", [(b"k", b'{"needle": 7}', (), None)])
            invoice = varint(7) + varint(len(EVIL)) + EVIL.encode()
            producer.send_many("invoices", [(b"\x08\x05", invoice, (), None), (None, b"broken", (), None)])
            producer.send_many("jobs", [(None, b"job %d" % each, (), None) for each in range(10)])
        client.run(GroupAdmin(client.asynchronous).commit(GROUP, {("orders", 0): 0, ("orders", 1): 0}))
        with client.producer(ProducerSettings(transactional_id="payments")):
            pass
        with holding(client, "crew", "jobs"), load(running):
            yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def console(browser: Any, cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Console]:
    opened = Console(browser, str(cluster.node(1).http.url))
    yield opened
    opened.shoot(request.node.name)
    opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_of_the_console_shows_its_data_in_light_and_dark_mode(
    browser: Any, cluster: Cluster, scheme: str
) -> None:
    opened = Console(browser, str(cluster.node(1).http.url), scheme)
    for where in PAGES:
        page = opened.open(where)
        shown = "main .table > .calm:visible" if where in WITHOUT_ROWS else "main td:visible"
        page.locator(shown).first.wait_for()
        playwright.expect(page.locator("main > .problem")).to_be_hidden()
        if where in WITH_PLOTS:
            page.wait_for_selector(".u-over")
        opened.shoot(f"{where.replace('/', '-').replace('%', '')}-{scheme}")
    opened.close()


def test_console_can_create_and_configure_and_write_and_search_and_trim_and_delete_a_topic(console: Console) -> None:
    page = console.open("topics")
    page.get_by_role("button", name="Create topic…").click()
    page.get_by_label("Name", exact=True).fill("made")
    page.get_by_label("Partitions", exact=True).fill("2")
    assert 'Topic "made" is created with 2 partitions.' in page.locator("dialog").inner_text()
    page.get_by_role("button", name="Create", exact=True).click()
    page.wait_for_selector("h1:has-text('made')")
    page.get_by_role("button", name="Produce…").click()
    page.get_by_label("Value", exact=True).fill('{"hello": "<b>world</b>"}')
    page.get_by_label("Partition", exact=True).fill("0")
    page.get_by_role("button", name="Append").click()
    page.get_by_text("Appended to partition 0 at offset 0").wait_for()
    page.get_by_role("button", name="Read").click()
    page.locator("main td", has_text="world").click()
    assert '"hello": "<b>world</b>"' in page.locator("dialog pre").first.inner_text()
    page.get_by_role("button", name="hex").last.click()
    assert "7b 22 68 65" in page.locator("dialog pre").last.inner_text()
    page.get_by_role("button", name="Close").click()
    page.get_by_label("filter").fill("world")
    page.get_by_role("button", name="Search the whole topic").click()
    page.get_by_text("1 records found by a search").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    assert "world" in Path(download.value.path()).read_text()
    page.get_by_role("tab", name="configs").click()
    page.get_by_label("search configs").fill("retention.ms")
    page.locator("tr", has_text="retention.ms").first.get_by_role("button", name="change…").click()
    page.locator("dialog input[name=value]").fill("60000")
    page.get_by_role("button", name="Change", exact=True).click()
    page.locator("tr", has_text="60000").get_by_text("set here").wait_for()
    page.get_by_role("button", name="Trim…").click()
    page.get_by_role("button", name="Delete records").click()
    page.get_by_text("made now starts at offset 1").wait_for()
    page.get_by_role("button", name="Delete…").click()
    page.locator("dialog input[name=typed]").fill("made")
    page.get_by_role("button", name="Delete the topic").click()
    page.get_by_text("Topic made is deleted").wait_for()


def test_console_shows_new_messages_of_a_topic_while_they_arrive(console: Console) -> None:
    page = console.open("topics/orders/messages")
    page.get_by_role("button", name="Live tail").click()
    page.get_by_text("● live").wait_for()
    page.locator("main tbody tr").nth(30).wait_for()
    page.get_by_role("button", name="Stop").click()


def test_console_shows_html_in_names_and_values_as_text_and_never_executes_it(console: Console) -> None:
    page = console.open("topics/evil/messages")
    page.locator("main td", has_text="onerror").first.click()
    assert EVIL in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    page = console.open("groups")
    page.locator("td", has_text="billing").click()
    page.wait_for_selector("h1:has-text('<b>night</b>')")


def test_console_decodes_avro_values_by_their_schema_and_decodes_keys_as_protobuf_if_selected(
    console: Console,
) -> None:
    page = console.open("topics/invoices/messages")
    page.locator("main td", has_text='"number":7').click()
    assert '"number": 7' in page.locator("dialog pre").last.inner_text()
    assert "schema invoices-value.avsc" in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    page.get_by_label("view of keys").select_option("protobuf")
    page.locator("main td", has_text='{"1":5}').wait_for()
    page.locator("main td", has_text="broken").click()
    assert "The value can't be shown by its schema" in page.locator("dialog .problem").inner_text()
    page.get_by_role("button", name="Close").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    assert '"decoded":{"number":7' in Path(download.value.path()).read_text()


def test_console_shows_a_dry_run_before_it_resets_the_offsets_of_a_group(console: Console) -> None:
    page = console.open(PAGES[8])
    page.get_by_role("button", name="Reset offsets…").click()
    page.get_by_label("target").select_option("latest")
    assert page.get_by_role("button", name="Reset", exact=True).is_disabled()
    page.get_by_role("button", name="Dry run").click()
    page.get_by_text("2 partitions would be moved. Nothing has changed yet.").wait_for()
    page.get_by_role("button", name="Reset", exact=True).click()
    page.get_by_text("2 partitions moved, 0 refused.").wait_for()


def test_console_can_archive_the_in_flight_records_of_a_share_group(console: Console, cluster: Cluster) -> None:
    with cluster.client() as client, holding(client, "gang", "jobs"):
        page = console.open("share/gang")
        page.get_by_role("button", name="archive…").first.click()
        assert "no member gets them again" in page.locator("dialog").inner_text()
        page.get_by_role("button", name="Archive", exact=True).click()
        page.get_by_text("Archive records of jobs-0: done").wait_for()
        page.get_by_text("No records are in flight.").wait_for()


def test_pages_of_the_console_can_be_opened_and_searched_with_the_keyboard(console: Console) -> None:
    page = console.open("overview")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_selector("h1:has-text('Topics')")
    page.keyboard.press("/")
    page.keyboard.type("orde")
    playwright.expect(page.locator("main tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    page.locator("main tbody tr").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('orders')")


def test_console_shows_a_killed_node_and_the_cause_of_the_problem_on_every_page(
    console: Console, cluster: Cluster
) -> None:
    page = console.open("overview")
    cluster.kill(3)
    page.locator(".causes", has_text="Node 3").wait_for()
    page.locator("#health.warn, #health.bad").wait_for()
    page.locator("main td", has_text="fenced").first.wait_for()
    console.shoot("overview-killed")
    page = console.open("timeline")
    page.locator("main td", has_text="broker.fenced").first.wait_for()
    console.shoot("timeline-killed")
    cluster.start(3)
    page = console.open("overview")
    page.locator("#health.good").wait_for()
