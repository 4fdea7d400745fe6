"""The follower's side of a fetch session: what the leader remembers of one fetcher, and what it has to be told next."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.protocol.messages.api_01_fetch import ForgottenTopic

NO_SESSION, FIRST_EPOCH = 0, 0
LAST_EPOCH = 0x7FFFFFFF

Key = tuple[bytes, int]  # topic id, partition


class ReplicaSession:
    __slots__ = ("_forgotten", "_known", "changed", "epoch", "id")

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = FIRST_EPOCH
        #: What the next request has to name.
        self.changed: dict[Key, None] = {}
        self._known: set[Key] = set()
        self._forgotten: dict[Key, None] = {}

    @property
    def begins(self) -> bool:
        """Whether the next request names everything."""
        return self.epoch == FIRST_EPOCH

    # What happens to partitions.

    def mention(self, key: Key) -> None:
        self.changed[key] = None

    def come_back(self, key: Key) -> None:
        """It need not be forgotten: the leader hears of it anew."""
        self._forgotten.pop(key, None)

    def leave(self, key: Key) -> None:
        self.changed.pop(key, None)
        if key in self._known:
            self._known.discard(key)
            self._forgotten[key] = None

    # Requests and answers.

    def due(self, everything: Iterable[Key]) -> list[Key]:
        """What the next request names."""
        if self.begins:
            self.changed = dict.fromkeys(everything)
            self._forgotten.clear()
            self._known.clear()
        return list(self.changed)

    def named(self, key: Key) -> None:
        self._known.add(key)

    def ask(self) -> list[ForgottenTopic]:
        """A request goes out with all that was due, and with these."""
        self.changed = {}
        topics: dict[bytes, ForgottenTopic] = {}
        for topic_id, index in self._forgotten:
            topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
        self._forgotten = {}
        return list(topics.values())

    def answered(self, session_id: int) -> None:
        self.id = session_id
        if session_id == NO_SESSION:
            self.epoch = FIRST_EPOCH
        else:
            self.epoch = 1 if self.epoch == LAST_EPOCH else self.epoch + 1

    def begin(self) -> None:
        """Anew, with the old id, so that the leader forgets that one."""
        self.epoch = FIRST_EPOCH

    def lost(self) -> None:
        """The leader doesn't know it any more."""
        self.id = NO_SESSION
