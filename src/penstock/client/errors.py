"""Error codes of answers: those of a newer broker included."""

from collections.abc import Iterator

from penstock.protocol.errors import ErrorCode
from penstock.protocol.schema import Struct

COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
COORDINATOR_BUSY = COORDINATOR_MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
"""A coordinator says these for a moment: when it is new, moves or has just started."""


def code_of(number: int) -> ErrorCode:
    """A code that this client doesn't know yet is an error all the same."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def error_codes(answer: Struct) -> Iterator[ErrorCode]:
    """Every error code in an answer, of the whole and of its parts; NONE left out."""
    for field in answer.FIELDS:
        value = getattr(answer, field.name)
        if field.name == "error_code" and value:
            yield code_of(value)
        elif isinstance(value, list):
            for part in value:
                if isinstance(part, Struct):
                    yield from error_codes(part)


def may_pass(code: ErrorCode) -> bool:
    """Whether it may go well later. A node that the cluster has lost is one whose partitions go elsewhere."""
    return code.retriable or code is ErrorCode.BROKER_NOT_AVAILABLE
