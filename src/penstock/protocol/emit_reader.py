"""Generates the Python source of the decoder of one message version, as one function.

Nested structs become loops in the same function. Neighbouring fields of fixed size, and the length after them, are read
with one `unpack_from`. Most reads do not check bounds. Instead, the decoder checks once, at its end, that its position
is inside of the frame. This is safe: past the end of the frame, a slice returns fewer bytes, and reading a number
raises an error. Every loop ends, because `left` limits its number of iterations. A frame without record sets is first
converted to `bytes`, which are fastest to slice and decode. Record sets stay views of the frame.
"""

from itertools import repeat
from struct import Struct as Layout
from struct import error as StructError
from typing import TYPE_CHECKING, Any

from penstock.protocol import primitives
from penstock.protocol.source import FORMATS, SMALL_ARRAY, Source, default_expression

if TYPE_CHECKING:
    from penstock.protocol.schema import Field, Message, Struct

_NAMESPACE: dict[str, Any] = {
    "new": object.__new__,
    "repeat": repeat,
    "MAX_ELEMENTS": primitives.MAX_ELEMENTS,
    "read_length": primitives.read_length,
    "read_numbers": primitives.read_numbers,
    "read_uuids": primitives.read_uuids,
    "read_string_length": primitives.read_string_length,
    "read_uvarint": primitives.read_uvarint,
    "read_unknown_tag": primitives.read_unknown_tag,
    "read_unknown_tags": primitives.read_unknown_tags,
    "StructError": StructError,
    "early_end_error": primitives.early_end_error,
    "past_end_error": primitives.past_end_error,
    "text_error": primitives.text_error,
    "null_error": primitives.null_error,
    "length_error": primitives.length_error,
    "too_many_error": primitives.too_many_error,
    "tag_error": primitives.tag_error,
}


def has_records(cls: "type[Struct]", version: int) -> bool:
    """Returns True if the message has a record set in this version."""
    for field in cls.FIELDS:
        if not field.exists_in(version):
            continue
        if field.kind == "records" or (isinstance(field.item, type) and has_records(field.item, version)):
            return True
    return False


def emit_reader(cls: "type[Message]", version: int, flexible: bool) -> tuple[str, dict[str, Any]]:
    """Returns the source and the namespace of the function `read(buf, p, limit=MAX_ELEMENTS) -> (message, position
    after it)`."""
    emitter = _Reader(version, flexible, views=has_records(cls, version))
    return emitter.function(cls), emitter.source.namespace


