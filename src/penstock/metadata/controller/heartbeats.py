"""Tracks the sessions of brokers by the time of each broker's last heartbeat. Only the active controller tracks them.

A broker's session starts when the broker registers, and starts again when another controller takes over. The session
ends when no heartbeat arrives within the session timeout. The image, not this module, records which brokers are fenced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.metadata.image import MetadataImage


@dataclass(slots=True)
class Session:
    epoch: int
    last_contact_ms: int
    metadata_offset: int = -1
    # Offset of the record of its controlled shutdown; None while it is not shutting down.
    shutdown_offset: int | None = None
    # Whether the broker has sent a request to this controller, and still has a connection to it.
    heard: bool = False
    connected: bool = True


class Heartbeats:
    def __init__(self, session_timeout_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.sessions: dict[int, Session] = {}

    def begin(self, image: MetadataImage, now_ms: int) -> None:
        """Starts a full session for every broker, because a new controller does not know their last heartbeats."""
        self.sessions = {broker_id: Session(one.epoch, now_ms) for broker_id, one in sorted(image.brokers.items())}

    def registered(self, broker_id: int, epoch: int, now_ms: int) -> None:
        known = self.sessions.get(broker_id)
        if known is None or known.epoch != epoch:
            self.sessions[broker_id] = Session(epoch, now_ms, heard=True)
        else:
            known.last_contact_ms, known.heard, known.connected = now_ms, True, True

    def forget(self, broker_id: int) -> None:
        self.sessions.pop(broker_id, None)

    def session(self, broker_id: int, epoch: int, now_ms: int) -> Session:
        """Returns the session of the broker that is registered with this epoch; creates a missing session."""
        found = self.sessions.get(broker_id)
        if found is None or found.epoch != epoch:
            found = self.sessions[broker_id] = Session(epoch, now_ms)
        return found

    def touch(self, broker_id: int, epoch: int, now_ms: int, metadata_offset: int) -> Session:
        session = self.session(broker_id, epoch, now_ms)
        session.last_contact_ms = now_ms
        session.metadata_offset = metadata_offset
        session.heard = session.connected = True
        return session

    def disconnected(self, broker_id: int, epoch: int) -> None:
        session = self.sessions.get(broker_id)
        if session is not None and session.epoch == epoch:
            session.connected = False

    def is_live(self, image: MetadataImage, broker_id: int, now_ms: int) -> bool:
        """Returns True if the process that registered this broker may still be running.

        Returns False if this controller never got a request from the process. So after a restart of the whole cluster,
        a new incarnation of each broker can register at once. It need not wait until the old session ends.
        """
        broker, session = image.brokers.get(broker_id), self.sessions.get(broker_id)
        if broker is None or broker.fenced or session is None or session.epoch != broker.epoch:
            return False
        return session.heard and session.connected and not self._is_over(session, now_ms)

    def stale(self, image: MetadataImage, now_ms: int) -> list[int]:
        """Returns the unfenced brokers whose session has ended. The broker with the oldest heartbeat comes first."""
        silent = [
            (session.last_contact_ms, broker_id)
            for broker_id, session in self._of_unfenced(image, now_ms)
            if self._is_over(session, now_ms)
        ]
        return [broker_id for _, broker_id in sorted(silent)]

    def next_check_ms(self, image: MetadataImage, now_ms: int) -> int:
        """Returns the time at which the next broker session may end."""
        contacts = [session.last_contact_ms for _, session in self._of_unfenced(image, now_ms)]
        return min(contacts, default=now_ms) + self.session_timeout_ms + 1

    def lowest_active_offset(self, image: MetadataImage) -> int | None:
        """Returns the lowest metadata offset of the brokers that are neither fenced nor shutting down.

        Returns None if there are no such brokers.
        """
        offsets = [
            session.metadata_offset
            for broker_id, session in self.sessions.items()
            if (broker := image.brokers.get(broker_id)) is not None
            and broker.usable
            and session.shutdown_offset is None
        ]
        return min(offsets, default=None)

    def extend_sessions(self, lost_ms: int, now_ms: int) -> None:
        """Extends all sessions by the length of a pause in which the controller could not receive heartbeats.

        The time of a broker's last heartbeat is never set to a time in the future. Otherwise a heartbeat right after
        the pause would extend the session twice.
        """
        for session in self.sessions.values():
            session.last_contact_ms = min(session.last_contact_ms + lost_ms, now_ms)

    def _of_unfenced(self, image: MetadataImage, now_ms: int) -> Iterator[tuple[int, Session]]:
        for broker_id, broker in image.brokers.items():
            if not broker.fenced:
                yield broker_id, self.session(broker_id, broker.epoch, now_ms)

    def _is_over(self, session: Session, now_ms: int) -> bool:
        return now_ms - session.last_contact_ms > self.session_timeout_ms
