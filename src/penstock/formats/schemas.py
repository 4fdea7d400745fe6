"""Finds the schema of a key or value: by the registry id in the data's prefix, or by the topic's name.

The functions block on files and on the registry, so call them in a thread. The files of a schema directory have these
names:

    orders-value.avsc              Avro, for values of topic orders; orders-key.avsc for its keys
    orders-value.desc              Protobuf, a descriptor set; values are of the first message type of its last file
    orders-value@shop.Order.desc   the same, but values are of type shop.Order
    id-7.avsc, id-7.desc           the schema with id 7, for data with a registry's prefix
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import dataclass, field

from penstock.formats.descriptors import parse_set
from penstock.formats.limits import FormatError
from penstock.formats.registry import Registry
from penstock.formats.schema import AvroSchema, ProtobufSchema, Schema

FILE_MAX_BYTES = 1024 * 1024
#: Compiled schemas of files that are kept.
CACHED_MAX = 200
_FILE = re.compile(r"(?P<subject>.+?)(?:@(?P<message>[\w.]+))?\.(?P<kind>avsc|desc)")

Stamp = tuple[int, int]


class Schemas:
    """Reads schemas from a directory or a registry, and caches them."""

    def __init__(self, directory: str = "", registry: Registry | None = None) -> None:
        self.directory = directory
        self.registry = registry
        self._files: OrderedDict[str, tuple[Stamp, Schema]] = OrderedDict()

    def __bool__(self) -> bool:
        """Returns True if a directory or a registry is set."""
        return bool(self.directory) or self.registry is not None

    def names(self) -> dict[str, str]:
        """Returns the name of the file for each subject, such as `orders-value` or `id-7`.

        If a subject has an Avro file and a Protobuf file, returns the Avro file. Raises FormatError if the directory
        can't be listed.
        """
        if not self.directory:
            return {}
        try:
            names = sorted(os.listdir(self.directory))
        except OSError as error:
            raise FormatError(f"the directory of schemas can't be listed: {error.strerror}") from None
        found: dict[str, str] = {}
        for name in names:
            if (parts := _FILE.fullmatch(name)) is not None:
                found.setdefault(parts["subject"], name)
        return found

    def read(self, name: str) -> Schema:
        """Returns the schema in a file of the directory. Compiles it only if it has changed. Raises FormatError."""
        path = os.path.join(self.directory, name)
        try:
            with open(path, "rb") as file:
                found = os.fstat(file.fileno())
                stamp = (found.st_mtime_ns, found.st_size)
                kept = self._files.get(name)
                if kept is not None and kept[0] == stamp:
                    return kept[1]
                data = file.read(FILE_MAX_BYTES + 1)
        except OSError as error:
            raise FormatError(f"schema {name} can't be read: {error.strerror}") from None
        if len(data) > FILE_MAX_BYTES:
            raise FormatError(f"schema {name} has more than {FILE_MAX_BYTES} bytes")
        schema = _compile(name, data)
        self._files[name] = (stamp, schema)
        self._files.move_to_end(name)
        if len(self._files) > CACHED_MAX:
            self._files.popitem(last=False)
        return schema


def _compile(name: str, data: bytes) -> Schema:
    parts = _FILE.fullmatch(name)
    assert parts is not None
    try:
        if parts["kind"] == "avsc":
            return AvroSchema.compile(name, data.decode())
        return ProtobufSchema.link(name, parse_set(data), parts["message"] or "")
    except UnicodeDecodeError:
        raise FormatError(f"schema {name} is not UTF-8") from None
    except FormatError as error:
        raise FormatError(f"schema {name} can't be used: {error}") from None


@dataclass(slots=True)
class LookUp:
    """Finds the schemas for one response. Lists the directory once, and requests at most `max_ids` registry ids."""

    schemas: Schemas
    max_ids: int
    _names: dict[str, str] | None = None
    _ids: set[int] = field(default_factory=set)

    def by_id(self, number: int) -> Schema | None:
        """Returns the schema with this registry id; None if there is no file for the id and no registry.

        Raises FormatError.
        """
        file = self._file(f"id-{number}")
        if file is not None:
            return self.schemas.read(file)
        if self.schemas.registry is None:
            return None
        if number not in self._ids:
            if len(self._ids) >= self.max_ids:
                raise FormatError(f"this response already uses {self.max_ids} schema ids: request fewer records")
            self._ids.add(number)
        return self.schemas.registry.schema(number)

    def by_subject(self, subject: str) -> Schema | None:
        """Returns the schema for a subject such as `orders-value`; None if it has no file. Raises FormatError."""
        file = self._file(subject)
        return None if file is None else self.schemas.read(file)

    def _file(self, subject: str) -> str | None:
        if self._names is None:
            self._names = self.schemas.names()
        return self._names.get(subject)
