"""Keeps a small file for each pipeline on this machine, with its state and the progress of its queries.

The files are in the user's state directory. Pipelines write them; `penstock pipeline list|status|stop` and a node's
console read them.

Other programs may write to this directory too. A file that is too large or does not describe a run is skipped.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock import processes

MAX_BYTES = 256 * 1024
MAX_QUERIES = 100
MAX_IDS = 20
MAX_FILE_NAME = 220  # limit of file systems, less the extension and the prefix of the temporary file
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Query:
    """Describes a streaming query of a pipeline after its last batch."""

    name: str
    running: bool
    batch: int
    rows: int
    """Rows of the last batch."""
    total_rows: int
    """Rows since the query was started."""
    rows_per_second: float
    batch_ms: int
    lag: int
    """Offsets that the query has not read yet."""
    topic_ids: tuple[str, ...] = ()
    """Ids of the topics that it reads, at most MAX_IDS: a cluster recognises its pipelines by them."""


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    pid: int
    spec: str
    """The project's file, or a description of a copy's source and target."""
    began: str
    state: str = "running"
    last: str = ""
    """The newest event; for a failed run, the cause."""
    queries: Mapping[str, Query] = field(default_factory=dict)
    """Queries by their ids."""
    started: str = ""
    """Start time of the process, which distinguishes it from a later process with the same pid."""
    clusters: tuple[str, ...] = ()
    """Ids of the clusters that it reads from and writes to; empty if only its queries' topic ids are known."""

    @property
    def alive(self) -> bool:
        return self.state == "running" and self.started != "" and processes.started(self.pid) == self.started

    @property
    def shown(self) -> str:
        return "killed" if self.state == "running" and not self.alive else self.state


def directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "penstock" / "pipelines"


def save(run: Run) -> None:
    place = directory()
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = _path(run.name)
    aside = path.with_name(f".{path.name}.{run.pid}")
    aside.write_text(json.dumps(asdict(run)))
    aside.replace(path)


def _path(name: str) -> Path:
    """Returns the path of a run's file. The file is inside the directory, whatever the run's name contains."""
    return directory() / f"{quote(name, safe='')[:MAX_FILE_NAME]}.json"


def begin(name: str, spec: str, clusters: Iterable[str] = ()) -> Run:
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return Run(name, os.getpid(), spec, began, started=processes.started(os.getpid()), clusters=tuple(clusters))


def load(name: str) -> Run | None:
    return _read(_path(name))


def load_all() -> list[Run]:
    return [run for path in sorted(directory().glob("*.json")) if (run := _read(path)) is not None]


def recent(count: int) -> list[Run]:
    """Returns the most recently updated runs, newest first."""
    written: list[tuple[float, Path]] = []
    for path in directory().glob("*.json"):
        try:
            written.append((path.stat().st_mtime, path))
        except OSError:
            continue  # deleted since it was listed
    written.sort(reverse=True)
    return [run for _, path in written[:count] if (run := _read(path)) is not None]


def _read(path: Path) -> Run | None:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        run = None if len(content) > MAX_BYTES else _parse(json.loads(content))
        return run if run is not None and _path(run.name) == path else None
    except (OSError, ValueError, RecursionError):
        return None


def _parse(told: Any) -> Run | None:
    if not isinstance(told, dict):
        return None
    texts = [told.get(name, "") for name in ("name", "spec", "began", "last", "started")]
    pid, state, queries = told.get("pid"), told.get("state", "running"), told.get("queries", {})
    if not all(isinstance(each, str) for each in (*texts, state)) or not isinstance(queries, dict):
        return None
    if type(pid) is not int or not 0 < pid < 2**31:  # pids below 1 would signal whole process groups
        return None
    name, spec, began, last, started = texts
    figures = {key: query for key, each in queries.items() if (query := _parse_query(each)) is not None}
    return Run(name, pid, spec, began, state, last, figures, started, _parse_ids(told.get("clusters")))


def _parse_ids(told: Any) -> tuple[str, ...]:
    return tuple(each for each in told if isinstance(each, str))[:MAX_IDS] if isinstance(told, list) else ()


def _parse_query(told: Any) -> Query | None:
    if not isinstance(told, dict) or not isinstance(told.get("name"), str):
        return None
    numbers = {each.name: told.get(each.name) for each in fields(Query) if each.name not in ("name", "topic_ids")}
    if not all(isinstance(value, int | float) and 0 <= value < 2**63 for value in numbers.values()):
        return None
    return Query(told["name"], **numbers, topic_ids=_parse_ids(told.get("topic_ids")))  # type: ignore[arg-type]


def free_name(wanted: str, spec: str | None = None) -> str:
    """Returns `wanted` as the name of a new run, with a number added if the name is taken.

    A name is taken if a running pipeline has it, or if the last run with this name was of another project or job.
    """
    name, number = wanted, 1
    while (run := load(name)) is not None and _is_another(run, spec):
        number += 1
        name = f"{wanted}-{number}"
    return name


def _is_another(run: Run, spec: str | None) -> bool:
    return (run.alive and run.pid != os.getpid()) or (spec is not None and run.spec != spec)


class Recording:
    """Keeps a run's file current. If the file can't be written, the pipeline runs anyway, but is not listed."""

    def __init__(self, run: Run, *, keep: bool = True, on_problem: Callable[[str], None] = lambda _: None) -> None:
        self._run = run
        self._keep = keep
        self._on_problem = on_problem
        self._lock = threading.Lock()  # progress comes from a Spark thread, the end from the main thread

    def __enter__(self) -> Recording:
        self._save()
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, where: object) -> None:
        if problem is None:
            self.note(state="done")
        elif isinstance(problem, KeyboardInterrupt):
            self.note(state="stopped")
        else:
            self.note(state="failed", last=str(problem))

    def note(self, **changes: str) -> None:
        with self._lock:
            self._run = replace(self._run, **changes)  # type: ignore[arg-type]
            self._save()

    def progressed(self, query_id: str, query: Query, last: str) -> None:
        """Records a finished batch of one of the run's queries."""
        with self._lock:
            known = {each: found for each, found in self._run.queries.items() if each != query_id}
            for each in list(known)[: max(0, len(known) + 1 - MAX_QUERIES)]:
                del known[each]
            self._run = replace(self._run, queries={**known, query_id: query}, last=last)
            self._save()

    def _save(self) -> None:
        if not self._keep:
            return
        try:
            save(self._run)
        except OSError as problem:
            self._keep = False
            self._on_problem(
                f"{directory()} can't be written ({problem.strerror}): `pipeline list` won't know this run"
            )


def stop(run: Run) -> bool:
    """Sends SIGTERM to a run. Returns False if the run has already ended.

    The pipeline's next run repeats the work that this run has not committed.
    """
    return processes.terminate(run.pid, run.started)
