"""Renders a report as one HTML page that contains its plots and loads no other files. Pure code."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from penstock.pipelines.report import PartitionReport, TopicReport

WIDTH, BAR, LABEL = 720, 18, 180

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733 }}
table {{ border-collapse: collapse; margin: 1rem 0 }} td, th {{ padding: .2rem .8rem .2rem 0; text-align: right }}
td:first-child, th:first-child {{ text-align: left }} th {{ border-bottom: 1px solid #9ab }}
svg text {{ font: 12px system-ui, sans-serif; fill: #1c2733 }} svg rect {{ fill: #2f7fb5 }}
pre {{ white-space: pre-wrap; background: #f2f5f7; padding: .6rem }} .warn {{ color: #a33 }}
</style></head><body><h1>{title}</h1>
"""


def page(title: str, topics: Sequence[TopicReport]) -> str:
    parts = [_HEAD.format(title=escape(title)), _overview(topics)]
    parts += [_topic(each) for each in topics]
    return "\n".join(parts) + "\n</body></html>\n"


def _overview(topics: Sequence[TopicReport]) -> str:
    head = ("topic", "partitions", "records", "bytes", "skew", "duplicates", "gaps")
    rows = [
        (
            each.topic,
            len(each.partitions),
            f"{each.records:,}",
            f"{each.bytes:,}",
            f"{each.skew:.2f}",
            f"{each.duplicates:,}",
            f"{sum(part.gaps for part in each.partitions):,}",
        )
        for each in topics
    ]
    bars = bars_of([(each.topic, each.bytes) for each in topics], "bytes")
    return f"<h2>All topics</h2>{_table(head, rows)}{bars}"


def _topic(report: TopicReport) -> str:
    head = ("partition", "records", "bytes", "first", "last", "gaps", "keys, about", "no value", "oldest", "newest")
    parts = [f"<h2>{escape(report.topic)}</h2>"]
    if report.skew > 2 and report.records:
        parts.append(f'<p class="warn">The biggest partition has {report.skew:.1f} times its share of records.</p>')
    parts.append(_table(head, [_row(each) for each in report.partitions]))
    parts.append(bars_of([(f"partition {each.partition}", each.records) for each in report.partitions], "records"))
    if report.top_keys:
        parts += ["<h3>Most frequent keys</h3>", bars_of(report.top_keys, "records")]
    if report.fields:
        parts += ["<h3>Fields of values</h3>", f"<pre>{escape(report.fields)}</pre>"]
    return "\n".join(parts)


def _row(each: PartitionReport) -> tuple[object, ...]:
    numbers = (each.records, each.bytes, each.first, each.last, each.gaps, each.keys, each.without_value)
    return (each.partition, *(f"{number:,}" for number in numbers), each.oldest, each.newest)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{body}</table>"


def bars_of(values: Sequence[tuple[str, int]], unit: str) -> str:
    """Returns a bar chart of the values as inline SVG."""
    most = max((value for _, value in values), default=0) or 1
    lines = []
    for index, (label, value) in enumerate(values):
        top = index * (BAR + 4)
        long = (WIDTH - LABEL - 110) * value / most
        short = label if len(label) <= 26 else label[:25] + "…"
        lines.append(
            f'<text x="0" y="{top + 13}">{escape(short)}</text>'
            f'<rect x="{LABEL}" y="{top}" width="{long:.1f}" height="{BAR}"><title>{escape(label)}</title></rect>'
            f'<text x="{LABEL + long + 6:.1f}" y="{top + 13}">{value:,}</text>'
        )
    tall = len(values) * (BAR + 4)
    label = escape(f"{unit} of each", quote=True)
    return f'<svg role="img" aria-label="{label}" width="{WIDTH}" height="{tall}">{"".join(lines)}</svg>'
