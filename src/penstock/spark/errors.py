"""What the user can put right, in one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.protocol.errors import ErrorCode, KafkaError


class SourceError(Exception):
    """A wrong option, a missing topic, offsets that are gone, no broker: the message says which and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        # A worker of Spark's ends with what it could not catch, and tells the driver where in the code that was, unless
        # this is set: whoever wrote the option wrong is not helped by our file names.
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"


@contextmanager
def in_one_sentence(what: str) -> Iterator[None]:
    """A broker's refusal as a sentence of ours: `what` was being done."""
    try:
        yield
    except KafkaError as error:
        raise SourceError(f"{what}: {sentence_of(error)}") from None


def sentence_of(error: KafkaError) -> str:
    if error.code is ErrorCode.NETWORK_EXCEPTION and error.message and error.message.startswith("Can't connect"):
        return f"{error.message} Is the broker up, and is kafka.bootstrap.servers its address?"
    return error.message or error.code.name
