"""Generates the Python source of the encoder of one message version, as one function.

The encoder appends chunks to a list and joins them once. Neighbouring fields of fixed size, and the length after them,
are packed with one call. A record set is not copied: the encoder joins the chunks before it, and returns the record set
as a chunk of its own.
"""

from struct import Struct as Layout
from struct import error as StructError
from typing import TYPE_CHECKING, Any

from penstock.protocol import primitives
from penstock.protocol.source import FORMATS, SMALL_ARRAY, Source, differs_from_default

if TYPE_CHECKING:
    from penstock.protocol.schema import Field, Message, Struct

_NAMESPACE: dict[str, Any] = {
    "Layout": Layout,
    "MAX_ERROR_MESSAGE_BYTES": primitives.MAX_ERROR_MESSAGE_BYTES,
    "MAX_STRING_BYTES": primitives.MAX_STRING_BYTES,
    "StructError": StructError,
    "value_error": primitives.value_error,
    "one_byte": tuple(bytes([value]) for value in range(128)),
    "join": b"".join,
    "write_uvarint": primitives.write_uvarint,
    "write_tags": primitives.write_tags,
    "lost_value_error": primitives.lost_value_error,
    "uuid_error": primitives.uuid_error,
    "string_error": primitives.string_error,
    "shortened": primitives.shortened,
}


def emit_writer(cls: "type[Message]", version: int, flexible: bool) -> tuple[str, dict[str, Any]]:
    """Returns the source and the namespace of the function `write(message) -> list of chunks`."""
    emitter = _Writer(version, flexible)
    return emitter.function(cls), emitter.source.namespace


