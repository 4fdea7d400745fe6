"""Renders the console: one page, from the same data as the JSON API. Pure.

The page's script fetches the page again every two seconds and replaces the changed parts. So no second renderer is
needed, and the page also works without the script. All text from outside is escaped with `escape`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any

from penstock.client.cluster_facts import readable
from penstock.http.overview import Overview, Row
from penstock.http.pipelines import Pipeline

if TYPE_CHECKING:
    from penstock.broker.controlplane.failovers import Failover
    from penstock.replication.directory_move import MoveFigures

TOPICS_SHOWN = 100
ATTENTION_SHOWN = 12
MOVES_SHOWN = 20
EVENTS_SHOWN = 20
PIPELINES_SHOWN = 20
LAST_SHOWN = 160
SPARK_WIDTH, SPARK_HEIGHT = 120, 28

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="/favicon.svg">
<link rel="stylesheet" href="/console.css">
<script src="/console.js" defer></script>
</head>
<body>
<header>
<h1>Penstock</h1>
<p id="health" class="pill {mood}">{health}</p>
<p class="who">cluster <code>{cluster}</code> as node {node} sees it</p>
</header>
<p id="silence" hidden>No answer from this node. What you see is old.</p>
<main id="live">
{body}
</main>
<footer><a href="/metrics">metrics</a> <a href="/api/">JSON</a> <span>Penstock {version}</span></footer>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class PageContext:
    """Holds facts about the node that renders the page: id, version, failovers it noticed, problems of its disks."""

    node_id: int
    version: str
    failovers: Sequence[Failover] = ()
    failed_directories: Mapping[str, str] = field(default_factory=dict)
    """Offline directories of this node, with the error of the disk."""
    damaged: Sequence[Row] = ()
    """The replicas of this node with a damaged batch: topic, partition and reason."""
    short_of_space: Sequence[str] = ()
    """The reasons why directories accept no more records of clients, such as too little free space."""
    moves: Sequence[MoveFigures] = ()
    """The moves of this node's replicas between its log directories."""
    events: Sequence[Row] = ()
    """The newest events of the cluster."""
    warnings: Sequence[str] = ()
    """Sentences about this node's configuration, such as listeners without TLS."""


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    cell: Callable[[Row], str]
    """A function that returns a row's cell as HTML that is already escaped."""
    kind: str = ""
    """The CSS class of the column: `number`, or another style."""


def page(context: PageContext, overview: Overview, pipelines: Sequence[Pipeline]) -> str:
    mood, health = _health(overview.summary, context)
    parts = [
        _cards(overview),
        _attention(overview, context),
        _nodes(overview.nodes),
        _topics(overview.topics),
        _moves(context),
        _pipelines(pipelines),
        _events(context.events),
    ]
    return PAGE.format(
        title=escape(f"{health} · Penstock"),
        mood=mood,
        health=escape(health),
        cluster=escape(str(overview.summary["cluster_id"])),
        node=context.node_id,
        version=escape(context.version),
        body="\n".join(parts),
    )


def _health(summary: Row, context: PageContext) -> tuple[str, str]:
    wrong = [
        f"{summary[name]:,} {words}"
        for name, words in (
            ("offline", "offline"),
            ("under_min_isr", "under min ISR"),
            ("under_replicated", "under-replicated"),
            ("quarantined", "in quarantine"),
            ("fenced", "node fenced" if summary["fenced"] == 1 else "nodes fenced"),
        )
        if summary[name]
    ]
    if context.failed_directories:
        wrong.append("a directory has failed")
    if context.short_of_space:
        wrong.append("a directory is short of space")
    if context.damaged:
        wrong.append(f"{len(context.damaged):,} damaged")
    if summary["offline"] or summary["under_min_isr"]:
        return "bad", ", ".join(wrong)
    return ("warn", ", ".join(wrong)) if wrong else ("good", "all in sync")


# --- cells ----------------------------------------------------------------------------------------------------------


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: "" if row[name] is None else escape(str(row[name]))


def _number(name: str) -> Callable[[Row], str]:
    return lambda row: "–" if row[name] is None else f"{row[name]:,}"


def _rate(name: str) -> Callable[[Row], str]:
    return lambda row: "–" if row[name] is None else f"{row[name]:,.0f}/s"


def _bytes(name: str) -> Callable[[Row], str]:
    return lambda row: escape(readable(row[name]) or "–")


def _bytes_rate(row: Row) -> str:
    rate = row["bytes_per_second"]
    return "–" if rate is None else f"{escape(readable(round(rate)) or '')}/s"


def _ids(name: str) -> Callable[[Row], str]:
    return lambda row: escape(", ".join(map(str, row[name])))


def _pill(word: str, mood: str) -> str:
    return f'<span class="pill {mood}">{escape(word)}</span>'


def _node_state(row: Row) -> str:
    return _pill(row["state"], {"up": "good", "cordoned": "warn", "silent": "warn"}.get(row["state"], "bad"))


def _problem(row: Row) -> str:
    return _pill(row["problem"], "warn" if row["problem"] == "under-replicated" else "bad")


