"""Checks invariants, also in production: a violated invariant raises an error instead of giving a wrong answer."""


class InvariantError(Exception):
    """Raised for a state that must not exist, according to the code's invariants."""


def check(condition: object, message: str) -> None:
    if not condition:
        raise InvariantError(message)
