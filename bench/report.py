"""Turns measurements into ratios, a short table, and files for later comparisons."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tools.kafka import VERSION, java

# The project's aims, as Penstock's number divided by Kafka's: (a cell's family, metric) → ratio.
AIMS = {
    ("produce", "cpu_s_per_million"): 1 / 3,
    ("produce", "cpu_s_per_gb"): 1 / 3,
    ("consume", "cpu_s_per_million"): 1 / 2,
    ("consume", "cpu_s_per_gb"): 1 / 2,
    ("share", "cpu_s_per_million"): 1 / 3,
    ("share", "records_per_s"): 1.0,
    ("paced", "p99_ms"): 1 / 2,
    ("idle", "start_s"): 1 / 10,
    ("idle", "rss_mb"): 1 / 5,
    ("idle", "pss_mb"): 1 / 5,
    ("kill-9", "serves_again_s"): 1 / 10,
    ("cluster/produce", "cpu_s_per_million"): 1 / 3,
    ("cluster/produce", "records_per_s"): 2.0,
    ("cluster/paced", "p99_ms"): 1.0,
    # in Spark's cells the other side is Spark's own Kafka connector
    ("spark/read-wire", "records_per_s"): 1.5,
    ("spark/read-files", "records_per_s"): 2.5,
}
# Absolute aims, independent of Kafka's number.
LIMITS = {
    ("groups/1000x10", "cpu_percent_of_a_core"): 30.0,
    ("move/load/1GiB", "p99_during_over_without"): 1.5,
    ("move/throttled/1GiB", "p99_during_over_without"): 1.5,
    ("cluster/failover/10", "gap_max_ms"): 1000.0,
    ("spark/growth/rows", "time_per_row_10x_over_1x"): 1.2,
    ("spark/growth/rows-and-partitions", "time_per_row_10x_over_1x"): 1.2,
}
HIGHER_IS_BETTER = {"records_per_s", "requests_per_s", "beats_per_s"}


@dataclass(slots=True)
class Line:
    """Holds a metric of a cell, with all samples of each broker in order."""

    cell: str
    metric: str
    samples: dict[str, list[float]] = field(default_factory=dict)

    def middle(self, peer: str) -> float | None:
        taken = self.samples.get(peer)
        return statistics.median(taken) if taken else None

    @property
    def ratio(self) -> float | None:
        ours, theirs = self.middle("penstock"), self.middle("kafka")
        return None if ours is None or not theirs else ours / theirs

    @property
    def aim(self) -> float | None:
        words = self.cell.split("/")
        family = "/".join(words[:2]) if words[0] in ("cluster", "spark") else words[0]
        return AIMS.get((family, self.metric))

    @property
    def limit(self) -> float | None:
        return LIMITS.get((self.cell, self.metric))

    @property
    def verdict(self) -> str:
        ours = self.middle("penstock")
        if self.limit is not None and ours is not None:
            return "met" if ours <= self.limit else "missed"
        if self.ratio is None or self.aim is None:
            return ""
        met = self.ratio >= self.aim if self.metric in HIGHER_IS_BETTER else self.ratio <= self.aim
        return "met" if met else "missed"


@dataclass(slots=True)
class Report:
    conditions: dict[str, str]
    lines: list[Line] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, cell: str, peer: str, numbers: dict[str, float]) -> None:
        for metric, value in numbers.items():
            line = next((line for line in self.lines if (line.cell, line.metric) == (cell, metric)), None)
            if line is None:
                line = Line(cell, metric)
                self.lines.append(line)
            line.samples.setdefault(peer, []).append(value)

    def markdown(self) -> str:
        parts = ["# Penstock beside Apache Kafka", ""]
        parts += [f"- {name}: {value}" for name, value in self.conditions.items()]
        parts += [
            "",
            "Medians. The ratio is Penstock's number over Kafka's: below 1 is less CPU, time or memory than Kafka;",
        ]
        parts += ["for rates, above 1 is more.", ""]
        parts += ["| cell | metric | Penstock | Kafka | ratio | aim | |", "|---|---|---:|---:|---:|---:|---|"]
        parts += [_row(line) for line in self.lines]
        if self.failures:
            parts += ["", "Not measured:", "", *(f"- {each}" for each in self.failures)]
        return "\n".join(parts) + "\n"

    def write(self, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{datetime.now(UTC):%Y-%m-%d-%H%M}.md"
        path.write_text(self.markdown())
        whole = {
            "conditions": self.conditions,
            "lines": [asdict(line) for line in self.lines],
            "failures": self.failures,
        }
        path.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n")
        return path


def _row(line: Line) -> str:
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    aim = "" if line.aim is None else f"{'≥' if line.metric in HIGHER_IS_BETTER else '≤'} {line.aim:.2f}"
    if line.limit is not None:
        aim = f"Penstock ≤ {line.limit:g}"
    numbers = (_number(line.middle("penstock")), _number(line.middle("kafka")), ratio, aim, line.verdict)
    return f"| {line.cell} | {line.metric} | {' | '.join(numbers)} |"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def conditions(notes: Iterable[str] = ()) -> dict[str, str]:
    said = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    found = {
        "taken": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": commit.stdout.strip() or "unknown",
        "machine": f"{_cpu()}, {_cores()} cores, {_memory_gb():.0f} GB, {platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Java": said[0] if said else "none",
        "Kafka": VERSION,
        "load before": f"{os.getloadavg()[0]:.1f} processes wanted to run",
    }
    return found | {f"note {at + 1}": note for at, note in enumerate(notes)}


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _memory_gb() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            return int(line.split()[1]) / 1e6
    return 0.0
