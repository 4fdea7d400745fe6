"""Builds source text for the two code generators: lines, indentation, and the objects that the code refers to."""

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct as Layout
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.protocol.schema import Field, Struct

FORMATS = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "boolean": "?",
    "uuid": "16s",
}
"""The letter of each fixed-size kind of field in a format of Python's `struct`."""

SMALL_ARRAY = 16
"""Arrays of fewer numbers than this have a `struct.Struct` prepared for their length."""


class Source:
    """Collects the source lines of one generated function, and the names that the function uses."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.lines: list[str] = []
        self.namespace = namespace
        self._depth = 0
        self._fresh = 0

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        self.line(header)
        self._depth += 1
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self._depth -= 1

    def fresh(self, prefix: str) -> str:
        self._fresh += 1
        return f"{prefix}{self._fresh}"

    def bind(self, name: str, value: Any) -> str:
        self.namespace[name] = value
        return name

    def struct_class(self, cls: "type[Struct]") -> str:
        return self.bind(cls.__name__, cls)

    def unpacker(self, letters: str) -> tuple[str, int]:
        layout = Layout(">" + letters)
        return self.bind(f"unpack_{_identifier(letters)}", layout.unpack_from), layout.size

    def packer(self, letters: str) -> str:
        return self.bind(f"pack_{_identifier(letters)}", Layout(">" + letters).pack)

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def _identifier(letters: str) -> str:
    return letters.replace("?", "o")


def default_expression(source: Source, field: "Field") -> str:
    """Returns the source of an expression that creates the field's default value."""
    default = field.scalar_default()
    if default is not ...:
        return repr(default)
    if field.kind == "array":
        return "[]"
    assert isinstance(field.item, type)
    return f"{source.struct_class(field.item)}()"


def differs_from_default(field: "Field", value: str) -> str:
    """Returns the source of a condition that is true if `value` is not the field's default."""
    default = field.scalar_default()
    if default is None:
        return f"{value} is not None"
    if default is not ...:
        return f"{value} != {default!r}"
    if field.kind == "array":
        return f"{value} is None or {value}" if field.nullable else value
    assert isinstance(field.item, type)
    conditions = [f"{value} is None"] if field.nullable else []
    conditions += [differs_from_default(inner, f"{value}.{inner.name}") for inner in field.item.FIELDS]
    return " or ".join((*conditions, f"{value}.unknown_tagged_fields"))
