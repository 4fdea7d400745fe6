"""Which pipelines run on this machine: a small file for each, in the user's state directory."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Run:
    name: str
    pid: int
    spec: str
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


def load(name: str) -> Run | None:
    try:
        return Run(**json.loads((directory() / f"{name}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def load_all() -> list[Run]:
    names = sorted(path.stem for path in directory().glob("*.json"))
    return [run for name in names if (run := load(name)) is not None]


def stop(run: Run) -> None:
    """Asks for a clean stop: what was not committed is done by the next run."""
    os.kill(run.pid, signal.SIGTERM)
