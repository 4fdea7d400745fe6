"""Divides a limited number of places, such as those for event streams, among users. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


class LimitReachedError(Exception):
    """Raised if no place is free, or if the user has its share already. The message has cause and remedy."""

    def __init__(self, sentence: str, limit: str, allowed: int, *, of_user: bool) -> None:
        super().__init__(sentence)
        self.limit = limit
        """The name of the limit."""
        self.allowed = allowed
        self.of_user = of_user
        """True if the user has its share, False if all users together have all places."""


@dataclass(slots=True)
class Shares:
    name: str
    """Names the use of the places in messages, as a plural: `streams`."""
    remedy: str
    """Tells the user in messages how to free a place: `close one`."""
    total: int
    of_user: int
    _taken: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Returns the number of places that are taken."""
        return self._taken.total()

    def take(self, user: str) -> None:
        """Takes a place for a user. Raises LimitReachedError."""
        if self._taken[user] >= self.of_user:
            sentence = f"{user} has {self.of_user} {self.name} on this node, its share: {self.remedy}."
            raise LimitReachedError(sentence, f"{self.name} of one user", self.of_user, of_user=True)
        if self.count >= self.total:
            sentence = f"All users have {self.total} {self.name} on this node: {self.remedy}, or try again later."
            raise LimitReachedError(sentence, f"{self.name} of all users", self.total, of_user=False)
        self._taken[user] += 1

    def give_back(self, user: str) -> None:
        self._taken[user] -= 1
        if not self._taken[user]:
            del self._taken[user]
