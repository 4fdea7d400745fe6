"""Defines errors that the user can correct. Each error is reported in one sentence."""

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
    """Raised for an error that the user can correct: a wrong option, a missing topic, deleted offsets, no broker.

    The message names the cause and the remedy.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        # A Spark worker reports an uncaught error to the driver with its traceback, unless this is set: a traceback of
        # our files does not help a user who gave a wrong option.
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def not_importable(error: ImportError) -> SourceError:
    """Returns a SourceError that says how to install or repair a missing or damaged package.

    Raises `error` itself if the package is Penstock.
    """
    name = error.name or ""
    package = name.partition(".")[0]
    if package in ("penstock", "pyspark_penstock"):
        raise error
    if isinstance(error, ModuleNotFoundError) and name == package:
        return SourceError(f"{_PACKAGES.get(package, package)} is not installed: run `pip install 'penstock[spark]'`.")
    return SourceError(f"A package that pipelines need is damaged ({error}): run `penstock pipeline doctor`.")


@contextmanager
def in_one_sentence(failure: str) -> Iterator[None]:
    """Turns a KafkaError that the block raises into a SourceError.

    The message of the SourceError is `failure`, which names the failed action, followed by the broker's reason.
    """
    try:
        yield
    except KafkaError as error:
        raise SourceError(f"{failure}: {sentence_of(error)}") from None


def warn_of_options(names: Sequence[str]) -> None:
    """Logs a warning about options that have no effect, once per process."""
    if names and tuple(names) not in _warned:
        _warned.add(tuple(names))
        logger.warning("These options have no effect here: %s", ", ".join(names))


def sentence_of(error: KafkaError) -> str:
    if error.code is ErrorCode.NETWORK_EXCEPTION and error.message and error.message.startswith("Can't connect"):
        return f"{error.message} Is the broker up, and is kafka.bootstrap.servers its address?"
    return error.message or error.code.name
