"""Invariants that are checked in production, too: a violated invariant raises instead of giving a wrong answer."""


class InvariantError(Exception):
    """Raised for a state that, by the code's invariants, can't exist."""


def check(condition: object, message: str) -> None:
    if not condition:
        raise InvariantError(message)
