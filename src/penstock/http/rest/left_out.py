"""Counts the batches that a response leaves out, and collects the reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Sentences in one answer.
PROBLEMS_MAX = 20


@dataclass(slots=True)
class LeftOut:
    """Counts the batches that a response leaves out, and keeps the first reasons.

    A batch is left out if it can't be decoded, or if it is too large after decompression.
    """

    batches: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Counts a batch that is left out because of `problem`. Does nothing if the text is empty."""
        if problem:
            self.batches += 1
            self.problems += [problem] if len(self.problems) < PROBLEMS_MAX else []

    def as_json(self) -> dict[str, Any]:
        return {"batches_left_out": self.batches, "problems": self.problems}
