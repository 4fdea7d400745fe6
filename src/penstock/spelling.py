"""Suggests similar names, for messages about an unknown name.

The search takes milliseconds: use it for names that a person typed, not for names in requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

NAMES_MAX = 3
ALIKE = 0.7


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns the end of a message: "did you mean …?" with similar known names, or the advice to check the spelling."""
    names = {name.lower(): name for name in known}
    near = [names[each] for each in get_close_matches(word.lower(), names, NAMES_MAX, ALIKE)]
    if not near:
        near = sorted(name for lowered, name in names.items() if lowered.startswith(word.lower()))[:NAMES_MAX]
    return f"did you mean {' or '.join(near)}?" if near else "check its spelling."