class _Writer:
    def __init__(self, version: int, flexible: bool) -> None:
        self.source = Source(dict(_NAMESPACE))
        self.version = version
        self.flexible = flexible
        self.values: list[str] = []
        self.letters = ""
        self.append = "w"

    def function(self, cls: "type[Message]") -> str:
        source = self.source
        with source.block("def write(o):"):
            source.line("out = []")
            source.line("parts = []")
            source.line("w = out.append")
            with source.block("try:"):
                self.struct(cls, "o")
                with source.block("if out or not parts:"):
                    source.line("parts.append(join(out))")
            with source.block("except (StructError, AttributeError, TypeError, UnicodeEncodeError) as error:"):
                source.line(f"raise value_error('{cls.__name__} v{self.version}', error) from error")
            source.line("return parts")
        return source.text()

    def group(self, value: str, letter: str) -> None:
        self.values.append(value)
        self.letters += letter

    def packed(self, extra_values: tuple[str, ...] = (), extra_letters: str = "") -> str:
        pack = self.source.packer(self.letters + extra_letters)
        return f"{pack}({', '.join((*self.values, *extra_values))})"

    def flush(self) -> None:
        if self.values == ["0"] and self.letters == "B":
            self.source.line(f"{self.append}(b'\\0')")
        elif self.values:
            self.source.line(f"{self.append}({self.packed()})")
        self.values, self.letters = [], ""

    def struct(self, cls: "type[Struct]", value: str) -> None:
        tagged = []
        for field in cls.FIELDS:
            name = f"{cls.__name__}.{field.name}"
            if not field.exists_in(self.version):
                self.absent(field, f"{value}.{field.name}", name)
            elif field.tagged_in(self.version):
                tagged.append(field)
            else:
                self.field(field, f"{value}.{field.name}", name)
        if self.flexible:
            self.tags(cls, value, tagged)
        else:
            self.flush()

    def absent(self, field: "Field", value: str, name: str) -> None:
        if not field.ignorable:
            with self.source.block(f"if {differs_from_default(field, value)}:"):
                self.source.line(f"raise lost_value_error({name!r}, {self.version})")

    def field(self, field: "Field", value: str, name: str) -> None:
        source = self.source
        kind = field.kind
        if kind == "uuid":
            with source.block(f"if len({value}) != 16:"):
                source.line(f"raise uuid_error({name!r})")
        if kind in FORMATS:
            self.group(value, FORMATS[kind])
        elif kind == "struct":
            self.nested(field, value)
        else:
            self.variable(field, value, name)

    def nested(self, field: "Field", value: str) -> None:
        assert isinstance(field.item, type)
        source = self.source
        inner = source.fresh("o")
        self.flush()
        source.line(f"{inner} = {value}")
        if not field.nullable_in(self.version):
            self.struct(field.item, inner)
            return
        with source.block(f"if {inner} is None:"):
            null = b"\0" if field.tagged_in(self.version) else b"\xff"
            source.line(f"{self.append}({null!r})")
        with source.block("else:"):
            source.line(f"{self.append}(b'\\x01')")
            self.struct(field.item, inner)

    def variable(self, field: "Field", value: str, name: str) -> None:
        source = self.source
        compact = field.compact_in(self.version, self.flexible)
        inner = source.fresh("v")
        source.line(f"{inner} = {value}")
        if not field.nullable_in(self.version):
            self.present(field, inner, name, compact)
            return
        with source.block(f"if {inner} is None:"):
            values, letters = self.values.copy(), self.letters
            if compact:
                self.group("0", "B")
            else:
                self.group("-1", "h" if field.kind == "string" else "i")
            self.flush()
            self.values, self.letters = values, letters
        with source.block("else:"):
            self.present(field, inner, name, compact)

    def present(self, field: "Field", value: str, name: str, compact: bool) -> None:
        source = self.source
        kind = field.kind
        if kind == "string":
            self.string(value, name, compact)
            return
        source.line(f"n = len({value})")
        self.length("i", compact)
        if kind == "array":
            self.items(field, value, name)
        elif kind == "records":
            with source.block("if n:"):
                source.line("parts.append(join(out))")
                source.line("out.clear()")
                source.line(f"parts.append({value})")
        else:
            source.line(f"{self.append}({value})")

    def string(self, value: str, name: str, compact: bool) -> None:
        source = self.source
        source.line(f"b = {value}.encode()")
        source.line("n = len(b)")
        if name.endswith("error_message"):
            with source.block("if n > MAX_ERROR_MESSAGE_BYTES:"):
                source.line("b = shortened(b)")
                source.line("n = len(b)")
        else:
            with source.block("if n > MAX_STRING_BYTES:"):
                source.line(f"raise string_error({name!r}, n)")
        self.length("h", compact)
        source.line(f"{self.append}(b)")

    def length(self, letter: str, compact: bool) -> None:
        """Emits code that writes the fixed-size fields collected so far, and the length `n` after them."""
        source = self.source
        if not compact:
            self.group("n", letter)
            self.flush()
            return
        if self.values:
            short = self.packed(("n + 1",), "B")
            long = f"{self.packed()} + write_uvarint(n + 1)"
        else:
            short, long = "one_byte[n + 1]", "write_uvarint(n + 1)"
        self.values, self.letters = [], ""
        source.line(f"{self.append}({short} if n < 127 else {long})")

    def items(self, field: "Field", value: str, name: str) -> None:
        source = self.source
        item = field.item
        if isinstance(item, type):
            element = source.fresh("o")
            with source.block(f"for {element} in {value}:"):
                self.struct(item, element)
        elif item in FORMATS:
            self.numbers(item, value, name)
        else:
            with source.block(f"for s in {value}:"):
                self.string("s", name, self.flexible)

    def numbers(self, kind: str, value: str, name: str) -> None:
        source = self.source
        letters = FORMATS[kind]
        if kind == "uuid":
            with source.block(f"for s in {value}:"):
                with source.block("if len(s) != 16:"):
                    source.line(f"raise uuid_error({name!r})")
                source.line(f"{self.append}(s)")
            return
        small = source.bind(f"pack_{kind}s", [Layout(f">{letters * count}").pack for count in range(SMALL_ARRAY)])
        source.line(f"{self.append}(({small}[n] if n < {SMALL_ARRAY} else Layout(f'>{{n}}{letters}').pack)(*{value}))")

    def tags(self, cls: "type[Struct]", value: str, tagged: "list[Field]") -> None:
        source = self.source
        unknown = f"{value}.unknown_tagged_fields"
        if not tagged:
            self.unknown_tags(unknown)
            return
        self.flush()
        tags = source.fresh("t")
        source.line(f"{tags} = {unknown}.copy() if {unknown} else {{}}")
        for field in tagged:
            held = f"{value}.{field.name}"
            with source.block(f"if {differs_from_default(field, held)}:"):
                self.tagged_field(field, held, f"{cls.__name__}.{field.name}", tags)
        source.line(f"{self.append}(write_tags({tags}) if {tags} else b'\\0')")

    def unknown_tags(self, unknown: str) -> None:
        """Emits code that writes the fixed-size fields collected so far and the tagged section, as one chunk.

        An empty tagged section is a zero byte, which is packed together with the fields in one call.
        """
        if self.values:
            none, some = self.packed((), "x"), f"{self.packed()} + write_tags({unknown})"
        else:
            none, some = "b'\\0'", f"write_tags({unknown})"
        self.values, self.letters = [], ""
        self.source.line(f"{self.append}({some} if {unknown} else {none})")

    def tagged_field(self, field: "Field", value: str, name: str, tags: str) -> None:
        source = self.source
        chunks = source.fresh("c")
        outer, self.append = self.append, f"{chunks}.append"
        source.line(f"{chunks} = []")
        self.field(field, value, name)
        self.flush()
        source.line(f"{tags}[{field.tag}] = join({chunks})")
        self.append = outer
