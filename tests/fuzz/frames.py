"""Makes almost valid requests: mutated frames of every served API and version."""

from __future__ import annotations

import random
import struct
from typing import Any

from penstock.broker.handlers.registry import HANDLERS, served_versions
from penstock.protocol.apis import request_class, request_header_version
from penstock.protocol.codec import EncodeError, encode
from penstock.protocol.schema import Field, Struct
from penstock.records.build import build_batch

INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16, "uint32": 32}
# Values that mutations must not produce: they make the node wait or work for minutes.
CALM = {"max_wait_ms": 0, "timeout_ms": 100, "num_partitions": 1, "count": 1, "min_bytes": 0}
NAMES = ("fuzz", "fuzz", "other", "__consumer_offsets", "", "a/b", "x" * 300, "ключ")


class FrameMaker:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.apis = sorted(key for key in HANDLERS if served_versions(key))
        self.batch = build_batch([(1_700_000_000_000, b"k", b"v", ())])

    def valid(self) -> bytes:
        key = self.random.choice(self.apis)
        version = self.random.choice(served_versions(key))
        message = self._struct(request_class(key), version, 0)
        header = struct.pack(">hhih", key, version, self.random.randint(0, 2**31 - 1), 4) + b"fuzz"
        if request_header_version(key, version) >= 2:
            header += b"\0"
        try:
            return header + encode(message, version)
        except EncodeError:  # the version can't carry the value: use the header alone as a frame
            return header

    def mutated(self) -> bytes:
        frame = bytearray(self.valid())
        for _ in range(self.random.choice((0, 0, 0, 0, 1, 1, 2, 8))):
            at = self.random.randrange(len(frame))
            match self.random.randrange(5):
                case 0:
                    frame[at] = self.random.randrange(256)
                case 1:
                    frame[at] ^= 1 << self.random.randrange(8)
                case 2:
                    del frame[at : at + self.random.randint(1, 8)]
                case 3:
                    frame[at:at] = self.random.randbytes(self.random.randint(1, 8))
                case _:
                    frame[at : at + 4] = self.random.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"))
            if not frame:
                frame = bytearray(b"\0")
        return bytes(frame)

    def _struct(self, cls: type[Struct], version: int, depth: int) -> Any:
        message = cls()
        for field in cls.FIELDS:
            if field.exists_in(version):
                setattr(message, field.name, self._value(field, version, depth))
        return message

    def _value(self, field: Field, version: int, depth: int) -> Any:
        if field.name in CALM:
            return CALM[field.name]
        if field.nullable_in(version) and self.random.random() < 0.2:
            return None
        if field.kind == "array":
            count = self.random.choice((0, 1, 1, 2)) if depth < 4 else 0
            return [self._item(field, version, depth) for _ in range(count)]
        if field.kind == "struct":
            assert isinstance(field.item, type)
            return self._struct(field.item, version, depth + 1)
        return self._scalar(field.kind)

    def _item(self, field: Field, version: int, depth: int) -> Any:
        if isinstance(field.item, type):
            return self._struct(field.item, version, depth + 1)
        return self._scalar(field.item)

    def _scalar(self, kind: str) -> Any:
        rng = self.random
        if kind in INTEGERS:
            bits = INTEGERS[kind]
            if kind.startswith("u"):
                return rng.choice((0, 1, 2**bits - 1))
            return rng.choice((0, 0, 0, 1, 1, -1, 2, -2, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), rng.getrandbits(7)))
        match kind:
            case "string":
                return rng.choice(NAMES)
            case "uuid":
                return rng.choice((bytes(16), rng.randbytes(16)))
            case "boolean":
                return rng.random() < 0.5
            case "float64":
                return rng.choice((0.0, -1.0, 1e9, float("inf"), float("nan")))
            case "records":
                return rng.choice((self.batch, self.batch, b"", rng.randbytes(61), self.batch[:70]))
            case _:
                return rng.choice((b"", b"\0", rng.randbytes(20)))
