"""Draws the report page of a run: the verdict, and a lane over virtual time for each machine, partition, fault and
actor.

A partition's lane has a bar for each leader, in the leader's colour, and a line for the high watermark. The page is one
file without scripts and without external resources; tooltips explain bars and dots.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.sim.checks.history import Outcome
from penstock.sim.engine.machine import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.sim.checks.story import StoryLine
    from penstock.sim.checks.watcher import Watcher
    from penstock.sim.run.simulation import Verdict

WIDTH, LEFT, LANE = 1200, 130, 26
LEVELS_SHOWN = 300
STATE_COLOURS = {State.STARTING: "read", State.SERVING: "good", State.OFF: "bad", State.DOWN: "down"}

STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --faint: #8795a5; --line: #dde3ea; --good: #2f855a; --bad: #c53030;
  --down: #e2e8f0; --fault: #dd6b20; --read: #4a78c2; --paper: #ffffff; --n1: #7fb3d5; --n2: #f0b27a; --n3: #82c091;
  --n4: #c39bd3; --n5: #d7c36b; --n6: #e59aa6; --n7: #8fd0cd }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf5; --faint: #8b9bb0; --line: #2c3846; --down: #3a4656;
  --paper: #141a21 } }
body { font: 14px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 82rem; padding: 0 1rem }
h1 { font-size: 1.3rem } .ok { color: var(--good) } .broken { color: var(--bad) } pre { white-space: pre-wrap }
svg { width: 100%; height: auto; border: 1px solid var(--line); border-radius: 6px }
svg text { fill: var(--ink); font-size: 12px } svg .axis { fill: var(--faint) } svg line { stroke: var(--line) }
svg .level { fill: none; stroke: var(--ink); stroke-width: 1.2 }
table { border-collapse: collapse } td { padding: .1rem .8rem .1rem 0; vertical-align: top } td:first-child {
  text-align: right; font-variant-numeric: tabular-nums; color: var(--faint) }
"""


class _Lanes:
    def __init__(self, end: float) -> None:
        self._scale = (WIDTH - LEFT - 10) / max(end, 1e-9)
        self._end = end
        self._shapes: list[str] = []
        self._count = 0

    def x(self, time: float) -> float:
        return LEFT + min(time, self._end) * self._scale

    def lane(self, name: str) -> float:
        top = 24 + self._count * LANE
        self._count += 1
        self._shapes.append(f'<text x="8" y="{top + 17}">{escape(name)}</text>')
        self._shapes.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{top + LANE}" y2="{top + LANE}"/>')
        return top

    def bar(self, top: float, start: float, stop: float, colour: str, title: str) -> None:
        width = max(self.x(stop) - self.x(start), 2.0)
        self._shapes.append(
            f'<rect x="{self.x(start):.1f}" y="{top + 6}" width="{width:.1f}" height="{LANE - 12}" rx="3" '
            f'fill="var(--{colour})"><title>{escape(title)}</title></rect>'
        )

    def tick(self, top: float, time: float, colour: str, title: str) -> None:
        self._shapes.append(
            f'<rect x="{self.x(time):.1f}" y="{top + 7}" width="1.5" height="{LANE - 14}" '
            f'fill="var(--{colour})"><title>{escape(title)}</title></rect>'
        )

    def climb(self, top: float, shares: list[tuple[float, float]], title: str) -> None:
        """Draws a step line in a lane. `shares` lists pairs of a time and a height, as a share of the lane's height."""
        points = shares[:1]
        for (_, before), (time, share) in pairwise(shares):
            points += [(time, before), (time, share)]
        points.append((self._end, shares[-1][1]))
        drawn = " ".join(f"{self.x(time):.1f},{top + LANE - 4 - share * (LANE - 8):.1f}" for time, share in points)
        self._shapes.append(f'<polyline class="level" points="{drawn}"><title>{escape(title)}</title></polyline>')

    def svg(self) -> str:
        height = 34 + self._count * LANE
        step = max(1, round(self._end / 12))
        axis = "".join(
            f'<text class="axis" x="{self.x(second):.0f}" y="15">{second} s</text>'
            for second in range(0, int(self._end) + 1, step)
        )
        return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{axis}{"".join(self._shapes)}</svg>'


