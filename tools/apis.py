"""Prints docs/apis.md: every API of Kafka 4.3, the versions served, and the files that serve and test it.

`make docs` writes the page; a test fails if it is out of date.
"""

import re
import sys
from pathlib import Path

from penstock.broker.handlers.registry import HANDLERS, served_versions
from penstock.protocol.apis import APIS, Api

ROOT = Path(__file__).resolve().parent.parent
TESTS_SHOWN = 3

INTRODUCTION = """\
# APIs

Every request of Kafka 4.3, by key. *Kafka* is the range of versions that Apache Kafka 4.3 declares, *served* the range
that Penstock answers and advertises in ApiVersions; a key that isn't served closes the connection, as in Kafka.
Messages of all of them are declared in `src/penstock/protocol/messages/`, one module per key, served or not.

This page is generated: `make docs`.
"""


def tests_by_module() -> dict[str, list[str]]:
    """Returns the test files that name each API module."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        relative = path.relative_to(ROOT)
        if relative.is_relative_to("tests/unit/protocol"):
            continue
        for module in sorted(set(re.findall(r"\bapi_\d\d_[a-z_]+\b", path.read_text(encoding="utf-8")))):
            found.setdefault(module, []).append(relative.as_posix())
    return found


def span(versions: range) -> str:
    if not versions:
        return ""
    return str(versions.start) if len(versions) == 1 else f"{versions.start}–{versions.stop - 1}"


def link(path: str) -> str:
    return f"[{Path(path).name}](../{path})"


def row(api: Api, tests: dict[str, list[str]]) -> str:
    handler = HANDLERS.get(api.key)
    cells = (
        str(api.key),
        api.name,
        span(range(api.min_version, api.max_version + 1)),
        span(served_versions(api.key)),
        link(f"src/penstock/broker/handlers/{handler}.py") if handler else "",
        " ".join(link(path) for path in ranked(tests.get(api.module, []), api)) if handler else "",
    )
    return f"| {' | '.join(cells)} |"


def ranked(paths: list[str], api: Api) -> list[str]:
    """Sorts tests: files named after the API first, then unit tests, then the others."""
    order = sorted(
        paths, key=lambda path: (api.snake_name not in path, not path.startswith("tests/unit/broker/"), path)
    )
    return order[:TESTS_SHOWN]


def page() -> str:
    tests = tests_by_module()
    lines = ["| key | API | Kafka | served | handler | tests |", "|---:|---|---|---|---|---|"]
    lines += [row(api, tests) for api in APIS.values()]
    served = sum(api.key in HANDLERS for api in APIS.values())
    return f"{INTRODUCTION}\n{served} of {len(APIS)} are served.\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
