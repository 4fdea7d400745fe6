"""Checks that this machine has everything that a pipeline needs.

Does not import Spark, because the import takes seconds.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from penstock.spark.java import NoJavaError, find_java

#: Package, oldest version, first version that is too new, purpose, the extra that installs it, whether it is required.
PACKAGES = (
    ("pyspark", (4, 2), (4, 4), "the engine", "spark", True),
    ("pyarrow", (18,), None, "records as columns", "spark", True),
    ("numpy", (1, 26), None, "decoding records", "spark", True),
    ("pandas", (2, 2), (3,), "Spark Connect and pipelines", "spark", True),
    ("grpcio", (1, 67), None, "Spark Connect and pipelines", "spark", True),
    ("pyyaml", (6,), None, "pipelines", "spark", True),
    ("delta-spark", (4, 4), (4, 5), "Delta tables", "spark", False),
    ("fastavro", (1, 9), None, "value.format=avro", "formats", False),
    ("protobuf", (5,), None, "value.format=protobuf", "formats", False),
)


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    found: str
    state: str
    """ok, missing, wrong, or absent. An optional package that is not installed is absent, not missing."""
    advice: str = ""

    @property
    def good(self) -> bool:
        return self.state in ("ok", "absent")


def examine(*, bundled_java: bool = False) -> list[Finding]:
    found = [Finding("python", platform.python_version(), "ok")]
    found += [_package(*each) for each in PACKAGES]
    found.append(_java(bundled_java))
    found.append(_source())
    return found


def _package(
    name: str, oldest: tuple[int, ...], too_new: tuple[int, ...] | None, purpose: str, extra: str, required: bool
) -> Finding:
    install = f"pip install 'penstock[{extra}]'"
    try:
        text = version(name)
    except PackageNotFoundError:
        return Finding(name, "-", "missing" if required else "absent", f"for {purpose}: {install}")
    numbers = _numbers(text)
    low = ".".join(map(str, oldest))
    if numbers < oldest:
        return Finding(name, text, "wrong", f"{low} or newer is needed: {install}")
    if too_new is not None and numbers >= too_new:
        high = ".".join(map(str, too_new))
        return Finding(name, text, "wrong", f"below {high} is needed: {install}")
    return Finding(name, text, "ok")


def _numbers(text: str) -> tuple[int, ...]:
    parts = []
    for part in text.split("."):
        if not part.isdigit():
            break
        parts.append(int(part))
    return tuple(parts)


def _java(bundled_only: bool) -> Finding:
    try:
        java = find_java(bundled_only=bundled_only)
    except NoJavaError as error:
        return Finding("java", "-", "missing", str(error))
    return Finding("java", f"{java.version} from {java.origin}, {java.home}", "ok")


def _source() -> Finding:
    """Checks that the package `pyspark_penstock` is installed, because Spark finds the data source through it."""
    if find_spec("pyspark_penstock") is None:
        return Finding(
            "data source",
            "-",
            "missing",
            "run pip install --force-reinstall . in the source directory",
        )
    return Finding("data source", 'format("penstock")', "ok")
