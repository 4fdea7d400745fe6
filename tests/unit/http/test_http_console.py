"""The console's page: its contents, the escaping of all names, and its bounded size."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from penstock.broker.controlplane.failovers import Failover
from penstock.client.cluster_facts import Facts, NodeFacts, PartitionFacts
from penstock.http.console import ATTENTION_SHOWN, TOPICS_SHOWN, PageContext, page, sparkline
from penstock.http.overview import ATTENTION_MAX, Overview, one_topic, overview, topic_sums
from penstock.http.pipelines import Pipeline
from penstock.http.rates import Rate
from penstock.replication.directory_move import MoveFigures, MoveState
from penstock.runs import Query

EVIL = '<script>alert("1")</script>'


def facts(topics: int = 1, *, isr: tuple[int, ...] = (1, 2), leader: int = 1, rack: str | None = None) -> Facts:
    partitions = {
        (f"topic{number:04}", index): PartitionFacts(leader, 3, (1, 2), isr)
        for number in range(topics)
        for index in range(2)
    }
    nodes = [NodeFacts(1, "10.0.0.1:9092", rack, False), NodeFacts(2, "10.0.0.2:9092", None, 2 not in isr)]
    found = Facts("the-cluster", 1, 7, nodes, partitions, [1])
    for node in (1, 2):
        found.sizes[node] = dict.fromkeys(partitions, 1024)
        found.ends[node] = dict.fromkeys(partitions, 50)
    return found


def seen(found: Facts, rates: dict[str, Rate] | None = None) -> Overview:
    return overview(found, topic_sums(found), rates or {}, [1.0, 2.0, 3.0])


class Tables(HTMLParser):
    """Parses a page into the cells of its tables, by the table's title and the name in the first column."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: dict[str, dict[str, dict[str, str]]] = {}
        self.tags: set[str] = set()
        self._section = self._title = self._name = ""
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.tags |= {f"{tag}.{name}" for name, _ in attrs}
        if tag == "h2":
            self._inside = tag
        elif tag == "tr":
            self._name = ""
        elif tag == "td":
            self._inside = tag
            self._title = dict(attrs)["data-title"] or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "h2":
            self._section = data
        elif self._inside == "td":
            self._name = self._name or data
            self.rows.setdefault(self._section, {}).setdefault(self._name, {})[self._title] = data


def shown(found: Facts, pipelines: list[Pipeline] | None = None, rates: dict[str, Rate] | None = None) -> str:
    return page(PageContext(1, "1.2.3"), seen(found, rates), pipelines or [])


def test_the_page_shows_the_clusters_nodes_topics_and_totals() -> None:
    html = shown(facts(), rates={"topic0000": Rate(1234.4, 2048.0)})
    tables = Tables(html).rows
    assert tables["Nodes"]["1"] == {
        "node": "1",
        "state": "up",
        "controller": "active",
        "address": "10.0.0.1:9092",
        "leads": "2",
        "replicas": "2",
        "out of sync": "0",
        "lag": "–",
        "metadata lag": "–",
        "on disk": "2.0 KiB",
    }
    assert tables["Topics"]["topic0000"] == {
        "topic": "topic0000",
        "partitions": "2",
        "replicas": "2",
        "end offsets": "100",
        "records in": "1,234/s",
        "bytes in": "2.0 KiB/s",
        "size": "2.0 KiB",
    }
    assert "all in sync" in html
    assert "No problems found." in html


def test_topics_that_need_attention_show_their_worst_problem() -> None:
    html = shown(facts(isr=(1,)))
    assert Tables(html).rows["Needs attention"]["topic0000"] == {
        "topic": "topic0000",
        "problem": "under-replicated",
        "partitions": "2 of 2",
        "not in sync on nodes": "2",
        "lag": "0",
    }
    assert '<p id="health" class="pill warn">2 under-replicated, 1 node fenced</p>' in html
    html = shown(facts(leader=-1, isr=()))
    assert Tables(html).rows["Needs attention"]["topic0000"]["problem"] == "offline"
    assert 'class="pill bad">2 offline' in html


def test_console_lists_a_failed_node_before_the_affected_topics() -> None:
    found = facts(2, isr=(1,))
    found.partitions |= {("__consumer_offsets", index): PartitionFacts(1, 3, (1, 2), (1,)) for index in range(50)}
    html = page(PageContext(1, "1", [Failover(2, 1_700_000_000_000, 54, "was silent for 9000 ms")]), seen(found), [])
    cause = "Node 2 (10.0.0.2:9092) was fenced at 2023-11-14 22:13:20 UTC: it was silent for 9000 ms."
    assert -1 < html.index("Needs attention") < html.index(cause) < html.index("topic0000") < html.index("__consumer")
    rows = Tables(html).rows["Needs attention"]
    assert list(rows) == ["topic0000", "topic0001", "__consumer_offsets"]
    assert rows["__consumer_offsets"]["partitions"] == "50 of 50"
    assert rows["__consumer_offsets"]["lag"] == "unknown"
    assert [row["topic"] for row in seen(found).attention[:5]] == [
        *["topic0000"] * 2,
        *["topic0001"] * 2,
        "__consumer_offsets",
    ]


