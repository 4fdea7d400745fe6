"""Which pipelines run on this machine: a small file for each, in the user's state directory."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    pid: int
    spec: str
    """The project's file, or what is copied where."""
    began: str
    state: str = "running"
    last: str = ""
    """The newest event, or why it failed."""

    @property
    def alive(self) -> bool:
        if self.state != "running":
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True

    @property
    def shown(self) -> str:
        return "killed" if self.state == "running" and not self.alive else self.state


def directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base) / "penstock" / "pipelines"


def save(run: Run) -> None:
    place = directory()
    place.mkdir(parents=True, exist_ok=True)
    aside = place / f".{run.name}.{run.pid}"
    aside.write_text(json.dumps(asdict(run)))
    aside.replace(place / f"{run.name}.json")


def begin(name: str, spec: str) -> Run:
    return Run(name, os.getpid(), spec, datetime.now(UTC).isoformat(timespec="seconds"))


def load(name: str) -> Run | None:
    try:
        return Run(**json.loads((directory() / f"{name}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def load_all() -> list[Run]:
    names = sorted(path.stem for path in directory().glob("*.json"))
    return [run for name in names if (run := load(name)) is not None]


def free_name(wanted: str) -> str:
    """The name, with a number if a pipeline of that name runs."""
    name, number = wanted, 1
    while (run := load(name)) is not None and run.alive and run.pid != os.getpid():
        number += 1
        name = f"{wanted}-{number}"
    return name


class Recording:
    """Keeps a run's file current. Where none can be written the pipeline runs all the same, and nobody can list it."""

    def __init__(self, run: Run, *, keep: bool = True, on_problem: Callable[[str], None] = lambda _: None) -> None:
        self._run = run
        self._keep = keep
        self._on_problem = on_problem
        self._lock = threading.Lock()  # progress comes from a thread of Spark's, the end from the command's own

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


def stop(run: Run) -> None:
    """Asks for a clean stop: what was not committed is done by the next run."""
    os.kill(run.pid, signal.SIGTERM)
