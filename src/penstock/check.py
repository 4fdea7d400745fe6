"""Invariants that stay on in production: one that fails stops what it guards instead of serving it wrong."""


class InvariantError(Exception):
    """A state that the code promises can't exist."""


def check(condition: object, message: str) -> None:
    if not condition:
        raise InvariantError(message)