def test_console_shows_stopped_and_unreachable_nodes_as_causes() -> None:
    stopped, silent = facts(isr=(1,)), facts()
    del silent.sizes[2], silent.ends[2]
    assert "Node 2 (10.0.0.2:9092) is fenced: it was stopped" in shown(stopped)
    html = shown(silent)
    assert "Node 2 (10.0.0.2:9092) does not answer node 1." in html
    assert "Nothing does." not in html


def test_a_damaged_replica_is_shown_with_its_reason() -> None:
    damage = {"topic": EVIL, "partition": 3, "reason": "the checksum does not match"}
    html = page(PageContext(1, "1", (), {"/data/2": "Input/output error"}, [damage]), seen(facts()), [])
    assert "script&gt;-3 on node 1 is damaged (the checksum does not match)" in html
    assert "Directory /data/2 of node 1 has failed (Input/output error): replace the disk" in html
    assert "a directory has failed, 1 damaged</p>" in html


def test_a_directory_that_is_short_of_space_is_a_problem() -> None:
    html = page(PageContext(1, "1", short_of_space=["Log directory /d has 5 bytes left"]), seen(facts()), [])
    assert "Log directory /d has 5 bytes left: records of clients are refused until space is freed." in html
    assert "a directory is short of space</p>" in html


def test_console_shows_moves_between_log_directories_with_their_remaining_bytes() -> None:
    assert "Moves between" not in shown(facts())
    move = MoveFigures("t", 0, "/a", "/b", MoveState.COPYING, 1024, 2048, 7, 1024.0)
    html = page(PageContext(1, "1", moves=[move] * 21), seen(facts()), [])
    row = Tables(html).rows["Moves between log directories of node 1"]["t-0"]
    assert (row["from"], row["to"], row["records left"], row["bytes left"]) == ("/a", "/b", "7", "2.0 KiB")
    assert (row["state"], row["rate"], row["time left"]) == ("copying", "1.0 KiB/s", "2 s")
    assert "and 1 more" in html


def test_console_escapes_names_that_users_chose() -> None:
    query = Query(EVIL, True, 1, 2, 3, 4.0, 5, 6)
    pipelines = [Pipeline(EVIL, "running", EVIL, EVIL, EVIL, (query,)), Pipeline("x", EVIL, "", "", EVIL)]
    found = facts(rack=EVIL)
    found.partitions[EVIL, 0] = PartitionFacts(-1, 0, (1,), ())
    html = shown(found, pipelines)
    assert EVIL not in html
    assert "&lt;script&gt;" in html
    assert html.count("<script") == 1


def test_the_page_obeys_its_content_security_policy() -> None:
    """The page has no inline script or style and loads nothing from other origins."""
    html = shown(facts(), [Pipeline("p", "done", "", "", "")])
    parsed = Tables(html)
    assert "style" not in parsed.tags
    assert not [tag for tag in parsed.tags if tag.partition(".")[2].startswith("on") or tag.endswith(".style")]
    assert re.search(r"<script src=\"/console.js\" defer></script>", html)
    assert not re.search(r"(src|href)=\"(?!/)", html)


def test_pipelines_are_shown_with_their_queries() -> None:
    query = Query("clicks", True, 12, 300, 4500, 150.6, 1999, 7)
    failed = Pipeline("other", "failed", "", "", "topic t is not there")
    rows = Tables(shown(facts(), [Pipeline("demo", "running", "", "", "…", (query,)), failed])).rows["Pipelines"]
    assert rows["demo"] == {
        "pipeline": "demo",
        "state": "running",
        "query": "clicks",
        "batch": "12",
        "rows": "4,500",
        "rate": "151/s",
        "batch time": "1,999 ms",
        "lag": "7",
    }
    assert rows["other"]["state"] == "failed"
    assert rows["other"]["last"] == "topic t is not there"


def test_console_page_of_a_large_cluster_has_a_bounded_size() -> None:
    found = facts(2000, isr=(1,))
    told = seen(found)
    html = page(PageContext(1, "1"), told, [])
    assert len(told.attention) == ATTENTION_MAX
    assert f"and {2000 - ATTENTION_SHOWN:,} more" in html
    assert f"the busiest {TOPICS_SHOWN} of 2,000" in html
    assert html.count("<tr>") == 3 + ATTENTION_SHOWN + TOPICS_SHOWN + 2
    assert len(html) < 200_000


def test_function_one_topic_returns_the_partitions_of_a_topic_and_none_for_an_unknown_topic() -> None:
    found = one_topic(facts(), "topic0000")
    assert found is not None
    assert [row["partition"] for row in found["partition_states"]] == [0, 1]
    assert one_topic(facts(), "elsewhere") is None


@pytest.mark.parametrize("values", [(), (1.0,), (1.0, 2.0)])
def test_a_sparkline_needs_enough_points(values: tuple[float, ...]) -> None:
    assert sparkline(values) == ""


def test_a_sparkline_of_zeros_lies_at_the_bottom() -> None:
    assert 'points="0.0,27.0 60.0,27.0 120.0,27.0"' in sparkline((0.0, 0.0, 0.0))


def test_listeners_without_tls_that_other_machines_can_reach_are_shown_among_the_problems() -> None:
    html = page(PageContext(1, "1", warnings=["listener PLAINTEXT is <not> encrypted"]), seen(facts()), [])
    assert "Node 1: listener PLAINTEXT is &lt;not&gt; encrypted" in html