class _Reader:
    def __init__(self, version: int, flexible: bool, views: bool) -> None:
        self.source = Source(dict(_NAMESPACE))
        self.version = version
        self.flexible = flexible
        self.views = views
        self.targets: list[str] = []
        self.letters = ""

    def function(self, cls: "type[Message]") -> str:
        source = self.source
        with source.block("def read(buf, p, limit=MAX_ELEMENTS):"):
            buffer = "memoryview" if self.views else "bytes"
            with source.block(f"if type(buf) is not {buffer}:"):
                source.line(f"buf = {buffer}(buf)")
            source.line("left = len(buf) - p")
            with source.block("if left > limit:"):
                source.line("left = limit")
            label = repr(f"{cls.__name__} v{self.version}")
            with source.block("try:"):
                self.struct(cls, "o")
            with source.block("except (StructError, IndexError) as error:"):
                source.line(f"raise early_end_error({label}) from error")
            with source.block("except UnicodeDecodeError as error:"):
                source.line(f"raise text_error({label}) from error")
            with source.block("if p > len(buf):"):
                source.line(f"raise past_end_error({label})")
            source.line("return o, p")
        return source.text()

    # Fields of fixed size are collected in a group until a field of variable size needs the position.

    def group(self, target: str, letter: str) -> None:
        self.targets.append(target)
        self.letters += letter

    def flush(self) -> None:
        if not self.targets:
            return
        if self.letters == "B":
            self.source.line(f"{self.targets[0]} = buf[p]")
            self.source.line("p += 1")
        else:
            unpack, size = self.source.unpacker(self.letters)
            self.source.line(f"{', '.join(self.targets)}{',' * (len(self.targets) == 1)} = {unpack}(buf, p)")
            self.source.line(f"p += {size}")
        self.targets, self.letters = [], ""

    def struct(self, cls: "type[Struct]", target: str) -> None:
        source = self.source
        source.line(f"{target} = new({source.struct_class(cls)})")
        fields = [field for field in cls.FIELDS if field.exists_in(self.version)]
        tagged = [field for field in fields if field.tagged_in(self.version)]
        for field in cls.FIELDS:
            if field in tagged or field not in fields:
                self.default(field, f"{target}.{field.name}")
        source.line(f"{target}.unknown_tagged_fields = None")
        for field in fields:
            if field not in tagged:
                self.field(field, f"{target}.{field.name}", f"{cls.__name__}.{field.name}")
        if self.flexible:
            self.tags(cls, target, tagged)
        else:
            self.flush()

    def default(self, field: "Field", target: str) -> None:
        """Emits code that sets a field to its default. For a struct, emits code for each of its fields, because a
        constructor call takes three times as long."""
        if field.scalar_default() is not ... or not isinstance(field.item, type) or field.kind == "array":
            self.source.line(f"{target} = {default_expression(self.source, field)}")
            return
        inner = self.source.fresh("o")
        self.source.line(f"{target} = {inner} = new({self.source.struct_class(field.item)})")
        self.source.line(f"{inner}.unknown_tagged_fields = None")
        for part in field.item.FIELDS:
            self.default(part, f"{inner}.{part.name}")

    def field(self, field: "Field", target: str, name: str) -> None:
        kind = field.kind
        if kind in FORMATS:
            self.group(target, FORMATS[kind])
        elif kind == "struct":
            self.nested(field, target)
        else:
            compact = field.compact_in(self.version, self.flexible)
            nullable = field.nullable_in(self.version)
            self.length(kind, compact, nullable, name)
            if nullable:
                with self.source.block("if n < 0:"):
                    self.source.line(f"{target} = None")
                with self.source.block("else:"):
                    self.body(field, target, name)
            else:
                self.body(field, target, name)

    def nested(self, field: "Field", target: str) -> None:
        assert isinstance(field.item, type)
        inner = self.source.fresh("o")
        if not field.nullable_in(self.version):
            self.struct(field.item, inner)
            self.source.line(f"{target} = {inner}")
            return
        self.group("n", "B")
        self.flush()
        # A null struct is encoded as a byte -1, but as 0 in a tagged section.
        with self.source.block("if n == 0:" if field.tagged_in(self.version) else "if n > 127:"):
            self.source.line(f"{target} = None")
        with self.source.block("else:"):
            self.struct(field.item, inner)
            self.source.line(f"{target} = {inner}")

    def length(self, kind: str, compact: bool, nullable: bool, name: str) -> None:
        """Emits code that reads a length into the variable `n`; -1 means null, if null is allowed."""
        source = self.source
        if compact:
            self.group("n", "B")
            self.flush()
            with source.block("if n > 127:"):
                source.line(f"n, p = {'read_string_length' if kind == 'string' else 'read_length'}(buf, p - 1)")
            source.line("n -= 1")
        else:
            self.group("n", "h" if kind == "string" else "i")
            self.flush()
        lowest = -1 if nullable and not compact else 0
        if nullable and compact:
            return
        with source.block(f"if n < {lowest}:"):
            source.line(f"raise {'null_error' if compact else 'length_error'}({name!r}{'' if compact else ', n'})")

    def body(self, field: "Field", target: str, name: str) -> None:
        source = self.source
        if field.kind == "array":
            self.array(field, target, name)
            return
        source.line("e = p + n")
        if field.kind == "string":
            source.line(f"{target} = {self.text()}")
        elif field.kind == "records":
            source.line(f"{target} = buf[p:e]")
        else:
            source.line(f"{target} = {'buf[p:e].tobytes()' if self.views else 'buf[p:e]'}")
        source.line("p = e")

    def text(self) -> str:
        return "buf[p:e].tobytes().decode()" if self.views else "buf[p:e].decode()"

    def array(self, field: "Field", target: str, name: str) -> None:
        source = self.source
        source.line("left -= n")
        with source.block("if left < 0:"):
            source.line(f"raise too_many_error({name!r})")
        item = field.item
        if isinstance(item, type):
            values, element = source.fresh("a"), source.fresh("o")
            source.line(f"{target} = {values} = []")
            with source.block("for _ in repeat(None, n):"):
                self.struct(item, element)
                source.line(f"{values}.append({element})")
        elif item in FORMATS:
            self.numbers(item, target)
        else:
            values = source.fresh("a")
            source.line(f"{target} = {values} = []")
            with source.block("for _ in repeat(None, n):"):
                self.length(item, self.flexible, False, name)
                source.line("e = p + n")
                source.line(f"{values}.append({self.text()})")
                source.line("p = e")

    def numbers(self, kind: str, target: str) -> None:
        letters = FORMATS[kind]
        size = Layout(">" + letters).size
        small = self.source.bind(
            f"unpack_{kind}s", [Layout(f">{letters * count}").unpack_from for count in range(SMALL_ARRAY)]
        )
        many = f"read_{'uuids(buf, p, n)' if kind == 'uuid' else f'numbers(buf, p, n, {letters!r})'}"
        self.source.line(f"{target} = list({small}[n](buf, p)) if n < {SMALL_ARRAY} else {many}")
        self.source.line(f"p += {size} * n" if size > 1 else "p += n")

    def tags(self, cls: "type[Struct]", target: str, tagged: "list[Field]") -> None:
        source = self.source
        self.group("n", "B")
        self.flush()
        with source.block("if n:"):
            with source.block("if n > 127:"):
                source.line("n, p = read_uvarint(buf, p - 1)")
            source.line("left -= n")
            with source.block("if left < 0:"):
                source.line(f"raise too_many_error({cls.__name__!r})")
            if tagged:
                self.known_tags(cls, target, tagged)
            else:
                source.line(f"{target}.unknown_tagged_fields, p = read_unknown_tags(buf, p, n)")

    def known_tags(self, cls: "type[Struct]", target: str, tagged: "list[Field]") -> None:
        source = self.source
        stop = source.fresh("stop")
        with source.block("for _ in repeat(None, n):"):
            source.line("tag, p = read_uvarint(buf, p)")
            source.line("n, p = read_uvarint(buf, p)")
            word = "if"
            for field in tagged:
                name = f"{cls.__name__}.{field.name}"
                with source.block(f"{word} tag == {field.tag}:"):
                    source.line(f"{stop} = p + n")
                    self.field(field, f"{target}.{field.name}", name)
                    self.flush()
                    with source.block(f"if p != {stop}:"):
                        source.line(f"raise tag_error({name!r})")
                word = "elif"
            with source.block("else:"):
                with source.block(f"if {target}.unknown_tagged_fields is None:"):
                    source.line(f"{target}.unknown_tagged_fields = {{}}")
                source.line(f"{target}.unknown_tagged_fields[tag], p = read_unknown_tag(buf, p, n)")
