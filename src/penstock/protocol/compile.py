"""Compiles declarations to functions, once per (message, version), on first use.

This is the only module that runs generated source. The source comes only from Penstock's own declarations.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.protocol.primitives import DecodeError, EncodeError
from penstock.protocol.source import Source, default_expression

if TYPE_CHECKING:
    from penstock.protocol.schema import Message, Struct

Reader = Callable[..., tuple[Any, int]]
Writer = Callable[[Any], list[Any]]


def _define(name: str, text: str, namespace: dict[str, Any], origin: str) -> Any:
    code = compile(text, f"<penstock {origin}>", "exec")
    exec(code, namespace)
    return namespace[name]


def compile_init(cls: "type[Struct]") -> Callable[..., None]:
    """Compiles the constructor of a message class. The constructor takes every field as an optional keyword, and
    creates new empty arrays."""
    source = Source({"missing": ...})
    fresh = [field for field in cls.FIELDS if field.scalar_default() is ...]
    parameters = [
        f"{field.name}={'missing' if field in fresh else repr(field.scalar_default())}" for field in cls.FIELDS
    ]
    with source.block(f"def __init__(self, *, {', '.join((*parameters, 'unknown_tagged_fields=None'))}):"):
        source.line("self.unknown_tagged_fields = unknown_tagged_fields")
        for field in cls.FIELDS:
            value = field.name
            if field in fresh:
                value = f"{default_expression(source, field)} if {value} is missing else {value}"
            source.line(f"self.{field.name} = {value}")
    init: Callable[..., None] = _define("__init__", source.text(), source.namespace, f"{cls.__name__} constructor")
    return init


def is_flexible(cls: "type[Message]", version: int) -> bool:
    return cls.FLEXIBLE_SINCE is not None and version >= cls.FLEXIBLE_SINCE


def compile_reader(cls: "type[Message]", version: int) -> Reader:
    from penstock.protocol.emit_reader import emit_reader

    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise DecodeError(f"{cls.__name__} has no version {version}")
    text, namespace = emit_reader(cls, version, is_flexible(cls, version))
    read: Reader = _define("read", text, namespace, f"{cls.__name__} v{version} reader")
    return read


def compile_writer(cls: "type[Message]", version: int) -> Writer:
    from penstock.protocol.emit_writer import emit_writer

    if not cls.MIN_VERSION <= version <= cls.MAX_VERSION:
        raise EncodeError(f"{cls.__name__} has no version {version}")
    text, namespace = emit_writer(cls, version, is_flexible(cls, version))
    write: Writer = _define("write", text, namespace, f"{cls.__name__} v{version} writer")
    return write
