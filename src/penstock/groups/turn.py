"""Defines the `Turn`: it holds one event (a request or a timer) while the coordinator decides on it.

A `Turn` has the time of the event and the resources for the decision. It collects the records, the replies and the
other effects of the decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from penstock.groups.config import GroupConfig
    from penstock.groups.timers import Timer, Timers
    from penstock.protocol.errors import ErrorCode

Token = object  # identifies a request whose answer comes later; opaque here


class JournalRecord(NamedTuple):
    """Holds a key and its new value as messages; a value of None is a tombstone."""

    key: Any
    value: Any | None


@dataclass(slots=True)
class Turn:
    now_ms: int  # monotonic: for timeouts
    wall_ms: int  # for durable state
    config: GroupConfig
    timers: Timers
    random: Random
    records: list[JournalRecord] = field(default_factory=list)
    replies: list[tuple[Token, Any]] = field(default_factory=list)
    after: list[Callable[[Turn, ErrorCode], None]] = field(default_factory=list)
    """Called in a later turn, when the records are committed or could not be committed."""
    undo: list[Callable[[], None]] = field(default_factory=list)
    """Called in reverse order if the records are refused before they are applied."""
    effects: list[Any] = field(default_factory=list)
    """Actions that are performed once the records are committed, and dropped if the records cannot be written."""
    producer: tuple[int, int] | None = None
    """Producer id and epoch of the transaction to which the records belong."""

    def record(self, key: Any, value: Any | None) -> None:
        self.records.append(JournalRecord(key, value))

    def reply(self, token: Token, response: Any) -> None:
        self.replies.append((token, response))

    def arm(self, timer: Timer, delay_ms: int) -> None:
        self.timers.set(timer, self.now_ms + delay_ms)

    def new_uuid(self) -> str:
        return str(UUID(int=self.random.getrandbits(128), version=4))


def every_topic(name: str) -> bool:
    """Returns True: without an authorizer, clients may describe all topics."""
    return True


class Caller(NamedTuple):
    """Describes the client that sent a request, as far as groups need it."""

    client_id: str
    client_host: str
    api_version: int
    #: Returns True if the client may describe the topic with this name.
    sees: Callable[[str], bool] = every_topic
