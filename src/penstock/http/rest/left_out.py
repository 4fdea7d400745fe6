"""Counts the batches that an answer leaves out, and says why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: Sentences in one answer.
PROBLEMS_MAX = 20


@dataclass(slots=True)
class LeftOut:
    """Collects batches that can't be decoded, or that unpack to too many bytes."""

    batches: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        """Counts a batch with a problem; an empty text is no problem."""
        if problem:
            self.batches += 1
            self.problems += [problem] if len(self.problems) < PROBLEMS_MAX else []

    def as_json(self) -> dict[str, Any]:
        return {"batches_left_out": self.batches, "problems": self.problems}
