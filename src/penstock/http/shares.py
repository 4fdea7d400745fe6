"""Limits a resource, such as the number of open event streams, for each user and for all users. Pure code."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


class LimitReachedError(Exception):
    """Raised if a user, or all users together, have reached the limit. The message has cause and remedy."""

    def __init__(self, sentence: str, limit: str, allowed: int, *, of_user: bool) -> None:
        super().__init__(sentence)
        self.limit = limit
        """The name of the limit."""
        self.allowed = allowed
        self.of_user = of_user
        """True if the limit of one user is reached, False if the limit of all users is reached."""


@dataclass(slots=True)
class Shares:
    name: str
    """Names the limited resource in messages, as a plural: `streams`."""
    remedy: str
    """Tells the user in messages how to get below the limit: `close one`."""
    total: int
    of_user: int
    _taken: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """Returns how many resources, such as streams, all users have in use."""
        return self._taken.total()

    def take(self, user: str) -> None:
        """Counts one more resource of the user, such as a stream. Raises LimitReachedError if a limit is reached."""
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
