"""Tests that Kafka's own generated classes read and write the same bytes, also of persisted record types."""

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from wire_strategies import message_classes

from penstock.protocol.codec import encode
from penstock.protocol.compile import is_flexible
from penstock.protocol.schema import Message, Struct
from tools import kafka
from tools.java_tests import require_jars

ORACLE = Path(__file__).with_name("CodecOracle.java")
MESSAGES_PER_VERSION = 10
LENGTHS = (0, 1, 2, 3)
LONG_LENGTHS = (*LENGTHS, 130)
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}

pytestmark = [pytest.mark.java, pytest.mark.slow]


class Generator:
    """Generates messages with many nulls, defaults, edge values and unknown tags."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def scalar(self, kind: str) -> Any:
        rng = self.rng
        match kind:
            case "boolean":
                return rng.random() < 0.5
            case "float64":
                return rng.uniform(-1e9, 1e9)
            case "uuid":
                return rng.choice((bytes(16), rng.randbytes(16)))
            case "string":
                return rng.choice(("", "a", "tøpic €😀", "x" * 126, "y" * 127, "z" * 300))
            case "binary" | "records":
                return rng.choice((b"", b"abc", b"w" * 200))
            case "uint16" | "uint32":
                return rng.getrandbits(16 if kind == "uint16" else 32)
        half = 1 << (INTEGER_BITS[kind] - 1)
        return rng.choice((0, -1, 1, -half, half - 1, rng.randrange(-half, half)))

    def struct(self, cls: type[Struct], version: int, flexible: bool) -> Any:
        rng = self.rng
        values: dict[str, Any] = {}

        def one(item: Any) -> Any:
            return self.struct(item, version, flexible) if isinstance(item, type) else self.scalar(item)

        for field in cls.FIELDS:
            if not field.exists_in(version) or rng.random() < 0.15:
                continue
            if field.nullable_in(version) and rng.random() < 0.3:
                values[field.name] = None
            elif field.kind == "array":
                length = rng.choice(LENGTHS if isinstance(field.item, type) else LONG_LENGTHS)
                values[field.name] = [one(field.item) for _ in range(length)]
            else:
                values[field.name] = one(field.item if field.kind == "struct" else field.kind)
        if flexible and rng.random() < 0.2:
            values["unknown_tagged_fields"] = {rng.randrange(64, 2**31): rng.randbytes(3)}
        return cls(**values)


@pytest.fixture(scope="module", autouse=True)
def kafka_jars() -> None:
    require_jars()


def versions() -> list[tuple[type[Message], int]]:
    return [(cls, version) for cls in message_classes() for version in range(cls.MIN_VERSION, cls.MAX_VERSION + 1)]


def kafka_answers(lines: list[str]) -> list[str]:
    command = [kafka.java(), "-cp", f"{kafka.libs_dir()}/*", str(ORACLE)]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, encoding="utf-8", check=True)
    return done.stdout.splitlines()


def test_kafka_decodes_penstocks_bytes_and_encodes_the_same_bytes() -> None:
    generator = Generator(seed=1)
    lines = [
        f"{cls.__name__} {version} {encode(generator.struct(cls, version, is_flexible(cls, version)), version).hex()}"
        for cls, version in versions()
        for _ in range(MESSAGES_PER_VERSION)
    ]
    differing = [pair for pair in zip(lines, kafka_answers(lines), strict=True) if pair[0] != pair[1]]
    assert not differing[:3]


def test_message_with_default_values_has_the_same_bytes_as_in_kafka() -> None:
    lines = [f"{cls.__name__} {version} {encode(cls(), version).hex()}" for cls, version in versions()]
    answers = kafka_answers([f"{cls.__name__} {version} default" for cls, version in versions()])
    differing = [pair for pair in zip(lines, answers, strict=True) if pair[0] != pair[1]]
    assert not differing[:3]
