"""Keeps the follower's side of a fetch session (KIP-227).

It tracks which partitions are in the leader's session, and which partitions the next Fetch request must contain.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_01_fetch import ForgottenTopic

NO_SESSION, FIRST_EPOCH = 0, 0
LAST_EPOCH = 0x7FFFFFFF

#: Errors of a leader that does not have the session, or has it in another epoch.
_LOST = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)

Key = tuple[bytes, int]  # topic id, partition


class ReplicaSession:
    __slots__ = ("_forgotten", "_known", "changed", "epoch", "id")

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = FIRST_EPOCH
        #: Partitions that the next request has to name.
        self.changed: dict[Key, None] = {}
        self._known: set[Key] = set()
        self._forgotten: dict[Key, None] = {}

    @property
    def begins(self) -> bool:
        """Returns True if the next request starts a session and contains all partitions."""
        return self.epoch == FIRST_EPOCH

    # Partitions.

    def mention(self, key: Key) -> None:
        """Makes the next request contain a partition whose fetch position has changed."""
        self.changed[key] = None

    def come_back(self, key: Key) -> None:
        """Cancels the removal of a partition. Called if this broker follows the partition again before a request has
        removed it from the leader's session."""
        if key in self._forgotten:
            del self._forgotten[key]
            self._known.add(key)

    def leave(self, key: Key) -> None:
        """Removes a partition from the session. If the leader's session contains the partition, the next request
        removes it there too."""
        self.changed.pop(key, None)
        if key in self._known:
            self._known.discard(key)
            self._forgotten[key] = None

    # Requests and answers.

    def due(self, everything: Iterable[Key]) -> list[Key]:
        """Returns the partitions that the next request must contain.

        A request that starts a session contains `everything`, all partitions.
        """
        if self.begins:
            self.changed = dict.fromkeys(everything)
            self._forgotten.clear()
            self._known.clear()
        return list(self.changed)

    def named(self, key: Key) -> None:
        """Notes that the next request contains this partition, so that the leader adds the partition to its session.

        The request must not remove the partition as well: Kafka's leaders add first and then remove.
        """
        self._known.add(key)
        self._forgotten.pop(key, None)

    def ask(self) -> list[ForgottenTopic]:
        """Prepares the next request. Returns the partitions that this request removes from the session."""
        self.changed = {}
        topics: dict[bytes, ForgottenTopic] = {}
        for topic_id, index in self._forgotten:
            topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
        self._forgotten = {}
        return list(topics.values())

    def answered(self, session_id: int) -> None:
        """Adopts the session id in the leader's answer and computes the epoch of the next request.

        NO_SESSION means that the leader has no room for a session; the next request then asks for a session again.
        """
        self.id = session_id
        if session_id == NO_SESSION:
            self.epoch = FIRST_EPOCH
        else:
            self.epoch = 1 if self.epoch == LAST_EPOCH else self.epoch + 1

    def begin(self) -> None:
        """Starts a new session. The next request contains the old session id, so that the leader closes the old
        session."""
        self.epoch = FIRST_EPOCH

    def failed(self, code: ErrorCode) -> bool:
        """Starts a new session after an error. Returns True if the error says that the leader no longer has the old
        session."""
        self.begin()
        if code not in _LOST:
            return False
        self.id = NO_SESSION
        return True
