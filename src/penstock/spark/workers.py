"""Python workers that start in a third of the time, and end a task at once.

Spark puts its own modules in front of the path, in archives of sources that every worker compiles anew, and one of its
jars. Where PySpark is installed, compiled modules are there as well: a small script in Python's place takes the
archives out of the path.
"""

from __future__ import annotations

import ctypes
import gc
import os
import stat
import sys
import tempfile
from collections.abc import MutableMapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from penstock.spark.java import hash_text

#: What a worker may hold on to: a few times what one read and its columns take. glibc allows no more of the second.
KEPT_BYTES = 32 * 1024 * 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_LAUNCHER = """\
#!/bin/sh
# Starts Python with the PySpark that is installed instead of the archives of its sources.
IFS=:
kept=
for place in $PYTHONPATH; do
  case "$place" in
    */pyspark.zip | */py4j-*-src.zip | */spark-core_*.jar) ;;
    *) kept="$kept:$place" ;;
  esac
done
PYTHONPATH="${{kept#:}}"
export PYTHONPATH
exec "{python}" "$@"
"""


def launcher(python: str = sys.executable, parent: Path | None = None) -> Path:
    """The script, made if it is not there."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    parent = parent or Path(home) / "penstock"
    place = parent / f"python-{hash_text(python):x}"
    text = _LAUNCHER.format(python=python)
    if not place.is_file() or place.read_text() != text:
        parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(aside).chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        Path(aside).replace(place)
    return place


@cache
def settle() -> None:
    """What is loaded by the first task stays: no collection looks at it again.

    After every task a worker of Spark's collects garbage, and with all that was imported that takes longer than a small
    task does.
    """
    gc.freeze()
    keep_memory()


def keep_memory() -> bool:
    """Buffers of some megabytes, let go for the next ones, stay with the process: False where that can't be said.

    As it comes, glibc gives them back to the kernel and asks anew for each, which clears every page of it again: half
    of what it takes to decode rows of a kilobyte.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another libc, or Windows
        return False
    return all(mallopt(option, KEPT_BYTES) for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD))


def choose_python(environment: MutableMapping[str, str], *, local: bool) -> None:
    """Executors of this machine run in this environment, where the source is installed; others may lack the script."""
    python = sys.executable
    if local and os.name == "posix":
        with suppress(OSError):  # no place for a script: workers start slower
            script = launcher()
            # not where nothing may be run from
            python = str(script) if os.access(script, os.X_OK) else python
    environment.setdefault("PYSPARK_PYTHON", python)
