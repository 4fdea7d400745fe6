"""Declares messages: a class per struct, a field per line, in wire order.

    class TopicProduceData(Struct):
        name: str = string("0-12")
        topic_id: bytes = uuid("13+", ignorable=True)

A field declares the versions in which it exists (default: all) and in which it may be null. It also declares its
default, and whether it is tagged. The value of an `ignorable` field may be dropped in a version without this field.
Every field is an optional keyword argument with Kafka's default. Creating a class costs microseconds: constructors and
codecs are compiled on first use (`compile`).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

from penstock.protocol import compile as compiler

RecordBytes = bytes | bytearray | memoryview
"""A record set: decoded as a memoryview of the frame, encoded as it is given."""

FIRST_OWN_TAG = 10_000
"""Tagged fields from this number on are Penstock's own. Kafka uses the smallest numbers, and skips tags that it doesn't
know."""

_LAST_VERSION = 0x7FFF
_SCALAR_DEFAULTS: dict[str, Any] = {
    "string": "",
    "binary": b"",
    "uuid": bytes(16),
    "boolean": False,
    "float64": 0.0,
}


@lru_cache(maxsize=256)
def version_range(text: str) -> range:
    """Parses a range of versions: "3", "2-7", "9+" or "none"."""
    if text == "none":
        return range(0)
    if text.endswith("+"):
        return range(int(text[:-1]), _LAST_VERSION + 1)
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)


class Field:
    """Describes a field of a message. `item` is the element kind of an array, or the class of a struct."""

    __slots__ = ("default", "flexible", "ignorable", "item", "kind", "name", "nullable", "tag", "tagged", "versions")

    name: str

    def __init__(
        self,
        kind: str,
        versions: str = "0+",
        *,
        nullable: bool | str = False,
        default: Any = ...,
        ignorable: bool = False,
        tag: int | None = None,
        tagged: str | None = None,
        flexible: str | None = None,
        item: "str | type[Struct]" = "",
    ) -> None:
        self.kind = kind
        self.versions = versions
        self.nullable = nullable
        self.default = default
        self.ignorable = ignorable
        self.tag = tag
        self.tagged = tagged
        self.flexible = flexible
        self.item = item

    def exists_in(self, version: int) -> bool:
        return version in version_range(self.versions)

    def nullable_in(self, version: int) -> bool:
        if isinstance(self.nullable, bool):
            return self.nullable
        return version in version_range(self.nullable)

    def tagged_in(self, version: int) -> bool:
        return self.tag is not None and (self.tagged is None or version in version_range(self.tagged))

    def compact_in(self, version: int, flexible: bool) -> bool:
        """Returns True if the field's lengths are encoded as varints in this version.

        `flexible` is True for a flexible version of the message. It is ignored if the field declares its own range of
        flexible versions.
        """
        if self.flexible is None:
            return flexible
        return version in version_range(self.flexible)

    def scalar_default(self) -> Any:
        """Returns the default value of a field.

        Returns `...` for an array or a struct, because each message needs its own new array or struct.
        """
        if self.default is not ...:
            return self.default
        if self.kind in ("array", "struct"):
            return ...
        if self.kind == "records":
            return None if self.nullable else b""
        return _SCALAR_DEFAULTS.get(self.kind, 0)


def _scalar(kind: str) -> Callable[..., Any]:
    def declare(
        versions: str = "0+",
        *,
        nullable: bool | str = False,
        default: Any = ...,
        ignorable: bool = False,
        tag: int | None = None,
        tagged: str | None = None,
        flexible: str | None = None,
    ) -> Any:
        return Field(
            kind,
            versions,
            nullable=nullable,
            default=default,
            ignorable=ignorable,
            tag=tag,
            tagged=tagged,
            flexible=flexible,
        )

    declare.__name__ = kind
    return declare


int8 = _scalar("int8")
int16 = _scalar("int16")
int32 = _scalar("int32")
int64 = _scalar("int64")
uint16 = _scalar("uint16")
uint32 = _scalar("uint32")
float64 = _scalar("float64")
boolean = _scalar("boolean")
uuid = _scalar("uuid")
string = _scalar("string")
binary = _scalar("binary")
record_data = _scalar("records")


def array(
    item: "Callable[..., Any] | type[Struct]",
    versions: str = "0+",
    *,
    nullable: bool | str = False,
    default: Any = ...,
    ignorable: bool = False,
    tag: int | None = None,
    tagged: str | None = None,
) -> Any:
    """Declares an array: `array(int32)` or `array(SomeStruct)`."""
    return Field(
        "array",
        versions,
        nullable=nullable,
        default=default,
        ignorable=ignorable,
        tag=tag,
        tagged=tagged,
        item=item if isinstance(item, type) else item.__name__,
    )


def struct(
    item: "type[Struct]",
    versions: str = "0+",
    *,
    nullable: bool | str = False,
    default: Any = ...,
    ignorable: bool = False,
    tag: int | None = None,
    tagged: str | None = None,
) -> Any:
    return Field(
        "struct",
        versions,
        nullable=nullable,
        default=default,
        ignorable=ignorable,
        tag=tag,
        tagged=tagged,
        item=item,
    )


@dataclass_transform(kw_only_default=True)
class StructMeta(type):
    """Turns the declared fields of a struct into slots. It is the metaclass of structs."""

    FIELDS: tuple[Field, ...]

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        **options: Any,
    ) -> "StructMeta":
        fields = []
        for key, value in namespace.items():
            if type(value) is Field:
                value.name = key
                fields.append(value)
        for field in fields:
            del namespace[field.name]
        if bases:
            namespace["__slots__"] = tuple([field.name for field in fields])
            namespace["FIELDS"] = tuple(fields)
            namespace["CODECS"] = ({}, {})
        cls = super().__new__(mcls, name, bases, namespace)
        if options:
            _set_versions(cls, **options)
        return cls

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_options: Any) -> None:
        super().__init__(name, bases, namespace)


def _set_versions(cls: Any, versions: str, flexible: str = "none", api_key: int = -1) -> None:
    valid = version_range(versions)
    flexible_versions = version_range(flexible)
    cls.API_KEY = api_key
    cls.MIN_VERSION = valid.start
    cls.MAX_VERSION = valid.stop - 1
    cls.FLEXIBLE_SINCE = flexible_versions.start if flexible_versions else None


class Struct(metaclass=StructMeta):
    """Represents a part of a message.

    `unknown_tagged_fields` keeps the tagged fields of a newer peer, so that they can be written back unchanged.
    """

    __slots__ = ("unknown_tagged_fields",)

    FIELDS: ClassVar[tuple[Field, ...]] = ()
    CODECS: ClassVar[tuple[dict[int, Any], dict[int, Any]]]

    if TYPE_CHECKING:
        unknown_tagged_fields: dict[int, bytes] | None = None

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        cls.__init__ = compiler.compile_init(cls)  # type: ignore[method-assign]
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        if (self.unknown_tagged_fields or None) != (other.unknown_tagged_fields or None):
            return False
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.FIELDS)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = [f"{field.name}={getattr(self, field.name)!r}" for field in self.FIELDS]
        if self.unknown_tagged_fields:
            values.append(f"unknown_tagged_fields={self.unknown_tagged_fields!r}")
        return f"{type(self).__name__}({', '.join(values)})"


class Message(Struct):
    """Represents a struct that is encoded as a whole: a request, a response, a header or a persisted record."""

    API_KEY: ClassVar[int]
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_SINCE: ClassVar[int | None]