def _pill_style(state: str) -> str:
    return {"running": "good", "done": "", "stopped": ""}.get(state, "bad")


NODES = (
    Column("node", _text("node"), "name id"),
    Column("state", _node_state),
    Column("controller", _text("controller")),
    Column("address", _text("address")),
    Column("rack", _text("rack")),
    Column("leads", _number("leaders"), "number"),
    Column("replicas", _number("replicas"), "number"),
    Column("out of sync", _number("out_of_sync"), "number"),
    Column("lag", _number("lag"), "number"),
    Column("metadata lag", _number("metadata_lag"), "number"),
    Column("on disk", _bytes("bytes"), "number"),
)
ATTENTION = (
    Column("topic", _text("topic"), "name"),
    Column("problem", _problem),
    Column("partitions", lambda row: f"{row['partitions']:,} of {row['of']:,}", "number"),
    Column("not in sync on nodes", _ids("out_of_sync")),
    Column("lag", lambda row: "unknown" if row["lag"] is None else f"{row['lag']:,}", "number"),
)
TOPICS = (
    Column("topic", _text("topic"), "name"),
    Column("partitions", _number("partitions"), "number"),
    Column("replicas", _number("replicas"), "number"),
    Column("end offsets", _number("end_offset"), "number"),
    Column("records in", _rate("records_per_second"), "number"),
    Column("bytes in", _bytes_rate, "number"),
    Column("size", _bytes("bytes"), "number"),
)
MOVES = (
    Column("replica", _text("replica"), "name"),
    Column("state", _text("state")),
    Column("from", _text("source")),
    Column("to", _text("target")),
    Column("records left", _number("records_left"), "number"),
    Column("bytes left", _bytes("bytes_left"), "number"),
    Column("rate", _bytes_rate, "number"),
    Column("time left", lambda row: "–" if row["seconds_left"] is None else f"{row['seconds_left']:,.0f} s", "number"),
)
PIPELINES = (
    Column("pipeline", _text("pipeline"), "name"),
    Column("state", lambda row: _pill(row["state"], _pill_style(row["state"]))),
    Column("query", _text("query")),
    Column("batch", _number("batch"), "number"),
    Column("rows", _number("total_rows"), "number"),
    Column("rate", _rate("rows_per_second"), "number"),
    Column("batch time", lambda row: "–" if row["batch_ms"] is None else f"{row['batch_ms']:,} ms", "number"),
    Column("lag", _number("lag"), "number"),
    Column("last", _text("last"), "last"),
)


# --- sections -------------------------------------------------------------------------------------------------------


def _cards(overview: Overview) -> str:
    told = overview.summary
    up = told["nodes"] - told["fenced"]
    rate = told["records_per_second"]
    cards = (
        ("nodes", f"{up} of {told['nodes']} up", ""),
        ("controller", f"node {told['controller']}" if told["controller"] >= 0 else "none", ""),
        ("partitions", f"{told['partitions']:,} in {told['topics']:,} topic{'s' * (told['topics'] != 1)}", ""),
        ("records in", "…" if rate is None else f"{rate:,.0f}/s", sparkline(overview.history)),
        ("on disk", readable(told["bytes"]) or "–", ""),
    )
    shown = "".join(
        f'<div class="card"><dt>{escape(title)}</dt><dd>{escape(value)}{drawn}</dd></div>'
        for title, value, drawn in cards
    )
    return f'<dl class="cards">{shown}</dl>'


def sparkline(values: Sequence[float]) -> str:
    """Returns the values of the last minutes as an SVG line; an empty string if there are too few points."""
    if len(values) < 3:
        return ""
    most = max(values) or 1.0
    step = SPARK_WIDTH / (len(values) - 1)
    high = SPARK_HEIGHT - 2
    points = " ".join(
        f"{number * step:.1f},{1 + high - high * value / most:.1f}" for number, value in enumerate(values)
    )
    return (
        f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" role="img" aria-label="records in, lately">'
        f'<polyline points="{points}"/></svg>'
    )


def _attention(overview: Overview, context: PageContext) -> str:
    """Renders the section with problems: first their causes as sentences, then the affected topics."""
    causes = "".join(f"<li>{escape(each)}</li>" for each in _causes(overview.nodes, context))
    said = f'<ul class="causes">{causes}</ul>' if causes else ""
    if not overview.wrong_topics:
        return _section("Needs attention", said or '<p class="calm">No problems found.</p>')
    shown = overview.wrong_topics[:ATTENTION_SHOWN]
    more = len(overview.wrong_topics) - len(shown)
    rest = f'<p class="calm">and {more:,} more: <code>penstock cluster status --problems</code></p>' if more else ""
    return _section("Needs attention", said + _table(ATTENTION, shown) + rest)


