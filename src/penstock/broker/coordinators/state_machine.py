"""What the runtime of coordinators expects of the pure machines it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar


class Turn(Protocol):
    """What one decision asks for."""

    records: list[Any]
    replies: list[tuple[Any, Any]]
    after: list[Any]
    producer: tuple[int, int] | None

    @property
    def effects(self) -> Sequence[Any]:
        """Effects that the shell performs once the records are committed, and drops if they can't be written."""
        ...


T = TypeVar("T", bound=Turn)


class Machine(Protocol[T]):
    """A pure coordinator: see `groups.shard` for one."""

    def turn(self, now_ms: int, wall_ms: int) -> T: ...

    def encode(self, record: Any) -> tuple[bytes, bytes | None]: ...

    def decode(self, key: bytes | None, value: bytes | None) -> Any | None: ...

    def apply(self, record: Any, log_offset: int, producer_id: int) -> None: ...

    def apply_marker(self, producer_id: int, commit: bool) -> None: ...

    def loaded(self, turn: T) -> None: ...

    def abandon(self, turn: T) -> None: ...

    def on_timers(self, turn: T) -> None: ...

    def next_deadline(self) -> int | None: ...


M = TypeVar("M", bound=Machine[Any])
