"""Parses and checks the JSON bodies of requests. A separate thread parses long bodies, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.formats.gradual_json import SMALL_BYTES, loads
from penstock.http.rest.fields import Field, FieldError, check_object
from penstock.http.rest.paced_thread import PacedThread


class BodyReader:
    def __init__(self) -> None:
        self._thread = PacedThread("penstock-http-bodies")

    def close(self) -> None:
        self._thread.close()

    async def read(self, fields: Mapping[str, Field], body: bytes) -> dict[str, Any]:
        """Parses and checks a body, and returns its fields; no fields for an empty body. Raises FieldError."""
        if len(body) <= SMALL_BYTES:
            return _read(fields, body)
        return await self._thread.run(_read, fields, body)


def _read(fields: Mapping[str, Field], body: bytes) -> dict[str, Any]:
    try:
        value = loads(body, _without_repetition) if body else {}
    except FieldError:
        raise
    except ValueError as error:
        raise FieldError(f"the body is not JSON: {error}") from error
    except RecursionError:
        raise FieldError(
            "the body has lists or objects that are nested too deeply: no field needs so many levels."
        ) from None
    return check_object(fields, value)


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the fields of a JSON object. Raises FieldError if a name occurs twice.

    JSON parsers disagree about such an object: some use the first value, others the last.
    """
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise FieldError(f"the body has the field '{name[:40]}' twice: give it once.")
        found[name] = value
    return found
