"""Keeps share sessions: the partitions that a member fetches from this node, so that requests need not repeat them.

    epoch 0          a ShareFetch without acknowledgements opens a new session
    epoch 1, 2, 3 …  the next ShareFetch or ShareAcknowledge of the session
    epoch -1         the last request: the session ends, and all records that its member holds are released

A session belongs to the connection on which it began, and ends when this connection closes. The number of sessions is
limited, and so are the partitions of one session and of all sessions together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from penstock.protocol.errors import ErrorCode, KafkaError

FIRST_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 0x7FFFFFFF
#: The partitions of one session, and of all sessions of a node: a client can name partitions that do not exist.
MAX_SESSION_PARTITIONS = 10_000
MAX_PARTITIONS = 200_000
Slot = tuple[bytes, int]  # topic id, partition


@dataclass(slots=True, eq=False)
class ShareSession:
    group: str
    member: str
    owner: object  # the connection
    epoch: int = 1  # of the next request
    partitions: dict[Slot, None] = field(default_factory=dict)
    #: Partitions whose state on this node was not compared with the share coordinator's since the session has them.
    unverified: dict[Slot, None] = field(default_factory=dict)

    def add(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            if slot not in self.partitions:
                self.partitions[slot] = self.unverified[slot] = None

    def forget(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self.partitions.pop(slot, None)
            self.unverified.pop(slot, None)

    def rotated(self) -> list[Slot]:
        """Returns the session's partitions. The list begins with a different partition at each request."""
        slots = list(self.partitions)
        if not slots:
            return slots
        start = self.epoch % len(slots)
        return slots[start:] + slots[:start]


class ShareSessions:
    __slots__ = ("_by_member", "_by_owner", "_of_group", "_partitions", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._by_member: dict[tuple[str, str], ShareSession] = {}
        self._by_owner: dict[object, dict[tuple[str, str], None]] = {}
        self._of_group: dict[str, int] = {}
        self._partitions = 0  # of all sessions

    def __len__(self) -> int:
        return len(self._by_member)

    def fetch(
        self,
        group: str,
        member: str,
        epoch: int,
        owner: object,
        added: Collection[Slot],
        forgotten: Iterable[Slot],
        *,
        acknowledges: bool,
    ) -> ShareSession:
        """Opens or continues the session of a ShareFetch, and returns it.

        Raises KafkaError if the request is refused.
        """
        if epoch == FIRST_EPOCH:
            if acknowledges:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "A new share session can't acknowledge records: fetch them first."
                )
            self._check_room({}, added)
            session = self._create(group, member, owner)
        else:
            if epoch != FINAL_EPOCH and (current := self._by_member.get((group, member))) is not None:
                self._check_room(current.partitions, added)
            session = self.next(group, member, epoch)
            if epoch == FINAL_EPOCH:
                return session
        before = len(session.partitions)
        session.add(added)
        self._partitions += len(session.partitions) - before
        self.forget(session, forgotten)
        return session

    def _check_room(self, present: Collection[Slot], added: Collection[Slot]) -> None:
        more = sum(slot not in present for slot in added)
        if len(present) + more > MAX_SESSION_PARTITIONS:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The share session would have more than {MAX_SESSION_PARTITIONS} partitions: start more consumers.",
            )
        if more and self._partitions + more > MAX_PARTITIONS:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"The share sessions of this node would have more than {MAX_PARTITIONS} partitions: stop consumers.",
            )

    def forget(self, session: ShareSession, slots: Iterable[Slot]) -> None:
        before = len(session.partitions)
        session.forget(slots)
        self._partitions -= before - len(session.partitions)

    def next(self, group: str, member: str, epoch: int) -> ShareSession:
        """Returns the session of a request and advances its epoch. Raises KafkaError for an unexpected epoch."""
        if epoch == FIRST_EPOCH:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                "A share session must begin with a ShareFetch: fetch records first.",
            )
        session = self._by_member.get((group, member))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, "The share session has ended: begin a new session.")
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                f"The share session expects epoch {session.epoch}, not {epoch}: begin a new session.",
            )
        session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        return session

    def _create(self, group: str, member: str, owner: object) -> ShareSession:
        key = (group, member)
        self.close(group, member)
        if len(self._by_member) >= self.most:
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"This node has {self.most} share sessions: raise group.share.max.share.sessions or stop consumers.",
            )
        session = self._by_member[key] = ShareSession(group, member, owner)
        self._by_owner.setdefault(owner, {})[key] = None
        self._of_group[group] = self._of_group.get(group, 0) + 1
        return session

    def close(self, group: str, member: str) -> ShareSession | None:
        """Ends the session of a member and returns it; None if the member has no session."""
        session = self._by_member.pop((group, member), None)
        if session is None:
            return None
        self._partitions -= len(session.partitions)
        owned = self._by_owner[session.owner]
        del owned[group, member]
        if not owned:
            del self._by_owner[session.owner]
        self._of_group[group] -= 1
        if not self._of_group[group]:
            del self._of_group[group]
        return session

    def close_owner(self, owner: object) -> list[ShareSession]:
        """Ends all sessions of a closed connection and returns them."""
        keys = list(self._by_owner.get(owner, ()))
        return [session for key in keys if (session := self.close(*key)) is not None]

    def has_group(self, group: str) -> bool:
        return group in self._of_group

    def has_owner(self, owner: object) -> bool:
        return owner in self._by_owner
