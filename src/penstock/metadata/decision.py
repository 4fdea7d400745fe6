"""What a decision hands back: the records to commit, and the reply to give once they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Decision(Generic[R]):
    records: Sequence[Any]
    reply: R
