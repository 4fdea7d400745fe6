"""Runs `penstock` commands in order in another process, so that Java is started once for all of them.

with Shell(tmp_path) as shell:
    done = shell.run("pipeline", "report", "-b", broker.bootstrap)
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Java's optimising compiler does not pay off in a test of a minute.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """Returns the last line of stderr, which has the error message."""
        return (self.err.splitlines() or [""])[-1]

    def json(self) -> Any:
        return json.loads(self.out)


class Shell:
    def __init__(self, state: Path) -> None:
        """`state` is the directory in which runs are recorded, apart from those of the user who runs the tests."""
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "JDK_JAVA_OPTIONS": QUICK_JAVA, "XDG_STATE_HOME": str(state)},
        )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, *words: str) -> Done:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return Done(**json.loads(self._process.stdout.readline()))


def serve() -> None:
    from penstock.cli.main import main

    # Other output of this process on stdout must not be taken for a result.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(json.loads(line))
        print(json.dumps({"code": int(code), "out": out.getvalue(), "err": err.getvalue()}), file=answers, flush=True)


if __name__ == "__main__":
    serve()