def _machine_bars(story: list[StoryLine], name: str, end: float) -> Iterable[tuple[float, float, str, str]]:
    """Yields (start, stop, colour, title) of each state of a machine."""
    start, colour, title = 0.0, "down", "not started"
    for line in story:
        if line.who == name and line.state is not None and line.state is not State.STOPPING:
            yield start, line.time, colour, title
            start, title, colour = line.time, f"{line.time:.3f} s: {line.what}", STATE_COLOURS[line.state]
    yield start, end, colour, title


def _partition_lanes(lanes: _Lanes, watcher: Watcher, end: float) -> None:
    for (topic, index), led in sorted(watcher.leaderships.items()):
        top = lanes.lane(f"{topic}-{index}"[:16])
        for number, each in enumerate(led):
            stop = led[number + 1].time if number + 1 < len(led) else end
            in_sync = ", ".join(f"n{node}" for node in each.isr)
            if each.leader >= 0:
                what = f"{each.time:.3f} s: n{each.leader} leads in epoch {each.epoch}, in sync {in_sync}"
                lanes.bar(top, each.time, stop, f"n{each.leader}", what)
            else:
                lanes.bar(top, each.time, stop, "bad", f"{each.time:.3f} s: no leader, in sync {in_sync}")
        levels = watcher.progress.get((topic, index), [])
        highest = max((level.high_watermark for level in levels), default=0)
        if highest:
            step = max(1, len(levels) // LEVELS_SHOWN)
            shares = [(level.time, level.high_watermark / highest) for level in levels[::step]]
            lanes.climb(top, shares, f"high watermark, up to {highest}")


def render(verdict: Verdict) -> str:
    plan = verdict.plan
    end = verdict.virtual_s
    lanes = _Lanes(end)
    for number in range(1, plan.nodes + 1):
        top = lanes.lane(f"n{number}")
        for start, stop, colour, title in _machine_bars(verdict.story, f"n{number}", end):
            lanes.bar(top, start, stop, colour, title)
    if verdict.watcher is not None:
        _partition_lanes(lanes, verdict.watcher, end)
    for fault in plan.faults:
        lanes.bar(lanes.lane(fault.kind), fault.at, fault.at + fault.lasts, "fault", str(fault))
    history = verdict.history
    for actor in plan.actors:
        name = f"{actor.kind[:5]}{actor.index}"
        top = lanes.lane(name)
        for write in history.writes:
            if write.writer.startswith(f"{name}#"):
                done = write.outcome is Outcome.DONE
                where = f"{write.partition[0]}-{write.partition[1]} offset {write.offset}"
                lanes.tick(top, write.began, "good" if done else "bad", f"write {write.number}: {where}")
        for read in history.reads[:: max(1, len(history.reads) // 2_000)]:
            if read.reader.startswith(f"{name}#"):
                lanes.tick(
                    top, read.ended, "read", f"read {read.partition[0]}-{read.partition[1]} offset {read.offset}"
                )
    return _page(verdict, lanes.svg())


def _page(verdict: Verdict, picture: str) -> str:
    plan = verdict.plan
    if verdict.ok:
        outcome = '<p class="ok">All promises kept.</p>'
    else:
        items = "".join(f"<li><pre>{escape(str(each))}</pre></li>" for each in verdict.violations)
        outcome = f'<ul class="broken">{items}</ul>'
    rows = "".join(
        f"<tr><td>{event.time:.3f} s</td><td>{escape(event.who)}</td><td>{escape(event.what)}</td></tr>"
        for event in verdict.story
    )
    title = f"seed {plan.seed}, profile {plan.profile}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>'
        f"<body><h1>{title}</h1>{outcome}{picture}<h2>What happened</h2><table>{rows}</table></body></html>\n"
    )


def write_report(verdict: Verdict, path: str) -> None:
    with open(path, "w", encoding="utf-8") as page:
        page.write(render(verdict))
