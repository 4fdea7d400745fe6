"""Error codes of answers: those of a newer broker included."""

from penstock.protocol.errors import ErrorCode


def code_of(number: int) -> ErrorCode:
    """A code that this client doesn't know yet is an error all the same."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def may_pass(code: ErrorCode) -> bool:
    """Whether it may go well later. A node that the cluster has lost is one whose partitions go elsewhere."""
    return code.retriable or code is ErrorCode.BROKER_NOT_AVAILABLE
