"""Reads the error codes in responses, including unknown codes of newer brokers."""

from collections.abc import Iterator

from penstock.protocol.errors import ErrorCode
from penstock.protocol.schema import Struct

COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
COORDINATOR_BUSY = COORDINATOR_MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
"""Temporary error codes of a coordinator that is loading, moving or just starting."""


def code_of(number: int) -> ErrorCode:
    """Returns the error code for a number; UNKNOWN_SERVER_ERROR for an unknown number."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def error_codes(answer: Struct) -> Iterator[ErrorCode]:
    """Yields the error code of a response and the error codes of all its items. NONE stands for success."""
    yield code_of(getattr(answer, "error_code", 0))
    for field in answer.FIELDS:
        value = getattr(answer, field.name) if field.kind == "array" else None
        for part in value or ():
            if isinstance(part, Struct):
                yield from error_codes(part)


def may_pass(code: ErrorCode) -> bool:
    """Returns True if a retry may succeed after this error.

    This includes BROKER_NOT_AVAILABLE: the partitions of a lost node get new leaders.
    """
    return code.retriable or code is ErrorCode.BROKER_NOT_AVAILABLE
