"""Gets schemas by their id from a schema registry with Confluent's API, and caches them. The calls block: use a thread.

The id comes from the data, so a producer can choose any id. Therefore the number of cached ids is limited. An id that
the registry does not know is not requested again for some time. After a failure of the registry, no id at all is
requested for some time.
"""

from __future__ import annotations

import base64
import binascii
import json
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from penstock.formats.descriptors import named_file
from penstock.formats.limits import FormatError, schema_errors
from penstock.formats.schema import AvroSchema, JsonSchema, ProtobufSchema, Schema
from penstock.net.web import Document, FetchError

#: Schemas and failures that are kept.
CACHED_MAX = 500
#: Time for which a failed look-up is not repeated.
FAILED_S = 30.0
#: Pause after a request that the registry did not answer.
PAUSE_S = 5.0
TIMEOUT_S = 3.0
#: Time of one look-up with all its requests, after which no further request is sent.
LOOK_UP_S = 5.0
ANSWER_MAX_BYTES = 512 * 1024
#: Schemas that one schema may refer to, directly or through others.
REFERENCES_MAX = 20


class _Reference(NamedTuple):
    place: str
    """The path of the schema in the registry."""
    name: str
    """The name that the using schema imports."""
    answer: dict[str, Any]


class Registry:
    def __init__(
        self,
        url: str,
        user: str = "",
        tls: ssl.SSLContext | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates a client of the registry at `url`. `user` is `name:password`, or empty.

        Raises ValueError if the URL is invalid. The caller adds the name of the property to the message.
        """
        self._url = url.rstrip("/")
        self._tls = tls
        self._now_s = now_s
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if user:
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
            if urlsplit(url).scheme != "https":
                Document(url, 0)  # refuses to send a password over http:// to other hosts than loopback
        if urlsplit(url).scheme not in ("http", "https") or urlsplit(url).query:
            raise ValueError("the URL must begin with http:// or https:// and must not have a query")
        self._document("")
        self._found: OrderedDict[int, Schema] = OrderedDict()
        self._failed: OrderedDict[int, tuple[float, str]] = OrderedDict()
        self._paused: tuple[float, str] = (float("-inf"), "")
        self._stop_s = 0.0

    def schema(self, number: int) -> Schema:
        """Returns the schema with this id. Raises FormatError."""
        if number in self._found:
            self._found.move_to_end(number)
            return self._found[number]
        now_s = self._now_s()
        for until_s, reason in (self._failed.get(number, (now_s, "")), self._paused):
            if now_s < until_s:
                raise FormatError(reason)
        self._stop_s = now_s + LOOK_UP_S
        try:
            with schema_errors():
                found = self._fetch(number)
        except FormatError as error:
            _keep(self._failed, number, (now_s + FAILED_S, str(error)))
            raise
        _keep(self._found, number, found)
        return found

    def _fetch(self, number: int) -> Schema:
        where = f"/schemas/ids/{number}"
        answer, origin = self._get(where), f"id {number} of the registry"
        used = self._references(answer)
        match answer.get("schemaType", "AVRO"):
            case "AVRO":
                return AvroSchema.compile(origin, _text(answer), [_text(each.answer) for each in used])
            case "JSON":
                return JsonSchema(origin)
            case "PROTOBUF":
                places = [(each.place, each.name) for each in used] + [(where, f"schema-{number}.proto")]
                return ProtobufSchema.link(origin, [self._file(place, name) for place, name in places])
            case other:
                raise FormatError(f"schema {origin} has the unknown type {str(other)[:40]!r}")

    def _references(self, answer: dict[str, Any]) -> list[_Reference]:
        """Returns all schemas that a schema refers to, directly or through other schemas.

        A schema that refers to others comes after them in the list.
        """
        found: list[_Reference] = []
        asked: set[str] = set()

        def visit(using: dict[str, Any]) -> None:
            for place, name in _named(using.get("references")):
                if place in asked:
                    continue
                asked.add(place)
                if len(asked) > REFERENCES_MAX:
                    raise FormatError(f"the schema refers to more than {REFERENCES_MAX} other schemas")
                inner = self._get(place)
                visit(inner)
                found.append(_Reference(place, name, inner))

        visit(answer)
        return found

    def _file(self, place: str, name: str) -> bytes:
        """Returns the encoded file descriptor of a Protobuf schema."""
        text = _text(self._get(f"{place}?format=serialized"))
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise FormatError(
                "the registry returns Protobuf schemas only as text: compile the schema with `protoc --include_imports "
                "--descriptor_set_out`, and put the file into the directory of schemas as id-NUMBER.desc"
            ) from None
        return named_file(data, name)

    def _document(self, path: str) -> Document:
        return Document(self._url + path, ANSWER_MAX_BYTES, TIMEOUT_S, self._tls, plain=True)

    def _get(self, path: str) -> dict[str, Any]:
        if self._now_s() > self._stop_s:
            raise FormatError(f"the registry's answers took longer than {LOOK_UP_S:g} s")
        try:
            answer = json.loads(self._document(path).read(headers=self._headers))
        except FetchError as error:
            reason = str(error).rstrip(".")
            if error.status is None:
                self._paused = (self._now_s() + PAUSE_S, reason)
            raise FormatError(reason) from None
        except (ValueError, RecursionError):
            raise FormatError(f"the registry's answer for {path} is not JSON") from None
        if not isinstance(answer, dict):
            raise FormatError(f"the registry's answer for {path} has no schema")
        return answer


def _named(references: Any) -> Iterator[tuple[str, str]]:
    """Yields the path in the registry and the name of each schema that another schema refers to."""
    for each in references if isinstance(references, list) else ():
        match each:
            case {"name": str(name), "subject": str(subject), "version": int(version)}:
                yield f"/subjects/{quote(subject, safe='')}/versions/{version}", name
            case _:
                raise FormatError("the schema has a reference without name, subject and version")


def _text(answer: dict[str, Any]) -> str:
    found = answer.get("schema")
    if not isinstance(found, str):
        raise FormatError("the registry's answer has no schema")
    return found


def _keep(cache: OrderedDict[int, Any], number: int, value: Any) -> None:
    cache[number] = value
    cache.move_to_end(number)
    if len(cache) > CACHED_MAX:
        cache.popitem(last=False)
