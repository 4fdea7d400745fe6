"""Checks invariants, also in production: a violated invariant raises an error instead of giving a wrong answer."""


class InvariantError(Exception):
    """Raised if an invariant of the code does not hold."""


def check(condition: object, message: str) -> None:
    if not condition:
        raise InvariantError(message)
