"""Defines the interface of the pure state machines that the coordinators run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar


class Turn(Protocol):
    """Holds the outcome of one decision: records to write, replies, effects, and the decisions to run after it."""

    records: list[Any]
    replies: list[tuple[Any, Any]]
    after: list[Any]
    producer: tuple[int, int] | None

    @property
    def undo(self) -> Sequence[Callable[[], None]]:
        """Returns functions that undo the decision's direct changes: changes of state that no record contains.

        The runtime calls these functions if the decision's records can't be written.
        """
        ...

    @property
    def effects(self) -> Sequence[Any]:
        """Returns the effects that the runtime performs once the records are committed.

        If the records can't be written, the runtime drops the effects.
        """
        ...


T = TypeVar("T", bound=Turn)


class Machine(Protocol[T]):
    """Defines the interface of a coordinator's state machine, such as `groups.shard`. It does no I/O."""

    #: True if a record may update the state that earlier records of its key made: a load then applies every record.
    incremental: bool

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
