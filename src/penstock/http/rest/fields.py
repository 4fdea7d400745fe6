"""Describes the fields of a JSON body or query. One description both checks the input and gives the OpenAPI schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_ITEMS = 10_000
MAX_TEXT = 65_536
#: The largest integer of Kafka's protocol.
INTEGER_MAX = 2**63 - 1


class FieldError(ValueError):
    """Raised if a value does not fit its field. The message names the field and the values that it accepts."""


@dataclass(frozen=True, slots=True)
class Field:
    """Describes one field: its type, its limits and its meaning."""

    kind: str
    """A type of JSON Schema: integer, string, boolean, array or object."""
    about: str = ""
    required: bool = False
    low: int | None = None
    high: int | None = None
    items: Field | None = None
    fields: Mapping[str, Field] = field(default_factory=dict)
    """The fields of an object. An object without fields is a map from names to texts or null."""
    choices: Sequence[str] = ()
    """The only values of a text; empty if it may have any value."""

    def schema(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": self.kind}
        if self.about:
            found["description"] = self.about
        if self.choices:
            found["enum"] = list(self.choices)
        if self.low is not None:
            found["minimum"] = self.low
        if self.high is not None:
            found["maximum"] = self.high
        if self.items is not None:
            found |= {"items": self.items.schema(), "maxItems": MAX_ITEMS}
        if self.kind == "object":
            found |= object_schema(self.fields)
        return found

    def check(self, name: str, value: Any) -> Any:
        """Returns the value unchanged. Raises FieldError if the value does not fit the field."""
        match self.kind:
            case "integer":
                fits = type(value) is int and -INTEGER_MAX - 1 <= value <= INTEGER_MAX
            case "string":
                fits = _is_text(value)
            case "boolean":
                fits = isinstance(value, bool)
            case "array":
                fits = isinstance(value, list) and len(value) <= MAX_ITEMS
            case _:
                fits = isinstance(value, dict) and len(value) <= MAX_ITEMS
        if not fits:
            raise FieldError(f"'{name}' has to be {_article(self.kind)}.")
        if self.choices and value not in self.choices:
            raise FieldError(f"'{name}' can't be {value[:40]!r}: give one of {', '.join(self.choices)}.")
        if self.low is not None and value < self.low:
            raise FieldError(f"'{name}' can't be {value}: give {self.low} or more.")
        if self.high is not None and value > self.high:
            raise FieldError(f"'{name}' can't be {value}: give {self.high} or less.")
        if self.items is not None:
            return [self.items.check(f"{name}[{index}]", each) for index, each in enumerate(value)]
        if self.kind == "object":
            return check_object(self.fields, value, f"{name}.") if self.fields else _texts(name, value)
        return value

    def parse(self, name: str, text: str) -> Any:
        """Returns the value of a field from its text in the query or in the path. Raises FieldError."""
        if self.kind == "integer":
            digits = text.removeprefix("-")
            if not digits.isdecimal() or not digits.isascii() or len(digits) > 19:
                raise FieldError(f"'{name}' can't be {text[:40]!r}: give a whole number.")
            return self.check(name, int(text))
        if self.kind == "boolean":
            if text not in ("true", "false"):
                raise FieldError(f"'{name}' can't be {text[:40]!r}: give true or false.")
            return text == "true"
        return self.check(name, text)


def _is_text(value: Any) -> bool:
    """Returns True for a text of at most MAX_TEXT characters that can be encoded in UTF-8.

    JSON can contain a lone surrogate, which can't be encoded in UTF-8.
    """
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _article(kind: str) -> str:
    return {"integer": "a whole number of at most 64 bits", "array": "a list", "object": "an object"}.get(
        kind, f"a {kind}"
    )


def _texts(name: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    for key, each in value.items():
        if not _is_text(key) or not (each is None or _is_text(each)):
            raise FieldError(
                f"Each name and each value in '{name}' has to be valid text of at most {MAX_TEXT} characters; "
                "a value may also be null."
            )
    return value


def object_schema(fields: Mapping[str, Field]) -> dict[str, Any]:
    if not fields:
        return {"type": "object", "additionalProperties": {"type": ["string", "null"]}}
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: each.schema() for name, each in fields.items()},
        "additionalProperties": False,
    }
    required = [name for name, each in fields.items() if each.required]
    return found | ({"required": required} if required else {})


def check_object(fields: Mapping[str, Field], value: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the object after a check of each field. Raises FieldError for a wrong or unknown field."""
    if not isinstance(value, dict):
        raise FieldError(f"{prefix.rstrip('.') or 'the body'} has to be an object.")
    for name in value:
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise FieldError(f"there is no field '{prefix}{str(name)[:40]}': the fields are {known}.")
    for name, each in fields.items():
        if each.required and name not in value:
            raise FieldError(f"the field '{prefix}{name}' is missing.")
    return {name: fields[name].check(prefix + name, each) for name, each in value.items()}


def parse_texts(fields: Mapping[str, Field], texts: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values of the query's parameters, parsed from their texts. Raises FieldError."""
    for name in texts:
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise FieldError(f"there is no parameter '{name[:40]}': the parameters are {known}.")
    for name, each in fields.items():
        if each.required and name not in texts:
            raise FieldError(f"the parameter '{name}' is missing.")
    return {name: fields[name].parse(name, text) for name, text in texts.items()}


def list_of(items: Field, about: str = "", *, required: bool = False) -> Field:
    return Field("array", about, required, items=items)


def object_of(fields: Mapping[str, Field], about: str = "", *, required: bool = False) -> Field:
    return Field("object", about, required, fields=fields)


PARTITIONS: Field = list_of(
    object_of({"topic": Field("string", required=True), "partition": Field("integer", required=True, low=0)}),
    "partitions",
)


def partition_keys(partitions: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    return [(each["topic"], each["partition"]) for each in partitions]
