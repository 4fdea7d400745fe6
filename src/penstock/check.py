"""Invariants that are checked in production, too: a violated invariant raises instead of giving a wrong answer."""


class InvariantError(Exception):
    """A state that the code promises can't exist."""


def check(condition: object, message: str) -> None:
    if not condition:
        raise InvariantError(message)
