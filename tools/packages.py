"""Prints the table of packages in docs/architecture.md: `python -m tools.packages`.

The lines are counted from the files, and "may import" is read from the layers in `.importlinter`.
"""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "penstock"
#: Single modules of the lowest layers, one row for all of them.
SHARED = ("runs", "allowance", "check", "clock", "histogram", "processes", "spelling")


def layers() -> list[list[str]]:
    """Returns the existing packages of each layer, the highest layer first."""
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    lines = contracts["importlinter:contract:layers"]["layers"].strip().splitlines()
    named = [re.findall(r"\w+", line) for line in lines]
    return [[each for each in names if (SOURCE / each).is_dir()] for names in named]


def pure() -> set[str]:
    """Returns the packages that use no clock, socket, file, thread or randomness, not even through other packages."""
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    names = contracts["importlinter:contract:pure"]["source_modules"].split()
    return {name.removeprefix("penstock.") for name in names}


def size(package: str) -> tuple[int, int]:
    """Returns the number of modules and of lines; leaves out the message declarations of the protocol."""
    files = [each for each in (SOURCE / package).rglob("*.py") if "messages" not in each.parts]
    return len(files), sum(len(each.read_text().splitlines()) for each in files)


def imports(name: str, lower: list[str], without_effects: set[str]) -> str:
    if name in without_effects:
        return "pure: " + (", ".join(f"`{each}`" for each in lower if each in without_effects) or "no package")
    return f"`{lower[0]}` and below"


def table() -> str:
    rows = ["| package | modules | lines | may import |", "|---|---:|---:|---|"]
    below = [names for names in layers() if names]
    without_effects = pure()
    for index, names in enumerate(below):
        lower = [each for other in below[index + 1 :] for each in other]
        for name in names:
            modules, lines = size(name)
            rows.append(f"| `{name}` | {modules} | {round(lines, -2):,} | {imports(name, lower, without_effects)} |")
    lines = sum(len((SOURCE / f"{each}.py").read_text().splitlines()) for each in SHARED)
    rows.append(f"| {', '.join(f'`{each}`' for each in SHARED)} | {len(SHARED)} | {round(lines, -2):,} | no package |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
