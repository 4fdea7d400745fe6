"""Holds the members of a consumer, share or streams group, and counts the memory that they take."""

from __future__ import annotations

from typing import Protocol, TypeVar

from penstock.protocol.errors import ErrorCode, KafkaError


class Sized(Protocol):
    @property
    def member_id(self) -> str: ...
    @property
    def held_bytes(self) -> int: ...


M = TypeVar("M", bound=Sized)


class MemberTable(dict[str, M]):
    """Holds members by id, in the order in which they joined, because assignors depend on this order.

    All changes go through `put` and `drop`.
    """

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0  # total size of all members

    def find(self, member_id: str) -> M:
        member = self.get(member_id)
        if member is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not in the group: join the group first."
            )
        return member

    def put(self, member: M) -> None:
        """Adds the member. A known member is replaced and keeps its position in the order."""
        known = self.get(member.member_id)
        self.bytes += member.held_bytes - (known.held_bytes if known is not None else 0)
        self[member.member_id] = member

    def drop(self, member_id: str) -> None:
        known = self.pop(member_id, None)
        self.bytes -= known.held_bytes if known is not None else 0
