"""Defines the result of a decision: records to commit, and the reply to send once they are committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")

#: Records that one request of a client may cause. Kafka's limit is 10,000; deciding, encoding and applying so many
#: would hold the loop for more than 50 ms.
MAX_RECORDS_PER_REQUEST = 5_000


Charge = Callable[[int], None]
"""Counts changed partitions against a quota. Raises KafkaError if the quota refuses the change."""


def free_of_charge(partitions: int) -> None:
    """Accepts every change: no quota applies."""


@dataclass(frozen=True, slots=True)
class Decision(Generic[R]):
    records: Sequence[Any]
    reply: R
