"""Names that a person may have meant, for messages about a name that is not known.

Looking for them takes milliseconds: fit for what the person who reads the message wrote, not for what a client sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

NAMES_MAX = 3
ALIKE = 0.7


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The remedy at the end of a sentence: the nearest of the known names, or to check the spelling."""
    names = {name.lower(): name for name in known}
    near = [names[each] for each in get_close_matches(word.lower(), names, NAMES_MAX, ALIKE)]
    if not near:
        near = sorted(name for lowered, name in names.items() if lowered.startswith(word.lower()))[:NAMES_MAX]
    return f"did you mean {' or '.join(near)}?" if near else "check its spelling."
