"""Makes Python workers start in a third of the time, and lets a task end without a long garbage collection.

Spark puts a jar and archives of its Python sources at the start of Python's path, and every worker compiles the sources
again. An installed PySpark has compiled modules. So Spark starts a small script instead of Python. The script removes
the archives from the path.
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

#: Bytes of freed memory that a worker keeps: a few times the size of one read and its columns. This is the largest
#: M_MMAP_THRESHOLD that glibc allows.
KEPT_BYTES = 32 * 1024 * 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_LAUNCHER = """\
#!/bin/sh
# Starts Python with the installed PySpark instead of the archives of its sources.
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
    """Returns the path of the script that starts Python without Spark's archives on its path.

    Writes the script if it is missing or outdated.
    """
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
    """Freezes the Python objects that the first task has loaded, so that later garbage collections skip them.

    A Spark worker collects garbage after every task. With all imported modules, a collection takes longer than a small
    task.
    """
    gc.freeze()
    keep_memory()


def keep_memory() -> bool:
    """Makes glibc keep freed buffers of some megabytes and use them again. Returns False if glibc can't do this.

    By default glibc returns such buffers to the kernel and gets new buffers, whose pages the kernel clears. With rows
    of a kilobyte this takes half of the decoding time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another libc, or Windows
        return False
    return all(mallopt(option, KEPT_BYTES) for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD))


def choose_python(environment: MutableMapping[str, str], *, local: bool) -> None:
    """Sets the Python program that executors run.

    Local executors run this environment's Python, started by the script of `launcher`. Executors on other machines may
    not have that script.
    """
    python = sys.executable
    if local and os.name == "posix":
        with suppress(OSError):  # without a directory for the script, workers only start slower
            script = launcher()
            # the directory may be mounted noexec
            python = str(script) if os.access(script, os.X_OK) else python
    environment.setdefault("PYSPARK_PYTHON", python)
