"""What the user can put right, in one sentence."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger(__name__)
_PACKAGES = {"pyspark": "PySpark"}
_warned: set[tuple[str, ...]] = set()


class SourceError(Exception):
    """A wrong option, a missing topic, offsets that are gone, no broker: the message says which and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        # A worker of Spark's ends with what it could not catch, and tells the driver where in the code that was, unless
        # this is set: whoever wrote the option wrong is not helped by our file names.
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def not_importable(error: ImportError) -> SourceError:
    """Of a package that pipelines need. Raises the error itself where a module of ours is at fault."""
    name = error.name or ""
    package = name.partition(".")[0]
    if package in ("penstock", "pyspark_penstock"):
        raise error
    if isinstance(error, ModuleNotFoundError) and name == package:
        return SourceError(f"{_PACKAGES.get(package, package)} is not installed: run `pip install 'penstock[spark]'`.")
    return SourceError(f"A package that pipelines need is damaged ({error}): run `penstock pipeline doctor`.")


@contextmanager
def in_one_sentence(what: str) -> Iterator[None]:
    """A broker's refusal as a sentence of ours: `what` was being done."""
    try:
        yield
    except KafkaError as error:
        raise SourceError(f"{what}: {sentence_of(error)}") from None


def warn_of_options(names: Sequence[str]) -> None:
    """Options that are let through and do nothing; once for each process."""
    if names and tuple(names) not in _warned:
        _warned.add(tuple(names))
        logger.warning("Options that have no effect here: %s", ", ".join(names))


def sentence_of(error: KafkaError) -> str:
    if error.code is ErrorCode.NETWORK_EXCEPTION and error.message and error.message.startswith("Can't connect"):
        return f"{error.message} Is the broker up, and is kafka.bootstrap.servers its address?"
    return error.message or error.code.name
