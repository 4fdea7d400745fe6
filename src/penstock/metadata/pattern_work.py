"""Limits the work of patterns: parsing, building and matching all take steps from one budget, `Work`."""

from __future__ import annotations

from penstock.protocol.errors import ErrorCode, KafkaError

#: Steps for all patterns that are parsed and matched together: about 30 ms.
MAX_STEPS = 60_000


class Work:
    """Counts steps against a budget. Raises INVALID_REGULAR_EXPRESSION when the budget is spent."""

    __slots__ = ("left",)

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise KafkaError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                "The regular expression takes too long to match: write it with fewer repetitions and alternatives.",
            )
