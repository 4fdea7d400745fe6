"""Error codes of answers, including unknown codes of newer brokers."""

from collections.abc import Iterator

from penstock.protocol.errors import ErrorCode
from penstock.protocol.schema import Struct

COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
COORDINATOR_BUSY = COORDINATOR_MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
"""Codes that a coordinator answers for a moment: when it is new, moves or has just started."""


def code_of(number: int) -> ErrorCode:
    """Returns the error code; an unknown code is UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def error_codes(answer: Struct) -> Iterator[ErrorCode]:
    """Yields every error code in an answer and its parts, except NONE."""
    for field in answer.FIELDS:
        value = getattr(answer, field.name)
        if field.name == "error_code" and value:
            yield code_of(value)
        elif isinstance(value, list):
            for part in value:
                if isinstance(part, Struct):
                    yield from error_codes(part)


def may_pass(code: ErrorCode) -> bool:
    """True if a retry may succeed.

    BROKER_NOT_AVAILABLE is included, because a lost node's partitions get new leaders.
    """
    return code.retriable or code is ErrorCode.BROKER_NOT_AVAILABLE