def _causes(nodes: Sequence[Row], context: PageContext) -> Iterator[str]:
    gone = {each.broker_id: each for each in context.failovers}
    for row in nodes:
        name = f"Node {row['node']} ({row['address']})"
        failover = gone.get(row["node"])
        if row["quarantine"]:
            yield f"{name} is in quarantine ({row['quarantine']}): penstock guard release {row['node']} releases it."
        elif row["state"] == "fenced" and failover is not None:
            how = f": it {failover.how}" if failover.how else ""
            yield f"{name} was fenced at {_time(failover.elected_ms)}{how}."
        elif row["state"] == "fenced":
            yield f"{name} is fenced: it was stopped, or has not caught up since it started."
        elif row["state"] == "silent":
            yield f"{name} does not answer node {context.node_id}."
    for warning in context.warnings:
        yield f"Node {context.node_id}: {warning}"
    for directory, error in context.failed_directories.items():
        where = f"Directory {directory} of node {context.node_id}"
        yield f"{where} has failed ({error}): replace the disk and restart the node."
    for reason in context.short_of_space:
        yield f"{reason}: records of clients are refused until space is freed."
    for row in context.damaged[:ATTENTION_SHOWN]:
        name = f"{row['topic']}-{row['partition']} on node {context.node_id}"
        yield f"{name} is damaged ({row['reason']}): stop the node and move this replica away; it is then copied again."


def _moves(context: PageContext) -> str:
    """Renders the moves of replicas between this node's log directories; an empty string if there are none."""
    if not context.moves:
        return ""
    rows = [
        {
            "replica": f"{each.topic}-{each.partition}",
            "state": each.state.value,
            "source": each.source,
            "target": each.target,
            "records_left": each.records_left,
            "bytes_left": each.bytes_left,
            "bytes_per_second": each.bytes_per_second,
            "seconds_left": each.seconds_left,
        }
        for each in context.moves[:MOVES_SHOWN]
    ]
    more = len(context.moves) - len(rows)
    rest = f'<p class="calm">and {more:,} more: <code>penstock logdir describe</code></p>' if more else ""
    return _section(f"Moves between log directories of node {context.node_id}", _table(MOVES, rows) + rest)


EVENTS = (
    Column("time", lambda row: escape(_time(row["at_ms"])), "time"),
    Column("node", _number("node"), "number"),
    Column("kind", _text("kind")),
    Column("event", _text("text"), "last"),
)


def _events(events: Sequence[Row]) -> str:
    """Renders the newest events; an empty string if there are none."""
    if not events:
        return ""
    rest = '<p class="calm">More: <code>penstock events</code> or <a href="/api/events">/api/events</a></p>'
    return _section("Events", _table(EVENTS, events) + rest)


def _time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _nodes(nodes: Sequence[Row]) -> str:
    racks = any(row["rack"] for row in nodes)
    return _section("Nodes", _table([each for each in NODES if racks or each.title != "rack"], nodes))


def _topics(topics: Sequence[Row]) -> str:
    if not topics:
        return _section("Topics", '<p class="calm">There is none yet.</p>')
    shown, rest = topics, ""
    if len(topics) > TOPICS_SHOWN:
        shown = sorted(topics, key=lambda row: (-(row["records_per_second"] or 0), -(row["bytes"] or 0), row["topic"]))
        shown = shown[:TOPICS_SHOWN]
        rest = f'<p class="calm">the busiest {TOPICS_SHOWN} of {len(topics):,}: <a href="/api/topics">more</a></p>'
    return _section("Topics", _table(TOPICS, shown) + rest)


def _pipelines(pipelines: Sequence[Pipeline]) -> str:
    rows = [row for pipeline in pipelines[:PIPELINES_SHOWN] for row in _pipeline(pipeline)]
    if not rows:
        return _section("Pipelines", '<p class="calm">None has run on this machine.</p>')
    more = len(pipelines) - PIPELINES_SHOWN
    rest = f'<p class="calm">and {more} earlier ones: <code>penstock pipeline list</code></p>' if more > 0 else ""
    told = any(row["last"] for row in rows)
    return _section("Pipelines", _table([each for each in PIPELINES if told or each.kind != "last"], rows) + rest)


def _pipeline(pipeline: Pipeline) -> list[Row]:
    """Returns the table rows of a pipeline: one for each query, or one if it has no queries."""
    last = pipeline.last if len(pipeline.last) <= LAST_SHOWN else pipeline.last[: LAST_SHOWN - 1] + "…"
    known: Row = {"pipeline": pipeline.name, "state": pipeline.state, "last": "" if pipeline.queries else last}
    if pipeline.state == "failed":
        known["last"] = last
    nothing: dict[str, Any] = dict.fromkeys(("query", "batch", "total_rows", "rows_per_second", "batch_ms", "lag"))
    if not pipeline.queries:
        return [{**known, **nothing}]
    return [
        {
            **known,
            "query": each.name,
            "batch": each.batch,
            "total_rows": each.total_rows,
            "rows_per_second": each.rows_per_second,
            "batch_ms": each.batch_ms,
            "lag": each.lag,
        }
        for each in pipeline.queries
    ]


def _section(title: str, inside: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inside}</section>"


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Renders a table. Each cell carries its column's title, because on narrow screens each row becomes a block."""
    head = "".join(f'<th scope="col" class="{each.kind}">{escape(each.title)}</th>' for each in columns)
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{each.kind}" data-title="{escape(each.title)}">{each.cell(row)}</td>' for each in columns
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
